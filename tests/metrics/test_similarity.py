"""Ranks, gaps and means of others by hand, for arrays and for tensors."""

import numpy as np
import pytest
import torch

from tellapart.metrics.retrieval import gap_to_highest, gap_to_mean, mean_of_others, ranks_of_matches


@pytest.fixture(params=[np.array, torch.tensor], ids=["numpy", "torch"])
def array(request):
    return request.param


def test_a_rank_counts_all_that_fit_at_least_as_well_and_ties_too(array):
    similarity = array([[0.5, 0.5, 0.9], [0.5, 0.4, 0.3], [0.5, 0.5 - 1e-7, -float("inf")], [0.5, 0.5 - 1e-4, 0.0]])
    assert ranks_of_matches(similarity, similarity[:, 0]).tolist() == [2, 0, 1, 0]
    assert ranks_of_matches(similarity, similarity[:, 0], tie=1e-3).tolist() == [2, 0, 1, 1]


def test_the_gap_is_to_the_mean_of_those_that_exist(array):
    own, group = array([3.0, 3.0, 3.0]), array([[1.0, 4.0], [1.0, 100.0], [100.0, 100.0]])
    exists = array([[True, True], [True, False], [False, False]])
    assert gap_to_mean(own, group, exists).tolist() == [0.5, 2, 3]


def test_the_gap_is_to_the_highest_of_those_that_exist(array):
    own, group = array([3.0, 3.0, 3.0]), array([[1.0, 4.0], [1.0, 100.0], [100.0, 100.0]])
    exists = array([[True, True], [True, False], [False, False]])
    assert gap_to_highest(own, group, exists).tolist() == [-1, 2, 3]
    assert gap_to_highest(own, group[:, :0], exists[:, :0]).tolist() == [3, 3, 3]


def test_the_mean_of_others_leaves_one_out(array):
    values = array([1.0, 2.0, 6.0])
    assert mean_of_others(values.sum(), values, 3).tolist() == [4, 3.5, 1.5]
    assert mean_of_others(array([9.0, 3.0]), array([6.0, 1.0]), array([3, 2])).tolist() == [1.5, 2]
