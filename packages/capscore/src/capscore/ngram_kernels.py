"""The loops that count n-grams of token ids and compare them with references: see `ngrams`, which calls them.

All of them are in this file, since they call each other (`compiled`).
A *bag* is the distinct n-grams of one sentence: `ids` are their numbers in the table, `times` how often the sentence
has each, and edges[n - 1] : edges[n] are those of order n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capscore.compiled import compiled

ORDERS = 4  # n = 1..4
ROOT = 0  # the number of the empty n-gram, which all others grow from
UNKNOWN = -1
EMPTY = -1  # key of a free slot
_SPACE = 8  # times as many places as a bag's table needs: captions share few, and most others end at an empty one
_SPREADER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring keys land far apart

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def _slot(key: int, size: int) -> int:
    """Where the search for a key begins in a table of `size` slots, a power of two."""
    return int((np.uint64(key) * _SPREADER) >> np.uint64(32)) & (size - 1)


@compiled
def _key(parent: int, token: int) -> int:
    return (int(parent) << 32) | (int(token) & 0xFFFFFFFF)  # exact for any 32-bit token, negative ones too


@compiled
def _size(entries: int) -> int:
    """Slots for a table of so many entries: a power of two, at least half of them free."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return size


@compiled
def _insert(slots: Longs, key: int, number: int) -> None:
    at = _slot(key, len(slots))
    while slots[at, 0] != EMPTY:
        at = (at + 1) & (len(slots) - 1)
    slots[at, 0], slots[at, 1] = key, number


@compiled
def _insert_all(slots: Longs, others: Longs) -> None:
    for at in range(len(others)):
        if others[at, 0] != EMPTY:
            _insert(slots, others[at, 0], others[at, 1])


@compiled
def _room(slots: Longs) -> int:
    """How many n-grams a table may hold, the empty one counted: fuller, it would be slow; emptier, large."""
    return len(slots) // 4 * 3


@compiled
def _table(size: int) -> Longs:
    slots = np.empty((size, 2), np.int64)
    slots[:, 0] = EMPTY
    return slots


@compiled
def _longer(array: Ints, size: int) -> Ints:
    out = np.zeros(size, array.dtype)
    out[: len(array)] = array
    return out


@compiled
def _scratch(length: int) -> tuple[Longs, Longs, Longs, Longs, Longs]:
    """Room for the bag of a sentence of `length` tokens: see `_bag`."""
    return (
        _table(_size(length)),
        np.empty(length, np.int64),
        np.empty(ORDERS * length, np.int64),
        np.empty(ORDERS * length, np.int64),
        np.empty(ORDERS * length, np.int64),
    )


@compiled
def _bag(tokens: Ints, start: int, length: int, local: Longs, at: Longs, parents: Longs, lasts: Longs, times: Longs,
         edges: Longs) -> None:  # fmt: skip
    """The distinct n-grams of one sentence, each as (bag entry of its first tokens, last token), with how often.

    They are told apart by exact keys in `local`, so that n-grams which the big table lacks are counted as well.
    """
    entries = 0
    edges[0] = 0
    size = _size(length)
    for order in range(ORDERS):
        local[:size, 0] = EMPTY
        for i in range(length - order):
            parent = at[i] if order else -1
            token = tokens[start + i + order]
            key = _key(parent + 1, token)
            slot = _slot(key, size)
            while local[slot, 0] != EMPTY and local[slot, 0] != key:
                slot = (slot + 1) & (size - 1)
            if local[slot, 0] == EMPTY:
                local[slot, 0], local[slot, 1] = key, entries
                parents[entries], lasts[entries], times[entries] = parent, token, 0
                entries += 1
            entry = local[slot, 1]
            times[entry] += 1
            at[i] = entry
        edges[order + 1] = entries


