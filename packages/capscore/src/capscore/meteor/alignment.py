"""Alignment of two captions as METEOR does it: all matches of their words, then a beam search for the best choice.

The score depends on which of several equally good alignments is found, so the search keeps to METEOR 1.5's own order of
matches, its ties and its habits (`_search` names them).
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Phrases = NDArray[np.uint64]


class Words(NamedTuple):
    """Words of captions as the alignment takes them."""

    keys: Ints  # words of one key are the same word
    stems: Ints
    edges: Longs  # (V + 1,) where the synonym sets of each begin
    sets: Longs  # synonym sets, sorted for each word
    bits: Phrases  # (V,) a bit for each set, to tell at a glance that two words share none
    function: NDArray[np.bool_]  # function words


class Paraphrases(NamedTuple):
    phrases: Phrases  # sorted
    shift: int  # what leaves a phrase's first bits
    buckets: Ints  # where the phrases with given first bits begin
    edges: Ints  # where the paraphrases of each phrase begin
    paraphrases: Phrases


class Table(NamedTuple):
    """The phrases of a caption by their numbers."""

    slots: Longs  # open addressing: where a phrase is first, as start * longest + length - 1
    following: Longs  # where it is next


class Pair(NamedTuple):
    test: Ints  # words of the hypothesis, as rows of `Words`
    reference: Ints
    test_spans: Phrases  # (words, longest) phrases from each word on
    reference_spans: Phrases
    table: Table  # of the hypothesis


STAGES = 4  # exact, stem, synonym, paraphrase
STATISTICS = 4 + 4 * STAGES + 3
"""Per pair of captions: words of the hypothesis, of the reference, function words of each; then for each stage the
matched content words of both and the matched function words of both; then chunks and the matched words of both."""

_BEAM = 40
_MOST_MATCHES = 1 << 20  # of one pair of captions; see `_matches`
_NOTHING = -1

# The columns of a table of matches: a stretch of the reference, one of the hypothesis, and the stage that matched them
_START, _LENGTH, _OTHER_START, _OTHER_LENGTH, _STAGE = range(5)

# The columns of a choice of the beam: how good it is (matched words, chunks, distance), how far it has got in the
# reference, where its last match ends in the hypothesis, its matches as a linked list, and which choice it comes from
# by adding which match
_GAIN, _CHUNKS, _DISTANCE, _UPTO, _END, _NODE, _ORIGIN, _ADDED = range(8)

Number = TypeVar("Number", np.int32, np.int64)


@compiled
def align(first: int, last: int, captions: Longs, hypotheses: Longs, tokens: Ints, spans: Phrases, words: Words,
          paraphrases: Paraphrases, out: NDArray[np.float64]) -> None:  # fmt: skip
    """Statistics of each caption from `first` to `last` as a reference of its hypothesis, into the rows of `out`.

    captions    (C + 1,)  where captions begin in `tokens`
    hypotheses  (C,)      the caption that each caption is a reference of; itself for a hypothesis, which is passed over
    tokens      (T,)      words as rows of `words`
    spans       (T', L)   phrases from each word of captions `first` to `last` on, and no others
    """
    offset = captions[first]
    previous = _NOTHING
    table = _span_table(spans[:0])
    for caption in range(first, last):
        hypothesis = hypotheses[caption]
        if caption == hypothesis:
            continue
        test = tokens[captions[hypothesis] : captions[hypothesis + 1]]
        reference = tokens[captions[caption] : captions[caption + 1]]
        test_spans = spans[captions[hypothesis] - offset : captions[hypothesis + 1] - offset]
        reference_spans = spans[captions[caption] - offset : captions[caption + 1] - offset]
        if hypothesis != previous:
            table, previous = _span_table(test_spans), hypothesis
        pair = Pair(test, reference, test_spans, reference_spans, table)
        matches, edges = _matches(pair, words, paraphrases)
        _count(test, reference, words.function, matches, _search(len(test), matches, edges), out[caption])


@compiled
def _matches(pair: Pair, words: Words, paraphrases: Paraphrases) -> tuple[Ints, Longs]:
    """All that may be matched, in the order in which the search must try it, and where each reference word's begin.

    Two captions of a thousand words that are all alike would have a million matches and more: where there are that
    many, only those not too far from the diagonal are kept.
    """
    length = len(pair.reference)
    reach = len(pair.test) + length
    rows = np.empty((64, 5), np.int32)
    while True:
        rows, count = _find(pair, words, paraphrases, reach, rows)
        if count <= _MOST_MATCHES or reach == 0:
            break
        reach = min(reach // 2, _MOST_MATCHES // (2 * length))
    edges = np.zeros(length + 1, np.int64)
    for match in range(count):
        edges[rows[match, _START] + 1] += 1
    for word in range(length):
        edges[word + 1] += edges[word]
    following = edges.copy()
    matches = np.empty((count, 5), np.int32)
    for match in range(count):
        start = rows[match, _START]
        for column in range(5):
            matches[following[start], column] = rows[match, column]
        following[start] += 1
    return matches, edges


@compiled
def _find(pair: Pair, words: Words, paraphrases: Paraphrases, reach: int, rows: Ints) -> tuple[Ints, int]:
    """The matches at most `reach` words from the diagonal, stage by stage; too many of them end it early."""
    test, reference = pair.test, pair.reference
    keys, stems, bits, sets, edges = words.keys, words.stems, words.bits, words.sets, words.edges
    count = 0
    same = len(test) == len(reference)
    for at in range(len(reference)):
        same = same and keys[test[at]] == keys[reference[at]]
    ways = np.zeros(len(test), np.uint8)  # in which a word of the hypothesis matches: a bit for each stage
    for start in range(len(reference)):
        word = reference[start]
        nearest, farthest = max(start - reach, 0), min(start + reach + 1, len(test))
        every = 0
        for other_start in range(nearest, farthest):
            other = test[other_start]
            way = 0
            if keys[other] == keys[word]:
                way = 1
            elif not same:  # a caption matches itself word by word: nothing else is tried
                if stems[other] == stems[word]:
                    way |= 2
                if bits[other] & bits[word] and _share(sets, edges, other, word):
                    way |= 4
            ways[other_start] = way
            every |= way
        for stage in range(3):
            if every >> stage & 1:
                for other_start in range(nearest, farthest):
                    if ways[other_start] >> stage & 1:
                        rows = _added(rows, count, start, 1, other_start, 1, stage)
                        count += 1
        if count > _MOST_MATCHES:
            return rows, count
    if same:
        return rows, count
    targets = paraphrases.paraphrases
    for backwards in range(2):  # a phrase of the reference and its paraphrase in the hypothesis, then the other way
        if backwards:
            from_spans, to_spans, table = pair.test_spans, pair.reference_spans, _span_table(pair.reference_spans)
        else:
            from_spans, to_spans, table = pair.reference_spans, pair.test_spans, pair.table
        longest, slots, following = to_spans.shape[1], table.slots, table.following
        for start in range(len(from_spans)):
            for length in range(1, longest + 1):
                if start + length > len(from_spans):
                    break
                begin, end = _paraphrases_of(from_spans[start, length - 1], paraphrases)
                for paraphrase in range(begin, end):
                    span = slots[_slot(slots, to_spans, targets[paraphrase])]
                    while span != _NOTHING:
                        to_start, to_length = span // longest, span % longest + 1
                        if abs(to_start - start) <= reach:
                            if backwards:
                                rows = _added(rows, count, to_start, to_length, start, length, 3)
                            else:
                                rows = _added(rows, count, start, length, to_start, to_length, 3)
                            count += 1
                        span = following[span]
            if count > _MOST_MATCHES:
                return rows, count
    return rows, count


@compiled
def _added(rows: Ints, count: int, start: int, length: int, other_start: int, other_length: int, stage: int) -> Ints:
    if count == len(rows):
        rows = _doubled(rows)
    rows[count, _START], rows[count, _LENGTH] = start, length
    rows[count, _OTHER_START], rows[count, _OTHER_LENGTH] = other_start, other_length
    rows[count, _STAGE] = stage
    return rows


@compiled
def _doubled(rows: NDArray[Number]) -> NDArray[Number]:
    """Room for twice as many rows.  Copied number by number: numba takes seconds to compile what assigns slices."""
    larger = np.empty((2 * len(rows), rows.shape[1]), rows.dtype)
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            larger[row, column] = rows[row, column]
    return larger


@compiled
def _share(sets: Longs, edges: Longs, word: int, other: int) -> bool:
    """True if two words have a synonym set in common; the sets of each are sorted."""
    left, right = edges[word], edges[other]
    while left < edges[word + 1] and right < edges[other + 1]:
        if sets[left] == sets[right]:
            return True
        if sets[left] < sets[right]:
            left += 1
        else:
            right += 1
    return False


@compiled
def _span_table(spans: Phrases) -> Table:
    """The places of a caption's phrases, by their numbers: equal ones are linked in their order."""
    longest = spans.shape[1]
    size = 2
    while size < 2 * len(spans) * longest:
        size *= 2
    slots = np.full(size, _NOTHING, np.int64)
    following = np.empty(len(spans) * longest, np.int64)
    for start in range(len(spans) - 1, -1, -1):
        for length in range(min(longest, len(spans) - start)):
            slot = _slot(slots, spans, spans[start, length])
            following[start * longest + length] = slots[slot]
            slots[slot] = start * longest + length
    return Table(slots, following)


@compiled
def _slot(slots: Longs, spans: Phrases, phrase: np.uint64) -> np.int64:
    """The slot of a phrase, or the empty one where it would go."""
    longest = spans.shape[1]
    slot = np.int64(phrase & np.uint64(len(slots) - 1))
    while slots[slot] != _NOTHING and spans[slots[slot] // longest, slots[slot] % longest] != phrase:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@compiled
def _paraphrases_of(phrase: np.uint64, paraphrases: Paraphrases) -> tuple[int, int]:
    phrases, shift, buckets, edges, _ = paraphrases
    bucket = np.int64(phrase >> np.uint64(shift))
    for row in range(buckets[bucket], buckets[bucket + 1]):
        if phrases[row] == phrase:
            return edges[row], edges[row + 1]
    return 0, 0


@compiled
def _search(test_length: int, matches: Ints, edges: Longs) -> Longs:
    """The chosen match (its row) at each word of the reference where one begins.

    Word by word through the reference, keeping the 40 best choices: most matched words, then fewest chunks, then the
    smallest distance.  METEOR 1.5 searches with habits of its own, kept here because the scores depend on them:
    a match by stem, synonym or paraphrase counts half of its words on each side, rounded down, so one of single words
    counts nothing; the distance of a match is charged not to the choice that takes it but to those tried after it from
    the same choice; and a match whose words no other match wants is settled beforehand.
    """
    settled = _settled(test_length, matches, edges)
    blocks = (test_length + 63) // 64
    beam, candidates = np.zeros((_BEAM, 8), np.int64), np.zeros((_BEAM, 8), np.int64)
    used, used_next = np.zeros((_BEAM, blocks), np.uint64), np.zeros((_BEAM, blocks), np.uint64)  # test words, as bits
    order = np.zeros(_BEAM, np.int64)  # the candidates, best first
    nodes = np.empty((64, 2), np.int64)  # linked lists: a match, and the node of those before it
    node_count = 0
    beam[0, _END] = beam[0, _NODE] = _NOTHING
    size = 1
    for word in range(len(settled)):
        ranked = 0
        for choice in range(size):
            gain, chunks, distance = beam[choice, _GAIN], beam[choice, _CHUNKS], beam[choice, _DISTANCE]
            upto, end, node = beam[choice, _UPTO], beam[choice, _END], beam[choice, _NODE]
            if upto > word:  # inside a longer match
                here = (gain, chunks, distance, upto, end, node, choice, _NOTHING)
                ranked = _rank(candidates, order, ranked, here)
                continue
            alone = settled[word] != _NOTHING
            for row in range(edges[word], edges[word + 1]):
                start, length = matches[row, _OTHER_START], matches[row, _OTHER_LENGTH]
                if not alone and _taken(used, choice, start, length):
                    continue
                far = abs(word - start)
                here = (
                    gain + (2 if matches[row, _STAGE] == 0 else matches[row, _LENGTH] // 2 + length // 2),
                    chunks + (end != _NOTHING and start != end),
                    distance + (far if alone else 0),
                    word + matches[row, _LENGTH],
                    start + length,
                    node,
                    choice,
                    _NOTHING if alone else row,
                )
                ranked = _rank(candidates, order, ranked, here)
                distance += far
            if not alone:
                here = (gain, chunks + (end != _NOTHING), distance, word + 1, _NOTHING, node, choice, _NOTHING)
                ranked = _rank(candidates, order, ranked, here)
        for place in range(ranked):
            for column in range(8):
                beam[place, column] = candidates[order[place], column]
            for block in range(blocks):
                used_next[place, block] = used[beam[place, _ORIGIN], block]
            row = beam[place, _ADDED]
            if row != _NOTHING:
                if node_count == len(nodes):
                    nodes = _doubled(nodes)
                nodes[node_count, 0], nodes[node_count, 1] = row, beam[place, _NODE]
                beam[place, _NODE] = node_count
                node_count += 1
                for at in range(matches[row, _OTHER_START], matches[row, _OTHER_START] + matches[row, _OTHER_LENGTH]):
                    used_next[place, at // 64] |= np.uint64(1) << np.uint64(at % 64)
        used, used_next = used_next, used
        size = ranked
    ranked = 0
    for choice in range(size):  # the last chunk ends with the caption
        gain, chunks, distance = beam[choice, _GAIN], beam[choice, _CHUNKS], beam[choice, _DISTANCE]
        chunks += beam[choice, _END] != _NOTHING
        here = (gain, chunks, distance, len(settled), _NOTHING, beam[choice, _NODE], choice, _NOTHING)
        ranked = _rank(candidates, order, ranked, here)
    node = candidates[order[0], _NODE]
    while node != _NOTHING:
        settled[matches[nodes[node, 0], _START]] = nodes[node, 0]
        node = nodes[node, 1]
    return settled


@compiled
def _settled(test_length: int, matches: Ints, edges: Longs) -> Longs:
    """At each word of the reference the match that begins there, if it is the only one to want any of its words."""
    length = len(edges) - 1
    wanted, other_wanted = np.zeros(length, np.int64), np.zeros(test_length, np.int64)
    for row in range(len(matches)):
        for at in range(matches[row, _LENGTH]):
            wanted[matches[row, _START] + at] += 1
        for at in range(matches[row, _OTHER_LENGTH]):
            other_wanted[matches[row, _OTHER_START] + at] += 1
    settled = np.full(length, _NOTHING, np.int64)
    for start in range(length):
        if edges[start + 1] - edges[start] == 1:
            row = edges[start]
            alone = True
            for at in range(matches[row, _LENGTH]):
                alone = alone and wanted[start + at] == 1
            for at in range(matches[row, _OTHER_LENGTH]):
                alone = alone and other_wanted[matches[row, _OTHER_START] + at] == 1
            if alone:
                settled[start] = row
    return settled


@compiled
def _taken(used: Phrases, choice: int, start: int, length: int) -> bool:
    taken = False
    for at in range(start, start + length):
        taken = taken or bool(used[choice, at // 64] >> np.uint64(at % 64) & np.uint64(1))
    return taken


@compiled
def _rank(candidates: Longs, order: Longs, ranked: int, new: tuple[int, ...]) -> int:
    """Put a candidate in its place among the 40 best so far, behind its equals; gives how many there are now."""
    place = ranked
    while place > 0:
        other = order[place - 1]
        if candidates[other, _GAIN] != new[_GAIN]:
            if candidates[other, _GAIN] > new[_GAIN]:
                break
        elif candidates[other, _CHUNKS] != new[_CHUNKS]:
            if candidates[other, _CHUNKS] < new[_CHUNKS]:
                break
        elif candidates[other, _DISTANCE] <= new[_DISTANCE]:
            break
        place -= 1
    if place == _BEAM:
        return ranked
    slot = ranked
    if ranked == _BEAM:
        ranked -= 1
        slot = order[ranked]
    for at in range(ranked, place, -1):
        order[at] = order[at - 1]
    order[place] = slot
    for column in range(8):
        candidates[slot, column] = new[column]
    return ranked + 1


@compiled
def _count(test: Ints, reference: Ints, function: NDArray[np.bool_], matches: Ints, chosen: Longs,
           out: NDArray[np.float64]) -> None:  # fmt: skip
    """The statistics of an alignment, in the order that STATISTICS describes."""
    out[0], out[1] = len(test), len(reference)
    for at in range(len(test)):
        out[2] += function[test[at]]
    for at in range(len(reference)):
        out[3] += function[reference[at]]
    chunks = STATISTICS - 3
    end = _NOTHING
    at = 0
    while at < len(reference):
        if chosen[at] == _NOTHING:
            end = _NOTHING
            at += 1
            continue
        row = chosen[at]
        start, length = matches[row, _OTHER_START], matches[row, _LENGTH]
        stage = 4 + 4 * matches[row, _STAGE]
        out[chunks] += end == _NOTHING or start != end
        end = start + matches[row, _OTHER_LENGTH]
        for other_word in range(start, end):
            out[stage + 2 * function[test[other_word]]] += 1
        for word in range(at, at + length):
            out[stage + 1 + 2 * function[reference[word]]] += 1
        out[chunks + 1] += end - start
        out[chunks + 2] += length
        at += length
    if out[chunks] == 1 and out[chunks + 1] == len(test) and out[chunks + 2] == len(reference):
        out[chunks] = 0  # nothing is scattered: such a pair pays no penalty, alone or in a corpus
