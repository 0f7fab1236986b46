"""A part-of-speech tagger and a dependency parser for captions: three small perceptrons over hashed features.

The tagger goes from left to right.  The parser is arc-hybrid and greedy (Kuhlmann et al., 2011), trained with the
dynamic oracle of Goldberg and Nivre (2013); the root is a word of its own behind the last one.  A third perceptron
names each arc once all are known.  Tags are those of the Penn Treebank, arcs those of Universal Dependencies 1.  A
feature is a bucket in a table of weights; two features that share one are a little noise, not an error.

scripts/build_scene_graph_lexicon.py trains the weights with the functions of this file.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled

Integers = NDArray[np.int64]
Weights = NDArray[np.int8]  # (buckets, classes)

MOVES = 3  # shift the front word, attach the top of the stack to the word below it, attach it to the front word


class Parses(NamedTuple):
    """Captions one after the other, as `starts` divides them; heads count from the caption's first word."""

    starts: Integers  # (captions + 1,)
    tags: Integers  # (words,)
    heads: Integers  # (words,); the caption's length is the root
    labels: Integers  # (words,)


def describe(word: str) -> tuple[int, int, int, int]:
    """A word as the perceptrons see it: itself, its last three and its last two letters, digits and hyphens."""
    text = word.encode("utf-8", "replace")
    shape = (1 if any(byte in b"0123456789" for byte in text) else 0) + (2 if b"-" in text else 0)
    return zlib.crc32(text), zlib.crc32(text[-3:]), zlib.crc32(text[-2:]), shape


_FINITE = ("is", "are", "was", "were", "has", "have", "sits", "stands")
FINITE = np.array([describe(word)[0] for word in _FINITE], np.int64)


def parse(words: Integers, starts: Integers, tagger: Weights, arcs: Weights, labeller: Weights) -> Parses:
    """words (N, 4) as `describe` gives them, of captions that begin at starts (captions + 1,)."""
    count = len(words)
    tags, heads, labels = (np.zeros(count, np.int64) for _ in range(3))
    _parse_all(words, starts, FINITE, tagger, arcs, labeller, tags, heads, labels)
    return Parses(starts, tags, heads, labels)


def flatten(captions: Sequence[Sequence[str]]) -> tuple[Integers, Integers]:
    """The words of captions as `parse` takes them."""
    described: dict[str, tuple[int, int, int, int]] = {}
    rows = []
    starts = [0]
    for caption in captions:
        for word in caption:
            row = described.get(word)
            if row is None:
                row = described[word] = describe(word)
            rows.append(row)
        starts.append(len(rows))
    return np.array(rows, np.int64).reshape(-1, 4), np.array(starts, np.int64)


def _templates(atoms: str, templates: str) -> Integers:
    """Each feature's atoms, three at most, by their numbers; the number after the last atom's says "none"."""
    numbers = {name: number for number, name in enumerate(atoms.split())}
    rows = [[numbers[name] for name in template.split() if name != "always"] for template in templates.split(",")]
    return np.array([(row + 3 * [len(numbers)])[:3] for row in rows], np.int64)


# What the features are made of, in the order in which the functions below fill it in, and the features themselves.
TAG_ATOMS = (
    "word left right left_2 right_2 ending short_ending tag_1 tag_2 next_ending shape finite near_start near_end"
)
TAG_TEMPLATES = _templates(
    TAG_ATOMS,
    "always, word, left, right, left_2 left, right_2 right, ending, short_ending, tag_1, tag_1 tag_2, tag_1 word, "
    "left word, word right, tag_1 next_ending, ending next_ending, tag_1 ending right, shape, "
    "ending finite near_start, word finite near_end, tag_1 word right, ending left right",
)
ARC_ATOMS = (
    "top_word top_tag finite below_word below_tag front_word front_tag next_word next_tag later_tag deep_tag left_tag "
    "right_tag front_left_tag below_right_tag lefts rights front_lefts gap left_word depth near_end"
)
ARC_TEMPLATES = _templates(
    ARC_ATOMS,
    "top_word top_tag, top_tag finite, below_word below_tag, below_tag, front_word front_tag, front_tag finite, "
    "next_word next_tag, front_tag next_tag, front_tag next_tag later_tag, top_word front_word, "
    "top_word front_tag top_tag, top_tag front_word front_tag, top_tag front_tag, top_tag front_tag next_tag, "
    "below_tag top_tag front_tag, below_word top_word, below_tag top_tag, deep_tag below_tag top_tag, "
    "below_word top_tag front_tag, top_tag left_tag front_tag, top_tag right_tag front_tag, "
    "top_tag front_tag front_left_tag, below_tag top_tag below_right_tag, top_word lefts rights, top_tag lefts rights, "
    "front_tag front_lefts front_word, top_tag front_tag gap, top_word front_word gap, below_word left_word top_tag, "
    "below_tag left_word top_tag, below_word top_word left_word, top_word front_word next_word, "
    "below_tag front_tag finite, top_tag front_tag finite, deep_tag below_tag front_tag, "
    "below_word front_word top_tag, depth front_tag near_end, below_right_tag right_tag front_tag",
)
LABEL_ATOMS = (
    "child_tag head_tag side child_word head_word gap_side marker_word marker_tag above_tag tag_before tag_after "
    "outer_side last_tag head_marker_tag finite_side ending head_arity child_arity near_start"
)
LABEL_TEMPLATES = _templates(
    LABEL_ATOMS,
    "child_tag head_tag side, child_word child_tag side, head_word head_tag side, child_word head_word, "
    "child_word head_tag side, head_word child_tag side, child_tag head_tag gap_side, marker_word child_tag head_tag, "
    "marker_tag child_tag head_tag, marker_word head_word, above_tag head_tag child_tag, "
    "tag_before child_tag tag_after, child_tag head_tag outer_side, last_tag child_tag head_tag, "
    "head_marker_tag child_tag head_tag, child_tag head_tag finite_side, above_tag child_tag head_word, "
    "child_word above_tag head_tag, ending child_tag head_tag, child_tag head_tag head_arity, "
    "child_tag head_tag child_arity, child_word child_tag near_start, child_word tag_before tag_after, "
    "above_tag child_tag finite_side",
)


