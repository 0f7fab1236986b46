from itertools import combinations

import pytest

from support.pairwise import pairwise


@pytest.mark.parametrize("counts", [(3, 2), (2, 2, 2), (3, 4, 2, 2, 2), (5, 1, 3), (4,)])
def test_every_pair_of_values_occurs(counts):
    values = [[f"{name}{number}" for number in range(count)] for name, count in zip("abcde", counts, strict=False)]
    rows = pairwise(*values)
    for one, other in combinations(range(len(values)), 2):
        assert {(row[one], row[other]) for row in rows} == {(a, b) for a in values[one] for b in values[other]}
    for number, of_one in enumerate(values):
        assert {row[number] for row in rows} == set(of_one)


def test_there_are_far_fewer_rows_than_in_the_product():
    assert len(pairwise(range(2), range(2), range(2))) == 4  # the best there is
    assert len(pairwise(*[range(3)] * 5)) < 20  # of 243


def test_values_need_no_hash_and_come_as_they_were_given():
    assert pairwise([{}, []], [[1]]) == [({}, [1]), ([], [1])]


def test_what_is_not_allowed_does_not_occur_and_costs_no_other_pair():
    rows = pairwise("ab", "cd", "ef", allowed=lambda one, two, _: (one, two) != ("b", "d"))
    assert {row[:2] for row in rows} == {("a", "c"), ("a", "d"), ("b", "c")}
    assert {row[1:] for row in rows} == {("c", "e"), ("c", "f"), ("d", "e"), ("d", "f")}
