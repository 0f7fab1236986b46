"""What goes out to the workers of a cluster, without a cluster."""

import pytest

from tellapart.captioning import captioner as captioning
from tellapart.captioning import ray_workers
from tellapart.data.examples import Example
from tellapart.decoding.rules import Search
from tellapart.encoders.encoder import Encoder
from tellapart.features import extracted
from tellapart.recipe import EncoderConfig


class Here:
    """In place of a cluster: makes every batch in this process, and notes how large they are."""

    def __init__(self):
        self.sizes = []

    def map_batches(self, batches, make, *, gpus=False):
        work = make()
        for number, batch in enumerate(batches):
            self.sizes.append(len(batch))
            yield number, work(batch)


@pytest.mark.parametrize("together", [4, 5])
def test_workers_caption_as_many_photos_together_as_one_process_does(small_model, photo_folder, monkeypatch, together):
    """Sums that are made in another order end in other last digits."""
    monkeypatch.setattr(captioning, "BATCH", together)
    cluster = Here()
    files = sorted(map(str, photo_folder.iterdir()))
    captioner = ray_workers.ClusterCaptioner(str(small_model), cluster, device="cpu")
    proposed = list(captioner.propose(files, Search(1)))
    assert [one.file for one in proposed] == files
    assert cluster.sizes == [together, 6 - together]


@pytest.mark.parametrize("together", [4, 5])
def test_workers_look_at_as_many_photos_together_as_one_process_does(photo_folder, monkeypatch, together):
    monkeypatch.setattr(extracted, "BATCH", together)
    cluster = Here()
    examples = [Example(number, file) for number, file in enumerate(sorted(photo_folder.iterdir()))]
    looking = ray_workers.extraction_on(cluster, Encoder(EncoderConfig(image_size=64, grid=2)), "cpu")
    assert len(list(looking(examples))) == 2
    assert cluster.sizes == [together, 6 - together]
