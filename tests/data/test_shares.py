"""Shares of batches: several processes together have what one alone would have, in the same order."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tellapart.data.batches import BatchStream


@dataclass
class Photos:
    """Photos of three captions each; a batch is the photos with the captions that were chosen."""

    count: int

    @property
    def captions(self):
        return [["a", "b", "c"]] * self.count

    def __len__(self):
        return self.count

    def batch(self, photos, chosen, chance):
        return [(int(photo), tuple(ks)) for photo, ks in zip(photos, chosen, strict=True)]


def epochs(photos, batch_size, rank, size, *, consumed=0, count=2):
    stream = BatchStream(Photos(photos), batch_size, 2, seed=5, consumed=consumed, share=(rank, size))
    batches = iter(stream)
    return [next(batches) for _ in range(count * stream.batches_per_epoch)]


@given(photos=st.integers(1, 40), batch_size=st.integers(1, 12), size=st.integers(1, 5))
def test_shares_joined_are_the_batches_of_one(photos, batch_size, size):
    shares = [epochs(photos, batch_size, rank, size) for rank in range(size)]
    joined = [[photo for share in batch for photo in share] for batch in zip(*shares, strict=True)]
    assert joined == epochs(photos, batch_size, 0, 1)
    assert all(max(map(len, batch)) - min(map(len, batch)) <= 1 for batch in zip(*shares, strict=True))


def test_a_share_goes_on_where_another_number_of_processes_stopped():
    assert [epochs(29, 7, rank, 3, consumed=5, count=1) for rank in range(3)] == [
        epochs(29, 7, rank, 3)[5:] for rank in range(3)
    ]
