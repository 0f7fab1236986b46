"""Words to their dictionary forms: men → man, riding → ride."""

from __future__ import annotations

from collections.abc import Container, Mapping

# How WordNet undoes the endings of nouns, verbs and adjectives
ENDINGS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"),
    ("est", "e"),
)  # fmt: skip

_VOWELS = "aeiou"


def words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS_PLURAL = words_in(
    "binoculars clothes fries goggles groceries headphones jeans news outdoors overalls pajamas pants scissors series "
    "shorts species tights tongs trousers tweezers"
)
_THIRD_PERSON = {"is": "be", "was": "be", "has": "have", "does": "do", "goes": "go", "'s": "be"}


def singular(word: str, irregular: Mapping[str, str], known: Container[str]) -> str:
    """The singular of a plural noun; `known` words decide where an ending can be undone in two ways."""
    if word in _ALWAYS_PLURAL:
        return word
    if word in irregular:
        return irregular[word]
    if word.endswith("men"):
        return f"{word[:-2]}an"
    if not word.endswith("s") or len(word) < 3 or word.endswith(("ss", "'s")):
        return word
    without = word[:-1]
    if word.endswith(("us", "is", "as")) and (without not in known or len(without) < 3):  # bus, tennis, christmas
        return word
    if word.endswith("ies") and without not in known and len(word) > 4:  # parties, but movies
        return f"{word[:-3]}y"
    if word.endswith(("ches", "shes", "sses", "xes", "zzes")):
        return word[:-2]
    if word.endswith(("oes", "ses")) and without not in known:  # tomatoes and buses, but shoes and vases
        return word[:-2]
    return without


def infinitive(word: str, irregular: Mapping[str, str], known: Container[str]) -> str:
    """The infinitive of a verb's form; `known` words decide where an ending can be undone in several ways."""
    if word in _THIRD_PERSON:
        return _THIRD_PERSON[word]
    if word.endswith("s") and not word.endswith(("ss", "us")):
        return singular(word, {}, known)
    if word in irregular:
        return irregular[word]
    if word.endswith("ing") and _pronounceable(word[:-3]):
        return _without_ending(word[:-3], known)
    if word.endswith("ied") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("ied", "yed")) and len(word) == 4:  # tied, dyed
        return word[:-1]
    if word.endswith("ed") and not word.endswith("eed") and _pronounceable(word[:-2]):
        return _without_ending(word[:-2], known)
    return word


def _pronounceable(stem: str) -> bool:
    """Whether this can be a verb: bring has no ending."""
    return len(stem) > 1 and any(letter in "aeiouy" for letter in stem)


def _without_ending(stem: str, known: Container[str]) -> str:
    """The infinitive that -ing or -ed was put on: the stem, or with its last letter undoubled, or with an e."""
    last = stem[-1]
    if len(stem) > 2 and last == stem[-2] and last not in _VOWELS:
        whole = stem in known and (last in "lsfz" or len(stem) == 3)  # falling, passing, adding
        return stem if whole or (last in "ls" and stem[:-1] not in known) else stem[:-1]
    one_syllable = sum(here in "aeiouy" and before not in "aeiouy" for before, here in zip(" " + stem, stem)) == 1  # noqa: B905
    single_letter = last not in "aeiouwxy" and stem[-2] in "aeiouy" and (len(stem) < 3 or stem[-3] not in _VOWELS)
    if one_syllable and single_letter:  # riding: without an e the d would have been doubled
        return f"{stem}e"
    if stem in known and stem != "chang":  # dancing has no infinitive of its own; Chang is a name
        return stem
    return f"{stem}e" if f"{stem}e" in known else stem