@compiled
def build(tokens: Ints, starts: Longs, lengths: Longs, first: Longs, base_parents: Ints, base_tokens: Ints,
           base_counts: Ints, count: bool) -> Any:  # fmt: skip
    """Number every n-gram of the references and write down each sentence's bag."""
    sentences = len(lengths)
    longest = 0
    positions = 0
    for s in range(sentences):
        longest = max(longest, lengths[s])
        for order in range(ORDERS):
            positions += max(lengths[s] - order, 0)

    slots = _table(1024)
    while _room(slots) < len(base_tokens) + positions // 8 + 1:  # of many captions' n-grams, so many are distinct
        slots = _table(2 * len(slots))
    counts, seen = np.zeros(_room(slots), np.int32), np.zeros(_room(slots), np.int32)
    known = 1  # the root
    for g in range(len(base_tokens)):
        _insert(slots, _key(base_parents[g], base_tokens[g]), known)
        counts[known] = base_counts[g]
        known += 1

    local, at, bag_parents, bag_lasts, bag_times = _scratch(longest)
    bag_edges = np.empty(ORDERS + 1, np.int64)
    bag_ids = np.empty(ORDERS * longest, np.int64)
    edges = np.zeros((sentences, ORDERS + 1), np.int64)
    ids, times = np.empty(positions, np.int32), np.empty(positions, np.int32)
    written = 0
    for photo in range(len(first) - 1):
        for s in range(first[photo], first[photo + 1]):
            _bag(tokens, starts[s], lengths[s], local, at, bag_parents, bag_lasts, bag_times, bag_edges)
            entries = bag_edges[ORDERS]
            while known + entries > _room(slots):
                larger = _table(2 * len(slots))
                _insert_all(larger, slots)
                slots = larger
                counts, seen = _longer(counts, _room(slots)), _longer(seen, _room(slots))
            for order in range(ORDERS):
                _look_up(slots, bag_parents, bag_lasts, bag_edges, order, bag_ids)
                for entry in range(bag_edges[order], bag_edges[order + 1]):
                    number = bag_ids[entry]
                    if number == UNKNOWN:
                        parent = ROOT if bag_parents[entry] < 0 else bag_ids[bag_parents[entry]]
                        number = bag_ids[entry] = known
                        known += 1
                        _insert(slots, _key(parent, bag_lasts[entry]), number)
                    if count and seen[number] != photo + 1:  # one photo's references are one document
                        seen[number] = photo + 1
                        counts[number] += 1
                    ids[written + entry] = number
                    times[written + entry] = bag_times[entry]
            for order in range(ORDERS + 1):
                edges[s, order] = written + bag_edges[order]
            written += entries
    return slots, counts[:known], edges, ids[:written], times[:written]


@compiled
def norms(edges: Longs, ids: Ints, times: Ints, weights: Floats) -> Floats:
    norms = np.zeros((len(edges), ORDERS))
    for s in range(len(edges)):
        for order in range(ORDERS):
            total = 0.0
            for entry in range(edges[s, order], edges[s, order + 1]):
                total += (times[entry] * weights[ids[entry]]) ** 2
            norms[s, order] = np.sqrt(total)
    return norms


@compiled
def _look_up(slots: Longs, parents: Longs, lasts: Longs, edges: Longs, order: int, ids: Longs) -> None:
    """The numbers of a bag's n-grams of one order, or UNKNOWN; those of the order below are there already."""
    for entry in range(edges[order], edges[order + 1]):
        parent = ROOT if parents[entry] < 0 else ids[parents[entry]]
        ids[entry] = UNKNOWN
        if parent != UNKNOWN:
            key = _key(parent, lasts[entry])
            at = _slot(key, len(slots))
            while slots[at, 0] != key and slots[at, 0] != EMPTY:
                at = (at + 1) & (len(slots) - 1)
            ids[entry] = slots[at, 1] if slots[at, 0] == key else UNKNOWN


@compiled
def _places(longest: int) -> tuple[Ints, Ints]:
    """Room for `_index`: which n-gram is at a place, and which entry of the bag it is."""
    size = _SPACE * _size(ORDERS * longest)
    return np.empty(size, np.int32), np.empty(size, np.int32)


