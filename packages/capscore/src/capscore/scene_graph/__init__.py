"""SGF: the F-score of the facts that a caption states against those that its references state.

As SPICE (Anderson et al., 2016) it takes captions apart into objects (dog), their attributes (dog, brown) and relations
between them (dog, chase, cat), puts the facts of a photo's references together, and compares.  The facts come from our
own small parser and from rules that follow those of Schuster et al. (2015), so its values are near those of SPICE but
not the same; docs/scene_graph.md says how near.  Two words agree if they have the same dictionary form or are synonyms
in WordNet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capscore.measures import MEASURES
from capscore.scene_graph import parser
from capscore.statistics import Statistics, quotients
from capscore.words import ENDINGS

_VOWELS = "aeiou"


def words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS_PLURAL = words_in(
    "binoculars clothes fries goggles groceries headphones jeans news outdoors overalls pajamas pants scissors series "
    "shorts species tights tongs trousers tweezers"
)
_THIRD_PERSON = {"is": "be", "was": "be", "has": "have", "does": "do", "goes": "go", "'s": "be"}


def singular(word: str, irregular: Mapping[str, str], vocabulary: Container[str]) -> str:
    """The singular of a plural noun; words of the `vocabulary` decide where an ending can be undone in two ways."""
    if word in _ALWAYS_PLURAL:
        return word
    if word in irregular:
        return irregular[word]
    if word.endswith("men"):
        return f"{word[:-2]}an"
    if not word.endswith("s") or len(word) < 3 or word.endswith(("ss", "'s")):
        return word
    without = word[:-1]
    if word.endswith(("us", "is", "as")) and (without not in vocabulary or len(without) < 3):  # bus, tennis, christmas
        return word
    if word.endswith("ies") and without not in vocabulary and len(word) > 4:  # parties, but movies
        return f"{word[:-3]}y"
    if word.endswith(("ches", "shes", "sses", "xes", "zzes")):
        return word[:-2]
    if word.endswith(("oes", "ses")) and without not in vocabulary:  # tomatoes and buses, but shoes and vases
        return word[:-2]
    return without


def infinitive(word: str, irregular: Mapping[str, str], vocabulary: Container[str]) -> str:
    """The infinitive of a verb's form; the `vocabulary` decides where an ending can be undone in several ways."""
    if word in _THIRD_PERSON:
        return _THIRD_PERSON[word]
    if word.endswith("s") and not word.endswith(("ss", "us")):
        return singular(word, {}, vocabulary)
    if word in irregular:
        return irregular[word]
    if word.endswith("ing") and _pronounceable(word[:-3]):
        return _without_ending(word[:-3], vocabulary)
    if word.endswith("ied") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("ied", "yed")) and len(word) == 4:  # tied, dyed
        return word[:-1]
    if word.endswith("ed") and not word.endswith("eed") and _pronounceable(word[:-2]):
        return _without_ending(word[:-2], vocabulary)
    return word


def _pronounceable(stem: str) -> bool:
    """True of what can be a verb: bring has no ending."""
    return len(stem) > 1 and any(letter in "aeiouy" for letter in stem)


def _without_ending(stem: str, vocabulary: Container[str]) -> str:
    """The infinitive that -ing or -ed was put on: the stem, or with its last letter undoubled, or with an e."""
    last = stem[-1]
    if len(stem) > 2 and last == stem[-2] and last not in _VOWELS:
        whole = stem in vocabulary and (last in "lsfz" or len(stem) == 3)  # falling, passing, adding
        return stem if whole or (last in "ls" and stem[:-1] not in vocabulary) else stem[:-1]
    one_syllable = sum(here in "aeiouy" and before not in "aeiouy" for before, here in zip(" " + stem, stem)) == 1  # noqa: B905
    single_letter = last not in "aeiouwxy" and stem[-2] in "aeiouy" and (len(stem) < 3 or stem[-3] not in _VOWELS)
    if one_syllable and single_letter:  # riding: without an e the d would have been doubled
        return f"{stem}e"
    if stem in vocabulary and stem != "chang":  # dancing has no infinitive of its own; Chang is a name
        return stem
    return f"{stem}e" if f"{stem}e" in vocabulary else stem