@compiled
def _hash(templates: Integers, atoms: Integers, size: int, out: Integers) -> None:
    """The features' rows in a table of `size` rows, a power of two; the products wrap around."""
    for i in range(len(templates)):
        h = (i + 1) * 2654435761
        h = (h ^ atoms[templates[i, 0]]) * 1540483477
        h = (h ^ (h >> 31) ^ atoms[templates[i, 1]]) * 2246822519
        h = (h ^ (h >> 29) ^ atoms[templates[i, 2]]) * 3266489917
        out[i] = (h ^ (h >> 32)) & (size - 1)


@compiled
def _at(words: Integers, i: int, column: int) -> int:
    return words[i, column] if 0 <= i < len(words) else -1


@compiled
def _tag(tags: Integers, i: int, beyond: int) -> int:
    return tags[i] if 0 <= i < len(tags) else beyond


@compiled
def says_finitely(words: Integers, finite: Integers) -> int:
    """1 if the caption has one of the commonest finite verbs; it decides what its participles are."""
    for i in range(len(words)):
        for word in finite:
            if words[i, 0] == word:
                return 1
    return 0


@compiled
def tag_features(words: Integers, tags: Integers, i: int, finite: int, size: int, out: Integers) -> None:
    atoms = np.zeros(15, np.int64)
    atoms[0], atoms[1], atoms[2] = words[i, 0], _at(words, i - 1, 0), _at(words, i + 1, 0)
    atoms[3], atoms[4] = _at(words, i - 2, 0), _at(words, i + 2, 0)
    atoms[5], atoms[6] = words[i, 1], words[i, 2]
    atoms[7], atoms[8] = _tag(tags, i - 1, -1), _tag(tags, i - 2, -1)
    atoms[9], atoms[10], atoms[11] = _at(words, i + 1, 1), words[i, 3], finite
    atoms[12], atoms[13] = min(i, 3), len(words) - i < 3
    _hash(TAG_TEMPLATES, atoms, size, out)


@compiled
def arc_features(words: Integers, tags: Integers, stack: Integers, depth: int, front: int, children: Integers,
                 finite: int, size: int, out: Integers) -> None:  # fmt: skip
    """children (words + 1, 6): of each word the outermost and the second child on the left, the same on the right,
    and how many there are on either side."""
    top = stack[depth - 1] if depth > 0 else -1
    below = stack[depth - 2] if depth > 1 else -1
    deep = stack[depth - 3] if depth > 2 else -1
    left = children[top, 0] if top >= 0 else -1
    atoms = np.zeros(23, np.int64)
    atoms[0], atoms[1], atoms[2] = _at(words, top, 0), _tag(tags, top, -1), finite
    atoms[3], atoms[4] = _at(words, below, 0), _tag(tags, below, -1)
    atoms[5], atoms[6] = _at(words, front, 0), _tag(tags, front, -2)
    atoms[7], atoms[8], atoms[9] = _at(words, front + 1, 0), _tag(tags, front + 1, -2), _tag(tags, front + 2, -2)
    atoms[10], atoms[11] = _tag(tags, deep, -1), _tag(tags, left, -1)
    atoms[12] = _tag(tags, children[top, 2], -1) if top >= 0 else -1
    atoms[13] = _tag(tags, children[front, 0], -1)
    atoms[14] = _tag(tags, children[below, 2], -1) if below >= 0 else -1
    atoms[15] = min(children[top, 4], 3) if top >= 0 else -1
    atoms[16] = min(children[top, 5], 3) if top >= 0 else -1
    atoms[17] = min(children[front, 4], 3)
    atoms[18] = min(front - top, 5) if top >= 0 else 0
    atoms[19], atoms[20], atoms[21] = _at(words, left, 0), min(depth, 4), len(words) - front < 3
    _hash(ARC_TEMPLATES, atoms, size, out)


