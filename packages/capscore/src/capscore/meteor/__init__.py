"""METEOR 1.5 for English without Java (Denkowski and Lavie, 2014): words matched exactly, by stem, as synonyms or as
paraphrases.  Captions become statistics that add up over photos, and statistics scores.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled, over_cores
from capscore.meteor import alignment, index
from capscore.meteor.alignment import STAGES, STATISTICS, Paraphrases, Words
from capscore.meteor.index import available as available
from capscore.statistics import Floats, Statistics

ALPHA = 0.85  # recall's share of the mean of precision and recall
BETA, GAMMA = 0.2, 0.6  # shape and weight of the penalty for matches that are scattered
DELTA = 0.75  # weight of a content word; a function word weighs the rest
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # of a match: exact, by stem, as synonyms, as paraphrases


class Meteor:
    """Captions to statistics.  May be used by several threads at once; after unpickling, it loads its data again."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._index = index.load_index(folder)
        self._function_words, self._prefixes = index.small_lists(folder)

    def __reduce__(self) -> tuple[type[Meteor], tuple[Path]]:
        return Meteor, (self._folder,)

    def statistics(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
    ) -> NDArray[np.float64]:
        """(N, S) of N tokenised captions: against the reference that each scores best with.  Additive over photos."""
        if len(hypotheses) != len(references):
            raise ValueError(f"{len(hypotheses)} hypotheses, but {len(references)} sets of references")
        vocabulary: defaultdict[str, int] = defaultdict(count().__next__)  # words, numbered as they come
        tokens: list[int] = []
        captions: list[int] = [0]
        first: list[int] = []  # the caption of each photo that is its hypothesis; the references follow it

        def add(caption: str) -> None:
            tokens.extend(map(vocabulary.__getitem__, normalise(caption, self._prefixes)))
            captions.append(len(tokens))

        for hypothesis, texts in zip(hypotheses, references, strict=True):
            first.append(len(captions) - 1)
            add(" ".join(hypothesis).replace("|||", ""))  # METEOR's own separator
            for reference in texts or [[]]:  # no reference counts as an empty one
                for part in " ".join(reference).split("|||"):
                    add(part)
        first.append(len(captions) - 1)
        return self._best(
            np.array(first, np.int64), np.array(captions, np.int64), np.array(tokens, np.int32), list(vocabulary)
        )

    def _best(
        self, first: NDArray[np.int64], captions: NDArray[np.int64], tokens: NDArray[np.int32], vocabulary: list[str]
    ) -> NDArray[np.float64]:
        photos = len(first) - 1
        if not photos:
            return np.zeros((0, STATISTICS))
        numbers = index.of_words(vocabulary)
        words = self._words(vocabulary, numbers)
        data = self._index
        paraphrases = Paraphrases(data.phrases, data.shift, data.buckets, data.edges, data.paraphrases)
        hypotheses = np.repeat(first[:-1], np.diff(first))
        out = np.zeros((len(captions) - 1, STATISTICS))

        def work(start: int, stop: int) -> None:
            begin, end = int(first[start]), int(first[stop])
            edges = captions[begin : end + 1]
            spans = index.of_spans(numbers[tokens[edges[0] : edges[-1]]], edges - edges[0], int(data.longest))
            alignment.align(begin, end, captions, hypotheses, tokens, spans, words, paraphrases, out)

        over_cores(work, photos, least=64)
        score = value(out)
        score[first[:-1]] = -1  # the hypotheses themselves
        best = np.maximum.reduceat(score, first[:-1])
        rows = np.where(score == best.repeat(np.diff(first)), np.arange(len(score)), len(score))
        return out[np.minimum.reduceat(rows, first[:-1])]  # of equally good references the first

    def _words(self, vocabulary: list[str], numbers: NDArray[np.uint64]) -> Words:
        sets = np.zeros((len(vocabulary), 2), np.int32)
        listed, rows = self._listed(numbers)
        sets[listed] = self._index.all[rows[listed]]
        candidates = [(word, base) for word in np.flatnonzero(~listed) for base in index.base_forms(vocabulary[word])]
        if candidates:
            owners = np.array([word for word, _ in candidates])
            listed, rows = self._listed(index.of_words([base for _, base in candidates]))
            base_sets = self._index.own[rows]
            listed &= base_sets[:, 0] < base_sets[:, 1]
            # the first base form that WordNet knows is written last
            sets[owners[listed][::-1]] = base_sets[listed][::-1]
        function = np.array([word in self._function_words for word in vocabulary], np.bool_)
        keys, stems = _java_hashes(vocabulary), _java_hashes([stem(word) for word in vocabulary])
        return Words(keys, stems, *_shared(sets, self._index.sets), function)

    def _listed(self, numbers: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """True of words that WordNet knows, and their rows."""
        words = self._index.words
        rows = np.minimum(np.searchsorted(words, numbers), len(words) - 1)
        return (words[rows] == numbers), rows


def load(folder: Path | None = None) -> Meteor:
    """With the data of the installed pycocoevalcap, or that of a folder laid out like its `meteor`."""
    return Meteor(folder or index.data_folder())


def value(statistics: NDArray[np.float64]) -> NDArray[np.float64]:
    """METEOR of (..., S) statistics: a photo's own, or a whole corpus's from their sum.  0 where nothing matches."""
    length, reference_length, function, reference_function = (statistics[..., column] for column in range(4))
    stages = statistics[..., 4 : 4 + 4 * STAGES].reshape(*statistics.shape[:-1], STAGES, 4)
    chunks, matched, reference_matched = (statistics[..., column] for column in range(STATISTICS - 3, STATISTICS))
    weighted = DELTA * (length - function) + (1 - DELTA) * function
    reference_weighted = DELTA * (reference_length - reference_function) + (1 - DELTA) * reference_function
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = _weighted(stages[..., 0], stages[..., 2]) / weighted
        recall = _weighted(stages[..., 1], stages[..., 3]) / reference_weighted
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        fragmentation = chunks / ((matched + reference_matched) / 2)
        score = mean * (1 - GAMMA * fragmentation**BETA)
    return np.where(np.isnan(score), 0.0, np.maximum(score, 0.0))


def _weighted(content: NDArray[np.float64], function: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matches (..., stages) by their weights; added up in METEOR's order, to have its last digits too."""
    total = np.zeros(content.shape[:-1])
    for matches, weight in ((content, DELTA), (function, 1 - DELTA)):
        for stage in range(STAGES):
            total = total + matches[..., stage] * WEIGHTS[stage] * weight
    return total


def _java_hashes(words: list[str]) -> NDArray[np.int32]:
    """METEOR tells words apart by Java's hash of them alone, under which "aw" and "c9" are one word."""
    encoded = [word.encode("utf-16-le", "surrogatepass") for word in words]
    edges = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) // 2 for word in encoded], out=edges[1:])
    return _hashes(np.frombuffer(b"".join(encoded), np.uint16), edges)


@compiled
def _hashes(text: NDArray[np.uint16], edges: NDArray[np.int64]) -> NDArray[np.int32]:
    hashes = np.empty(len(edges) - 1, np.int32)
    for word in range(len(hashes)):
        number = np.uint32(0)
        for at in range(edges[word], edges[word + 1]):
            number = np.uint32(number * np.uint32(31) + np.uint32(text[at]))
        hashes[word] = np.int32(number)
    return hashes


def _shared(
    slices: NDArray[np.int32], sets: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """The synonym sets of each word that another word is in too, as the matching takes them: most words keep few."""
    lengths = slices[:, 1] - slices[:, 0]
    words = np.repeat(np.arange(len(slices)), lengths)
    within = np.arange(len(words)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    _, numbers, sizes = np.unique(sets[slices[words, 0] + within], return_inverse=True, return_counts=True)
    shared = sizes[numbers] > 1
    words, numbers = words[shared], numbers[shared]
    edges = np.searchsorted(words, np.arange(len(slices) + 1))
    bits = np.zeros(len(slices), np.uint64)
    np.bitwise_or.at(bits, words, np.uint64(1) << (numbers % 64).astype(np.uint64))
    return edges, numbers, bits


def statistics(captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> Statistics:
    """METEOR of one caption of each photo, given as words, and of its references."""
    return Statistics(("METEOR",), load().statistics(captions, references), _value)


def _value(sums: Floats) -> Floats:
    return value(sums)[..., None]


# METEOR's own tokeniser (its option -norm), which runs over captions that the PTB tokeniser has split already.  It
# follows the tokeniser of the Moses toolkit and adds its own treatment of hyphens, quotes and apostrophes: "t-shirt"
# becomes "t shirt", "dog 's" becomes "dog ' s" and "is n't" becomes "is n 't".

_PLAIN = re.compile("[0-9a-z ]*")  # nothing to do but to split at the blanks

_LETTERS = (
    "A-Za-z\u0160\u017d\u0161\u017e\u0178\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u04ff\u0500-\u0527"
    "\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
)
_SPACES = "\u2000-\u200a\u202f\u205f\u3000\u00a0 "
_CONTROLS = "".join(map(chr, range(33)))  # what Java's trim() takes off both ends
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# A dot of "..." while the other rules run.  METEOR writes letters, DOTMULTI, and takes these for dots in a caption too;
# this one no caption has.
_DOT = "\ud800"


_SYMBOL = re.compile(rf"([^0-9{_LETTERS}\s.'`,\-\u2018\u2019])", re.ASCII)
_DOTS = re.compile(r"\.\.+")

# In this order.  A rule sees what the one before it left, and a character taken by one match is not seen by the next:
# of "a-b-c" only the first hyphen goes.
_PUNCTUATION = {
    r"([^0-9]),([^0-9])": r"\1 , \2",
    r"([0-9]),([^0-9])": r"\1 , \2",
    r"([^0-9]),([0-9])": r"\1 , \2",
    r"[`\u2018\u2019]": "'",
    r"[\u201c\u201d]|''": ' " ',
    r"\u2013": "-",
    r"--": "-",
    rf"([0-9{_LETTERS}.])-([0-9{_LETTERS}])": r"\1 \2",
    rf"([^{_LETTERS}])'([^{_LETTERS}])": r"\1 ' \2",
    rf"([^0-9{_LETTERS}])'([{_LETTERS}])": r"\1 ' \2",
    rf"([{_LETTERS}])'([^{_LETTERS}])": r"\1 ' \2",
    rf"([{_LETTERS}])'([{_LETTERS}])": r"\1 '\2",
    r"([0-9])'(s)": r"\1 '\2",
}
_RULES = [(re.compile(pattern, re.ASCII), replacement) for pattern, replacement in _PUNCTUATION.items()]
_BLANKS = re.compile("[ \t\n\r\f]+")
_LETTER = re.compile(f"[{_LETTERS}]")
_UNICODE_SPACES = re.compile(f"[{_SPACES}]+")

Prefixes = Mapping[str, bool]
"""Abbreviations that keep their dot: True for those which do so only before a number ("No. 5")."""


def normalise(caption: str, prefixes: Prefixes) -> list[str]:
    """The words that METEOR compares."""
    if _PLAIN.fullmatch(caption):
        return caption.split()
    line = " " + _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", caption.strip(_CONTROLS)) + " "
    line = _SYMBOL.sub(r" \1 ", line)
    line = _DOTS.sub(lambda dots: f" {_DOT * len(dots[0])} ", line)
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    line = " ".join(_final_dots([word for word in _BLANKS.split(line) if word], prefixes)).replace(_DOT, ".")
    line = _UNICODE_SPACES.sub(" ", line).strip(_CONTROLS).lower()
    return [word for word in _BLANKS.split(line) if word]


def _final_dots(words: list[str], prefixes: Prefixes) -> list[str]:
    """A dot at the end of a word is a word of its own, unless the word is an abbreviation or the sentence goes on."""
    result = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        kept = word[:-1]
        if not kept or not word.endswith("."):
            result.append(word)
        elif "." in kept and _LETTER.search(kept):
            result.append(word.replace(".", ""))  # u.s.
        elif "a" <= following[:1] <= "z" or (kept in prefixes and (not prefixes[kept] or "0" <= following[:1] <= "9")):
            result.append(word)
        else:
            result += [kept, "."]
    return result


# The Snowball English stemmer (Porter2), after https://snowballstem.org/algorithms/english/stemmer.html in the older
# revision that METEOR 1.5 ships: the exceptions that were added later are missing here on purpose.

_VOWELS = "aeiouy"  # a consonantal y is written Y while a word is being stemmed
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")

_WHOLE = {
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie",
    "idly": "idl", "gently": "gentl", "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}  # fmt: skip
_WHOLE_WITHOUT_S = {"inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"}

_STEP_2 = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og",
    "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
_STEP_3 = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic",
    "ful": "", "ness": "", "ative": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys(
    "al ance ence er ic able ible ant ement ment ent ism ate iti ous ive ize ion".split(),  # noqa: SIM905
    "",
)


# What such an ending must follow to be one
_FOLLOWS = {"ogi": ("l",), "li": tuple("cdeghkmnrt"), "ion": ("s", "t")}


_STEPS = [
    (endings, re.compile(rf"(?:{'|'.join(sorted(endings, key=len, reverse=True))})\Z"))  # the longest first
    for endings in (_STEP_2, _STEP_3, _STEP_4)
]
_POSSESSIVE = re.compile(r"'(?:s'?)?\Z")
_REGION = re.compile(f"[{_VOWELS}][^{_VOWELS}]")  # R1 and R2 begin after the first of these
_VOWEL = re.compile(f"[{_VOWELS}]")
# a short syllable at the end
_SHORT = re.compile(rf"(?:[^{_VOWELS}][{_VOWELS}][^{_VOWELS}wxY]|^[{_VOWELS}][^{_VOWELS}])\Z")


@lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if word in _WHOLE:
        return _WHOLE[word]
    if len(word) < 3:
        return word
    word = _mark_consonantal_y(word.removeprefix("'"))
    r1, r2 = _regions(word)
    word = _without_plural(_POSSESSIVE.sub("", word))
    if word in _WHOLE_WITHOUT_S:
        return word
    word = _without_participle(word, r1)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    for endings, pattern in _STEPS:
        match = pattern.search(word)
        if match and match.start() >= (r2 if endings is _STEP_4 or match[0] == "ative" else r1):
            kept, ending = word[: match.start()], match[0]
            if kept.endswith(_FOLLOWS.get(ending, "")):
                word = kept + endings[ending]
    return _without_final_e(word, r1, r2).replace("Y", "y")


def _mark_consonantal_y(word: str) -> str:
    """Left to right: in "yy" after a vowel the first y becomes a consonant, and the second then follows no vowel."""
    if "y" not in word:
        return word
    letters = list(word)
    for at, letter in enumerate(letters):
        if letter == "y" and (at == 0 or letters[at - 1] in _VOWELS):
            letters[at] = "Y"
    return "".join(letters)


def _regions(word: str) -> tuple[int, int]:
    """The beginnings of R1 and R2."""
    prefix = next((prefix for prefix in ("gener", "commun", "arsen") if word.startswith(prefix)), "")
    r1 = len(prefix) or _after(word, 0)
    return r1, _after(word, r1)


def _after(word: str, start: int) -> int:
    match = _REGION.search(word, start)
    return match.end() if match else len(word)


def _without_plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _VOWEL.search(word[:-2]):
        return word[:-1]
    return word


def _without_participle(word: str, r1: int) -> str:
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            return word[: -len(ending)] + "ee" if len(word) - len(ending) >= r1 else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            kept = word[: -len(ending)]
            break
    else:
        return word
    if not _VOWEL.search(kept):
        return word
    if kept.endswith(("at", "bl", "iz")):
        return kept + "e"
    if kept.endswith(_DOUBLES):
        return kept[:-1]
    if len(kept) <= r1 and _SHORT.search(kept):  # a short word: "hop" of "hoping"
        return kept + "e"
    return kept


def _without_final_e(word: str, r1: int, r2: int) -> str:
    """Nor with a second l."""
    kept = word[:-1]
    if word.endswith("e") and (len(kept) >= r2 or (len(kept) >= r1 and not _SHORT.search(kept))):
        return kept
    if word.endswith("ll") and len(kept) >= r2:
        return kept
    return word
