"""What rewards are made of."""

import numpy as np

from tellapart.rewards.context import _without


def test_look_alikes_that_are_dropped_make_room_for_the_next():
    indices = np.array([[4, 2, 7, -1], [1, 3, 5, 6]])
    scores = np.array([[0.9, 0.85, 0.5, 0.0], [0.7, 0.6, 0.5, 0.4]], np.float32)
    found, theirs = _without(indices, scores, scores > 0.8, 2)
    assert found.tolist() == [[7, -1], [1, 3]]
    assert theirs[0, 0] == np.float32(0.5)
    assert theirs[1].tolist() == [np.float32(0.7), np.float32(0.6)]