NAMES = MEASURES["SGF"].names

# The words that SPICE counts as colours and sizes, as far as captions show them, and a few that it leaves out.
COLOURS = words_in(
    "beige black blue brown cream dark gold golden gray green grey light maroon navy orange pink purple red silver tan "
    "teal turquoise violet white yellow"
)
COUNTS = words_in(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty"
)
SIZES = words_in(
    "baby big compact enormous fat giant gigantic grand heavy huge large lean little massive mini miniature narrow "
    "petite short skinny small squat tall thick thin tiny vast wide"
)

# "a bunch of bananas" speaks of bananas
_QUANTITIES = frozenset({"bunch", "couple", "lot", "pair", "number", "variety", "lots", "some", "all", "both", "many"})
_INSIDE_PREPOSITION = {"front": "in", "top": "on", "middle": "in"}  # in front of, on top of
_BEFORE_TO = frozenset({"next", "close"})  # next to, close to
_SINGULAR_PRONOUNS = frozenset({"he", "she", "it", "him", "her", "his", "its", "himself", "herself", "itself"})
_FAR = 50  # words from the beginning in which a pronoun's noun is searched
_MOST = 8  # things that share a verb or a preposition: captions have few, and hostile text has thousands

_PUNCTUATION = words_in(". , ; : ! ? ... - -- ' '' ` `` \" ( ) -lrb- -rrb- -LRB- -RRB-")
_NOUNS = frozenset({"NN", "NNS"})
_VERBS = frozenset({"VB", "VBD", "VBG", "VBN", "VBP", "VBZ"})
_CLAUSES = frozenset({"acl", "acl:relcl", "dep"})  # a verb behind its noun; "dep" is an arc without a name

Fact = tuple[str, ...]


class _Lexicon(NamedTuple):
    tags: list[str]
    labels: list[str]
    tagger: parser.Weights
    arcs: parser.Weights
    labeller: parser.Weights
    irregular: dict[str, str]
    synonyms: dict[str, tuple[int, ...]]  # a word's synonym sets in WordNet