@compiled
def label_features(words: Integers, tags: Integers, heads: Integers, children: Integers, child: int, finite: int,
                   size: int, out: Integers) -> None:  # fmt: skip
    count = len(words)
    head = heads[child]
    above = heads[head] if head < count else -1
    side = 1 if head > child else 0
    marker = children[child, 0]  # such as its preposition
    outermost = child in (children[head, 0], children[head, 2])
    atoms = np.zeros(20, np.int64)
    atoms[0], atoms[1], atoms[2] = tags[child], _tag(tags, head, -1), side
    atoms[3], atoms[4], atoms[5] = words[child, 0], _at(words, head, 0), min(abs(head - child), 4) + 8 * side
    atoms[6], atoms[7] = _at(words, marker, 0), _tag(tags, marker, -1)
    atoms[8] = -1 if above < 0 else _tag(tags, above, -2)
    atoms[9], atoms[10] = _tag(tags, child - 1, -1), _tag(tags, child + 1, -1)
    atoms[11], atoms[14] = 2 * outermost + side, 2 * finite + side
    atoms[12], atoms[13] = _tag(tags, children[child, 2], -1), _tag(tags, children[head, 0], -1)
    atoms[15] = words[child, 1]
    atoms[16] = min(children[head, 5], 3) * 4 + min(children[head, 4], 3)
    atoms[17] = min(children[child, 5], 3) * 4 + min(children[child, 4], 3)
    atoms[18] = min(child, 3)
    _hash(LABEL_TEMPLATES, atoms, size, out)


@compiled
def attach(child: int, head: int, heads: Integers, children: Integers) -> None:
    heads[child] = head
    side = 0 if child < head else 2
    children[head, side + 1] = children[head, side]
    children[head, side] = child
    children[head, 4 + side // 2] += 1


@compiled
def best(weights: Weights | NDArray[np.float64], features: Integers, allowed: NDArray[np.bool_]) -> int:
    """The class with the highest score among those allowed; the first of several."""
    winner, top = -1, 0
    for c in range(weights.shape[1]):
        if allowed[c]:
            score = 0
            for feature in features:
                score += weights[feature, c]
            if winner < 0 or score > top:
                winner, top = c, score
    return winner


@compiled
def may(depth: int, front: int, count: int, allowed: NDArray[np.bool_]) -> None:
    allowed[0] = front < count
    allowed[1] = depth > 1
    allowed[2] = depth == 1 or (depth > 1 and front < count)  # one word alone hangs on the root


@compiled
def do(move: int, stack: Integers, depth: int, front: int, heads: Integers, children: Integers) -> tuple[int, int]:
    """Shift the front word onto the stack (0), or attach the top of it to the word below (1) or to the front word (2).

    returns  how many words are on the stack then, and the front word
    """
    if move == 0:
        stack[depth] = front
        return depth + 1, front + 1
    attach(stack[depth - 1], stack[depth - 2] if move == 1 else front, heads, children)
    return depth - 1, front


@compiled
def _parse_all(words: Integers, starts: Integers, finite_words: Integers, tagger: Weights, arcs: Weights,
               labeller: Weights, tags: Integers, heads: Integers, labels: Integers) -> None:  # fmt: skip
    any_tag = np.ones(tagger.shape[1], np.bool_)
    any_label = np.ones(labeller.shape[1], np.bool_)
    moves = np.zeros(MOVES, np.bool_)
    for_tag = np.zeros(len(TAG_TEMPLATES), np.int64)
    for_arc = np.zeros(len(ARC_TEMPLATES), np.int64)
    for_label = np.zeros(len(LABEL_TEMPLATES), np.int64)
    for caption in range(len(starts) - 1):
        start, stop = starts[caption], starts[caption + 1]
        count = stop - start
        here = words[start:stop]
        t, h = tags[start:stop], heads[start:stop]
        finite = says_finitely(here, finite_words)
        for i in range(count):
            tag_features(here, t, i, finite, len(tagger), for_tag)
            t[i] = best(tagger, for_tag, any_tag)
        stack = np.zeros(count + 1, np.int64)
        children = np.full((count + 1, 6), -1)
        children[:, 4:] = 0
        depth, front = 0, 0
        while depth or front < count:
            may(depth, front, count, moves)
            arc_features(here, t, stack, depth, front, children, finite, len(arcs), for_arc)
            move = best(arcs, for_arc, moves)
            depth, front = do(move, stack, depth, front, h, children)
        for i in range(count):
            label_features(here, t, h, children, i, finite, len(labeller), for_label)
            labels[start + i] = best(labeller, for_label, any_label)
