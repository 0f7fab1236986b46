"""Named streams of a batch of items."""

import torch

from tellapart.data.streams import Inputs, Stream, region_inputs


def test_without_a_mask_every_region_exists():
    values, mask = region_inputs(torch.zeros(2, 3, 8))["regions"]
    assert values.shape == (2, 3, 8)
    assert mask.tolist() == [[True] * 3] * 2


def test_items_are_selected_in_every_stream_alike():
    numbers = torch.arange(12.0)
    inputs = Inputs(
        regions=Stream(numbers.view(3, 2, 2), torch.ones(3, 2, dtype=torch.bool)),
        attributes=Stream(numbers.view(3, 4, 1), torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [False] * 4])),
    )
    assert inputs.items_count == 3
    for rows in (torch.tensor([2, 0]), [2, 0]):
        some = inputs.select(rows)
        assert some.items_count == 2
        assert some["regions"].values[:, 0, 0].tolist() == [8, 0]
        assert some["attributes"].mask.sum(1).tolist() == [0, 4]
    assert inputs.select(slice(1, 2))["attributes"].values.flatten().tolist() == [4, 5, 6, 7]