def rows(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> NDArray[np.float64]:
    """One row a photo for `value`: (N, 14), for each of NAMES the photo's F and 1, or 0 and 0 where it is undefined.

    A photo's F is undefined where neither side states such facts.  Captions are PTB tokens, of any case.
    """
    captions: dict[tuple[str, ...], int] = {}  # equal captions are parsed once
    photos = []
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        places = [captions.setdefault(_lowered(words), len(captions)) for words in (hypothesis, *texts)]
        photos.append(places)
    facts = _facts_of(list(captions))
    f_scores = [_row(facts[caption], [facts[place] for place in others]) for caption, *others in photos]
    return np.array(f_scores, np.float64).reshape(-1, 2 * len(NAMES))


def statistics(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    return Statistics(NAMES, rows(captions, references), quotients)


def tuples(words: Sequence[str]) -> set[Fact]:
    """The facts that a caption states: (object,), (object, attribute) and (object, relation, object)."""
    (facts,) = _facts_of([_lowered(words)])
    return set(facts)


def part_of_speech(captions: Sequence[Sequence[str]]) -> list[list[str]]:
    """Penn Treebank's tag of each word; words in lower case, without punctuation."""
    return [tags for tags, _, _ in _parsed(captions)]


def _lowered(words: Sequence[str]) -> tuple[str, ...]:
    """The words in lower case, without punctuation."""
    return tuple(word.lower() for word in words if word not in _PUNCTUATION)


def _facts_of(captions: Sequence[tuple[str, ...]]) -> list[list[Fact]]:
    return [_Caption(words, *parse).facts() for words, parse in zip(captions, _parsed(captions), strict=True)]


def _parsed(captions: Sequence[Sequence[str]]) -> list[tuple[list[str], list[int], list[str]]]:
    """Tags, heads and labels of the words of each caption."""
    lexicon = _lexicon()
    words, starts = parser.flatten(captions)
    parses = parser.parse(words, starts, lexicon.tagger, lexicon.arcs, lexicon.labeller)
    tags, labels = np.array(lexicon.tags)[parses.tags].tolist(), np.array(lexicon.labels)[parses.labels].tolist()
    heads = parses.heads.tolist()
    return [(tags[start:stop], heads[start:stop], labels[start:stop]) for start, stop in pairwise(starts.tolist())]


class _Caption:
    """One caption with its tags and arcs, and the rules that read facts from them."""

    def __init__(self, words: Sequence[str], tags: list[str], heads: list[int], labels: list[str]):
        self.words, self.tags, self.heads, self.labels = words, tags, heads, labels
        self.children: list[list[int]] = [[] for _ in range(len(words) + 1)]
        for child, head in enumerate(heads):
            self.children[head].append(child)
        self.stated: dict[Fact, None] = {}  # a set that keeps the order
        self.stands_for = {i: self._counted(i) for i in range(len(words))}

    def facts(self) -> list[Fact]:
        subjects = [0] * (len(self.words) + 1)
        for i, tag in enumerate(self.tags):
            label = self.labels[i]
            if tag in _NOUNS:
                if label != "compound":
                    self.stated[(self._name(i),)] = None
                self._read_noun(i)
            if self.stands_for[i] != i:
                self._attribute(self.stands_for[i], self._name(i))
            if label in ("nsubj", "nsubjpass") and subjects[self.heads[i]] < _MOST:
                subjects[self.heads[i]] += 1
                for subject in self._joined(self.stands_for[i]):
                    self._read_subject(subject, self.heads[i], label)
        return list(self.stated)

    # -- what words mean

    def _name(self, i: int) -> str:
        return _dictionary_form(self.words[i], self.tags[i])

    def _of(self, i: int, *labels: str) -> list[int]:
        return [child for child in self.children[i] if self.labels[child] in labels]

    def _joined(self, i: int) -> list[int]:
        """A word and what "and" joins to it."""
        return [i, *(child for child in self._of(i, "conj") if _kind(self.tags[child]) == _kind(self.tags[i]))][:_MOST]

    def _counted(self, i: int) -> int:
        """The boats of "two of the boats", the bananas of "a bunch of bananas"; else the word itself."""
        if self.tags[i] == "CD" or self.words[i] in _QUANTITIES:
            for child in self._of(i, "nmod"):
                if self.tags[child] in _NOUNS and self._preposition(child) == "of":
                    return child
        return i

    def _preposition(self, i: int) -> str:
        parts = sorted(part for case in self._of(i, "case") for part in (case, *self._of(case, "mwe")))
        if parts and self.words[parts[0]] == "to" and self.words[parts[0] - 1] in _BEFORE_TO:
            parts.insert(0, parts[0] - 1)  # the parser makes "next" in "next to" a word of its own
        return " ".join(self.words[part] for part in parts)

    def _thing(self, i: int) -> int:
        """The word that a pronoun stands for, as a guess: the first noun before it.  -1 if there is none."""
        if self.words[i] == "other":  # next to each other
            return -1
        if self.tags[i] in ("WDT", "WP"):  # the man who smiles: "who" hangs on "smiles", which hangs on the man
            clause = self.heads[i]
            return self.heads[clause] if clause < len(self.words) and self.labels[clause] == "acl:relcl" else -1
        if self.tags[i] not in ("PRP", "PRP$"):
            return i
        is_single = self.words[i] in _SINGULAR_PRONOUNS
        nouns = [j for j in range(min(i, _FAR)) if self.tags[j] == "NN" or (self.tags[j] == "NNS" and not is_single)]
        return next((j for j in nouns if self.labels[j] != "compound"), nouns[0] if nouns else -1)

    def _circumstances(self, i: int) -> list[tuple[str, int]]:
        """The things that hang on a word by a preposition, each with it: (in front of, mirror)."""
        things: list[tuple[str, int]] = []
        # In "stands next to its mother" the parser hangs the mother on either word.
        nearby = [
            child for child in self.children[i] if self.words[child] in _BEFORE_TO and self.labels[child] != "amod"
        ]
        for child in (thing for host in (i, *nearby) for thing in self._of(host, "nmod")):
            if self.stands_for[i] == child:  # the bananas of a bunch
                continue
            preposition, name = self._preposition(child), self.words[child]
            inner = []
            if _INSIDE_PREPOSITION.get(name) == preposition:
                inner = [thing for thing in self._of(child, "nmod") if self._preposition(thing) == "of"]
            if inner:
                things += [(f"{preposition} {name} of", thing) for first in inner for thing in self._joined(first)]
            elif preposition:
                things += [(preposition, thing) for thing in self._joined(self.stands_for[child])]
            if len(things) >= _MOST:
                break
        return things

    # -- the rules

    def _attribute(self, thing: int, attribute: str) -> None:
        thing = self._thing(thing)
        if thing < 0 or self.tags[thing] == "DT":  # this is red
            return
        name = self._name(thing)
        self.stated[(name,)] = None
        self.stated[(name, attribute)] = None

    def _relation(self, subject: int, relation: str, target: int) -> None:
        subject, target = self._thing(subject), self._thing(target)
        if subject < 0 or target < 0:
            return
        first, second = self._name(subject), self._name(target)
        self.stated[(first,)] = None
        self.stated[(second,)] = None
        self.stated[(first, relation, second)] = None

    def _read_noun(self, i: int) -> None:
        for child in self.children[i]:
            label = self.labels[child]
            if label in ("amod", "nummod") or (label == "compound" and self.tags[child] in _NOUNS):
                if label == "nummod" and self.words[child] == "one":  # one man is a man
                    continue
                for attribute in self._joined(child):
                    self._attribute(i, self._name(attribute))
            elif label == "nmod:poss":
                self._relation(child, "have", i)
            elif label in _CLAUSES and child > i:
                self._read_clause(i, child)
        inside = _INSIDE_PREPOSITION.get(self.words[i]) == self._preposition(i) and self.labels[i] == "nmod"
        for preposition, thing in self._circumstances(i):
            if not (inside and preposition == "of"):
                self._relation(i, preposition, thing)

    def _read_subject(self, subject: int, predicate: int, label: str) -> None:
        """Statements about a subject: that it is so, that it is somewhere, or that it does something."""
        if predicate == len(self.words):
            return
        tag = self.tags[predicate]
        if tag in _VERBS:
            if self.tags[subject] in _NOUNS and not self._of(predicate, "expl"):  # there is a dog: no more than a dog
                for verb in self._joined(predicate):
                    if not self._read_verb(subject, verb, passive=label == "nsubjpass"):
                        self._attribute(subject, self._verb(verb))
        elif tag in _NOUNS:
            if self.tags[subject] not in _NOUNS:
                return
            preposition = self._preposition(predicate)
            for thing in self._joined(predicate):
                if preposition:
                    self._relation(subject, preposition, thing)
                else:
                    self._attribute(subject, self._name(thing))
        elif tag == "JJ" or self._of(predicate, "cop"):  # the tagger takes "long" for an adverb
            nearby = self._circumstances(predicate) if self.words[predicate] in _BEFORE_TO else []
            for preposition, thing in nearby:
                self._relation(subject, preposition, thing)
            for attribute in self._joined(predicate) if not nearby else []:
                self._attribute(subject, self._name(attribute))

    def _read_clause(self, thing: int, predicate: int) -> None:
        """Facts from a clause behind a thing: riding a bike, that is parked here, that is red."""
        if self.tags[predicate] in _VERBS:
            self._read_verb(thing, predicate, passive=bool(self._of(predicate, "nsubjpass")))
        elif self.tags[predicate] == "JJ" and self._of(predicate, "cop"):
            self._attribute(thing, self._name(predicate))

    def _read_verb(self, subject: int, verb: int, passive: bool) -> bool:
        """Facts of the subject with the verb's things and places; False if it has none."""
        name = self._verb(verb)
        objects = [thing for child in self._of(verb, "dobj")[:_MOST] for thing in self._joined(self.stands_for[child])]
        circumstances = self._circumstances(verb)
        for thing in objects:
            self._relation(subject, name, thing)
        for preposition, thing in circumstances:
            if passive and preposition == "by":
                self._relation(thing, name, subject)
            else:
                self._relation(subject, f"{name} {preposition}", thing)
        return bool(objects or circumstances)

    def _verb(self, i: int) -> str:
        return " ".join([self._name(i), *(self.words[particle] for particle in self._of(i, "compound:prt"))])


def _kind(tag: str) -> str:
    return "noun" if tag in _NOUNS else "verb" if tag in _VERBS else tag


@lru_cache(1 << 16)
def _dictionary_form(word: str, tag: str) -> str:
    lexicon = _lexicon()
    if tag in _NOUNS:
        base = singular(word, lexicon.irregular, lexicon.synonyms)
        # The tagger takes some plurals for names; a word that only has an entry without its ending is a plural too.
        return base if tag == "NNS" or (word not in lexicon.synonyms and base in lexicon.synonyms) else word
    if tag in _VERBS:
        return infinitive(word, lexicon.irregular, lexicon.synonyms)
    return word


@lru_cache(1 << 16)
def _senses(word: str) -> frozenset[int]:
    """The synonym sets of a word and of what it may be made from: a skier is found at ski, as in METEOR and SPICE."""
    lexicon = _lexicon()
    bases = [word[: -len(ending)] + end for ending, end in ENDINGS if word.endswith(ending) and len(word) > len(ending)]
    if word in lexicon.irregular:
        bases.append(lexicon.irregular[word])
    return frozenset(number for base in (word, *bases) for number in lexicon.synonyms.get(base, ()))


class _Concepts:
    """Numbers for words; synonyms get the same."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._sets: dict[int, int] = {}

    def number(self, word: str) -> int:
        number = self._words.get(word)
        if number is None:
            sets = _senses(word)
            number = next((self._sets[synset] for synset in sets if synset in self._sets), len(self._words))
            self._words[word] = number
            for synset in sets:
                self._sets.setdefault(synset, number)
        return number


def _row(stated: list[Fact], others: list[list[Fact]]) -> list[float]:
    """F and 1, or 0 and 0, for each of NAMES."""
    things, attributes, relations = _Concepts(), _Concepts(), _Concepts()

    def numbered(facts: Iterable[Fact]) -> dict[tuple[int, ...], Fact]:
        by_key: dict[tuple[int, ...], Fact] = {}
        for fact in facts:
            first = things.number(fact[0])
            if len(fact) == 1:
                key: tuple[int, ...] = (first,)
            elif len(fact) == 2:
                key = (first, attributes.number(fact[1]))
            else:
                key = (first, relations.number(fact[1]), things.number(fact[2]))
            by_key.setdefault(key, fact)
        return by_key

    of_references = numbered(sorted({fact for facts in others for fact in facts}))  # whatever the references' order
    of_caption = numbered(stated)
    right, total = [0] * len(NAMES), [0] * len(NAMES)
    for facts in (of_caption, of_references):
        for key, fact in facts.items():
            shared = key in of_caption and key in of_references
            for place in _kinds(fact):
                total[place] += 1
                right[place] += shared
    return [column for r, t in zip(right, total, strict=True) for column in ((r / t, 1.0) if t else (0.0, 0.0))]


def _kinds(fact: Fact) -> tuple[int, ...]:
    """The places in NAMES of the scores that a fact counts for."""
    if len(fact) == 1:
        return 0, 1
    if len(fact) == 3:
        return 0, 2
    word = fact[1]
    if word in COLOURS:
        return 0, 3, 4
    if word in COUNTS or word.isdigit():
        return 0, 3, 5
    return (0, 3, 6) if word in SIZES else (0, 3)


@cache
def _lexicon() -> _Lexicon:
    with np.load(Path(__file__).parents[1] / "data" / "scene_graph.npz", allow_pickle=False) as data:

        def lines(name: str) -> list[str]:
            text: str = data[name].tobytes().decode()
            return text.split("\n")

        def weights(name: str) -> parser.Weights:
            """Most weights are 0: kept are the others, row by row."""
            rows, classes = data[f"{name}_shape"]
            table = np.zeros(rows * classes, np.int8)
            table[np.cumsum(data[f"{name}_steps"].astype(np.int64)) - 1] = data[f"{name}_values"]
            return table.reshape(rows, classes)

        irregular = {form: base for base, *forms in map(str.split, lines("irregular")) for form in forms}
        synonyms = {word: tuple(map(int, sets)) for word, *sets in map(str.split, lines("synonyms"))}
        return _Lexicon(
            lines("tags"), lines("labels"), weights("tagger"), weights("arcs"), weights("labeller"), irregular, synonyms
        )