@compiled
def _index(slots: Longs, parents: Longs, lasts: Longs, edges: Longs, ids: Longs, numbers: Ints, entries: Ints) -> int:
    """Number the entries of a bag, and write them where `_entry` finds them.  Returns how many places are in use.

    A number is its own hash: those of one photo mostly follow each other, and then no two of them want the same place.
    """
    size = _SPACE * _size(edges[ORDERS])
    numbers[:size] = EMPTY
    for order in range(ORDERS):
        _look_up(slots, parents, lasts, edges, order, ids)
    for entry in range(edges[ORDERS]):
        if ids[entry] != UNKNOWN:
            place = ids[entry] & (size - 1)
            while numbers[place] != EMPTY:
                place = (place + 1) & (size - 1)
            numbers[place], entries[place] = ids[entry], entry
    return size


@compiled
def _entry(numbers: Ints, entries: Ints, number: int, size: int) -> int:
    """Where in the bag an n-gram of the references is, or UNKNOWN."""
    place = number & (size - 1)
    while numbers[place] != EMPTY:
        if numbers[place] == number:
            return int(entries[place])
        place = (place + 1) & (size - 1)
    return UNKNOWN


@compiled
def _candidates(numbers: Ints, size: int, ids: Ints, begin: int, end: int, found: Longs) -> int:
    """Where in ids[begin:end] n-grams are that the bag may have: all that it has, and few others.  Returns how many.

    Without a branch: a processor would guess wrongly at every other n-gram.
    """
    count = 0
    for reference in range(begin, end):
        found[count] = reference
        count += numbers[ids[reference] & (size - 1)] != EMPTY
    return count


@compiled
def _longest_bag(photos: Longs, begin: int, end: int, first: Longs, edges: Longs) -> int:
    """The most n-grams that a reference of these captions has."""
    longest = 0
    for i in range(begin, end):
        for s in range(first[photos[i]], first[photos[i] + 1]):
            longest = max(longest, edges[s, ORDERS] - edges[s, 0])
    return longest


@compiled
def _longest(lengths: Longs, begin: int, end: int) -> int:
    longest = 0
    for i in range(begin, end):
        longest = max(longest, lengths[i])
    return longest


@compiled
def closest(tokens: Ints, starts: Longs, lengths: Longs, photos: Longs, begin: int, end: int, slots: Longs,
             first: Longs, reference_lengths: Longs, closest: Longs) -> None:  # fmt: skip
    for i in range(begin, end):
        best = -1
        for s in range(first[photos[i]], first[photos[i] + 1]):
            length = reference_lengths[s]
            off, least = abs(length - lengths[i]), abs(best - lengths[i])
            if best < 0 or off < least or (off == least and length < best):
                best = length
        closest[i] = max(best, 0)


@compiled
def clipped(tokens: Ints, starts: Longs, lengths: Longs, photos: Longs, begin: int, end: int, slots: Longs,
             first: Longs, edges: Longs, ids: Ints, times: Ints, matches: Longs) -> None:  # fmt: skip
    longest = _longest(lengths, begin, end)
    local, at, parents, lasts, own_counts = _scratch(longest)
    numbers, entries = _places(longest)
    bag_edges = np.empty(ORDERS + 1, np.int64)
    bag_ids, most = np.empty(ORDERS * longest, np.int64), np.empty(ORDERS * longest, np.int64)
    found = np.empty(_longest_bag(photos, begin, end, first, edges), np.int64)
    for i in range(begin, end):
        _bag(tokens, starts[i], lengths[i], local, at, parents, lasts, own_counts, bag_edges)
        size = _index(slots, parents, lasts, bag_edges, bag_ids, numbers, entries)
        most[: bag_edges[ORDERS]] = 0
        for s in range(first[photos[i]], first[photos[i] + 1]):
            for k in range(_candidates(numbers, size, ids, edges[s, 0], edges[s, ORDERS], found)):
                reference = found[k]
                entry = _entry(numbers, entries, ids[reference], size)
                if entry != UNKNOWN:
                    most[entry] = max(most[entry], times[reference])
        for order in range(ORDERS):
            for entry in range(bag_edges[order], bag_edges[order + 1]):
                matches[i, order] += min(own_counts[entry], most[entry])


