"""The decoders with the fields of `Rules` among their keywords, so that a test names only those that it varies."""

from dataclasses import fields
from functools import wraps

from tellapart import decoding
from tellapart.decoding.candidates import candidates as with_rules
from tellapart.decoding.candidates import contrastive_search as contrastive_with_rules
from tellapart.decoding.rules import Rules


def in_keywords(decode):
    @wraps(decode)
    def call(*arguments, **keywords):
        rules = {field.name: keywords.pop(field.name) for field in fields(Rules) if field.name in keywords}
        return decode(*arguments, rules=Rules(**rules), **keywords)

    return call


beam_search = in_keywords(decoding.beam_search)
greedy = in_keywords(decoding.greedy)
sample = in_keywords(decoding.sample)
contrastive_search = in_keywords(contrastive_with_rules)


def candidates(captioner, memory, tokenizer, *, max_words, min_words=0, no_repeat=0, **keywords):
    rules = Rules.of(tokenizer, max_words=max_words, min_words=min_words, no_repeat=no_repeat)
    return with_rules(captioner, memory, tokenizer, rules, **keywords)