@compiled
def _weigh(ids: Longs, times: Longs, edges: Longs, weights: Floats, unknown_weight: float, bag_weights: Floats,
           norm: Floats) -> None:  # fmt: skip
    """Weights of a bag's n-grams, and for each order the length of its tf-idf vector."""
    for order in range(ORDERS):
        total = 0.0
        for entry in range(edges[order], edges[order + 1]):
            weight = unknown_weight if ids[entry] == UNKNOWN else weights[ids[entry]]
            bag_weights[entry] = weight
            total += (times[entry] * weight) ** 2
        norm[order] = np.sqrt(total)


@compiled
def cosines(tokens: Ints, starts: Longs, lengths: Longs, photos: Longs, begin: int, end: int, slots: Longs,
             first: Longs, edges: Longs, ids: Ints, times: Ints, weights: Floats, unknown_weight: float, norms: Floats,
             reference_lengths: Longs, clip: bool, sigma: float, similarities: Floats) -> None:  # fmt: skip
    longest = _longest(lengths, begin, end)
    local, at, parents, lasts, own_counts = _scratch(longest)
    numbers, entries = _places(longest)
    bag_edges = np.empty(ORDERS + 1, np.int64)
    bag_ids, bag_weights = np.empty(ORDERS * longest, np.int64), np.empty(ORDERS * longest)
    norm, products = np.empty(ORDERS), np.empty(ORDERS)
    orders = np.empty(ORDERS * longest, np.int64)  # of the bag's entries, counted from 0
    found = np.empty(_longest_bag(photos, begin, end, first, edges), np.int64)
    for i in range(begin, end):
        _bag(tokens, starts[i], lengths[i], local, at, parents, lasts, own_counts, bag_edges)
        size = _index(slots, parents, lasts, bag_edges, bag_ids, numbers, entries)
        _weigh(bag_ids, own_counts, bag_edges, weights, unknown_weight, bag_weights, norm)
        for order in range(ORDERS):
            orders[bag_edges[order] : bag_edges[order + 1]] = order
        sentences = first[photos[i] + 1] - first[photos[i]]
        total = 0.0
        for s in range(first[photos[i]], first[photos[i] + 1]):
            products[:] = 0.0
            for k in range(_candidates(numbers, size, ids, edges[s, 0], edges[s, ORDERS], found)):
                reference = found[k]
                entry = _entry(numbers, entries, ids[reference], size)
                if entry != UNKNOWN:
                    counted = min(own_counts[entry], times[reference]) if clip else own_counts[entry]
                    products[orders[entry]] += counted * times[reference] * bag_weights[entry] ** 2
            cosine = 0.0
            for order in range(ORDERS):
                if products[order] > 0:
                    cosine += products[order] / (norm[order] * norms[s, order])
            # the original counts two-word sequences, so that captions of one word and of none are equally long
            difference = max(lengths[i] - 1, 0) - max(reference_lengths[s] - 1, 0)
            total += cosine * np.exp(-(difference**2) / (2 * sigma**2))
        if sentences > 0:
            similarities[i] = total / (ORDERS * sentences)


@compiled
def _word(lasts: Longs, edges: Longs, token: int) -> int:
    """The entry of a word in the bag of its sentence.  A sentence has few: a table would take longer."""
    for entry in range(edges[1]):
        if lasts[entry] == token:
            return entry
    return UNKNOWN


@compiled
def word_gains(tokens: Ints, starts: Longs, lengths: Longs, photos: Longs, begin: int, end: int, slots: Longs,
                first: Longs, edges: Longs, ids: Ints, times: Ints, weights: Floats, unknown_weight: float,
                norms: Floats, reference_lengths: Longs, threshold: float, normalised: bool, sigma: float,
                gains: Floats, word_weights: Floats) -> None:  # fmt: skip
    longest = _longest(lengths, begin, end)
    local, at, parents, lasts, own_counts = _scratch(longest)
    numbers, entries = _places(longest)
    bag_edges = np.empty(ORDERS + 1, np.int64)
    bag_ids, bag_weights = np.empty(ORDERS * longest, np.int64), np.empty(ORDERS * longest)
    norm = np.empty(ORDERS)
    earned, of_words = np.empty(ORDERS * longest), np.empty(longest)  # by n-grams; by words through them
    members = np.empty(ORDERS, np.int64)
    for i in range(begin, end):
        _bag(tokens, starts[i], lengths[i], local, at, parents, lasts, own_counts, bag_edges)
        size = _index(slots, parents, lasts, bag_edges, bag_ids, numbers, entries)
        _weigh(bag_ids, own_counts, bag_edges, weights, unknown_weight, bag_weights, norm)
        earned[: bag_edges[ORDERS]] = 0
        for s in range(first[photos[i]], first[photos[i] + 1]):
            difference = max(lengths[i] - 1, 0) - max(reference_lengths[s] - 1, 0)
            penalty = np.exp(-(difference**2) / (2 * sigma**2))
            for order in range(ORDERS):
                positions, reference_positions = lengths[i] - order, reference_lengths[s] - order
                for reference in range(edges[s, order], edges[s, order + 1]):
                    entry = _entry(numbers, entries, ids[reference], size)
                    if entry == UNKNOWN:
                        continue
                    share = positions if normalised else 1
                    if own_counts[entry] * bag_weights[entry] / share > threshold and bag_weights[entry] > 0:
                        # shares of either sentence are multiples of counts, and but for this factor the norms undo it
                        longer = positions / reference_positions if normalised else 1.0
                        product = min(float(own_counts[entry]), times[reference] * longer) * times[reference]
                        earned[entry] += penalty * product * bag_weights[entry] ** 2 / (norm[order] * norms[s, order])
        of_words[: bag_edges[1]] = 0
        for order in range(ORDERS):
            for entry in range(bag_edges[order], bag_edges[order + 1]):
                if earned[entry] == 0:
                    continue
                step = entry
                for place in range(order + 1):  # from its last word back to its first
                    word = members[place] = _word(lasts, bag_edges, lasts[step])
                    again = False
                    for earlier in range(place):
                        again |= members[earlier] == word
                    if not again:
                        of_words[word] += earned[entry]
                    step = parents[step]
        sentences = max(first[photos[i] + 1] - first[photos[i]], 1)
        for place in range(lengths[i]):
            word = _word(lasts, bag_edges, tokens[starts[i] + place])
            gains[i, place] = of_words[word] / sentences
            word_weights[i, place] = own_counts[word] * bag_weights[word] / (lengths[i] if normalised else 1)


@compiled
def occurrences(tokens: Ints, starts: Longs, lengths: Longs, photos: Longs, begin: int, end: int, slots: Longs,
                 first: Longs, edges: Longs, ids: Ints, times: Ints, most: Longs) -> None:  # fmt: skip
    longest = _longest(lengths, begin, end)
    parents, lasts, numbers = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    parents[:] = -1
    bag_edges = np.zeros(2, np.int64)
    for i in range(begin, end):
        bag_edges[1] = lengths[i]
        for place in range(lengths[i]):
            lasts[place] = tokens[starts[i] + place]
        _look_up(slots, parents, lasts, bag_edges, 0, numbers)
        for s in range(first[photos[i]], first[photos[i] + 1]):
            for reference in range(edges[s, 0], edges[s, 1]):
                for place in range(lengths[i]):
                    if numbers[place] == ids[reference]:
                        most[i, place] = max(most[i, place], times[reference])
