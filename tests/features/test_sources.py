"""Sources of streams: what a captioner is given of an item is the same whether it is read now or was stored before."""

import numpy as np
import pytest
import torch
from PIL import Image

from capscore.errors import UserError
from detectors import tiny_yolox
from support import region_archives as archives
from support.clips import write_clip
from tellapart.data.examples import Example
from tellapart.data.tokenizers import WordTokenizer
from tellapart.detectors import yolox
from tellapart.encoders.encoder import Encoder, FrameEncoder
from tellapart.errors import BadPhoto
from tellapart.features.importing import bring_in
from tellapart.features.sources import Attributes, Detected, Encoded, Imported, Sources, import_folder
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")
WORDS = ("red", "blue")


def colours(loaded):
    """How red and how blue photos are."""
    return torch.stack([torch.from_numpy(item.pixels).float().mean((0, 1))[[0, 2]] / 255 for item in loaded])


def attributes(encoder):
    return Attributes("colours", WORDS, Encoded(encoder).load, colours, {"weights_sha256": "0"}, 2, 0.3)


def detected(encoder, folder):
    answers = tiny_yolox.nothing()
    answers[-1, 4:6] = 1
    config = EncoderConfig(image_size=64, grid=1, detected=2)
    return Detected(Encoder(config), yolox.load(tiny_yolox.write(folder / "tiny.onnx", answers)))


SOURCES = {
    "encoded": lambda encoder, folder: Encoded(encoder),
    "detected": detected,
    "attributes": lambda encoder, folder: attributes(encoder),
    "boxes of cells": lambda encoder, folder: Encoded(encoder).beside("boxes"),
    "detected boxes": lambda encoder, folder: detected(encoder, folder).beside("boxes"),
}


@pytest.fixture
def examples(tmp_path):
    (tmp_path / "photos").mkdir()
    for number, colour in enumerate([(250, 0, 0), (0, 0, 250), (200, 0, 200), (0, 0, 0)]):
        Image.new("RGB", (80, 60), colour).save(tmp_path / "photos" / f"{number}.png")
    return [Example(number, tmp_path / "photos" / f"{number}.png") for number in range(4)]


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_stored_is_what_is_encoded_now(kind, examples, encoder, tmp_path, own_cache):
    source = SOURCES[kind](encoder, tmp_path)
    store = source.extract(examples, tmp_path / "f", "photos").store
    assert store.identity == source.identity
    now = source.encode([source.load(example.file) for example in examples], CPU)
    assert now.values.shape[2] == source.feature_size == store.shape[1]
    for number, example in enumerate(examples):
        rows = now.values[number][now.mask[number]]
        assert store.count(example) == len(rows)
        torch.testing.assert_close(store.grid([store.row(example)], len(rows))[0], rows, atol=5e-3, rtol=5e-3)
    again = source.open(tmp_path / "f", "photos")
    assert all(example in again for example in examples)
    assert source.open(tmp_path / "f", "others") is None


@pytest.mark.parametrize("kind", ["encoded", "detected"])
def test_stored_features_spare_an_item_the_encoder_until_it_changes(kind, examples, encoder, tmp_path, own_cache):
    source = SOURCES[kind](encoder, tmp_path)
    source.extract(examples[:2], tmp_path / "f", "photos")
    kept = source.kept(tmp_path / "f", [("photos", [(str(example.file), str(example.id)) for example in examples])])
    assert [kept.load(example.file).pixels is None for example in examples] == [True, True, False, False]
    assert kept.identity == source.identity
    assert kept.key == f"{source.key} stored in half precision"
    mixed = kept.encode([kept.load(example.file) for example in examples], CPU)
    now = source.encode([source.load(example.file) for example in examples], CPU)
    assert mixed.mask.equal(now.mask)
    torch.testing.assert_close(mixed.values, now.values, atol=5e-3, rtol=5e-3)
    assert kept.beside("boxes").reader is kept
    Image.new("RGB", (80, 60), (1, 2, 3)).save(examples[0].file)
    assert kept.load(examples[0].file).pixels is not None


def test_photos_and_clips_are_encoded_together_and_a_photo_has_the_rows_of_one_frame(examples, encoder, tmp_path):
    clip = write_clip(tmp_path / "c.mkv", 9, codec="ffv1")
    source = Encoded(FrameEncoder(encoder, 3))
    stream = source.encode([source.load(clip), source.load(examples[0].file), source.load(clip)], CPU)
    assert stream.mask.sum(1).tolist() == [12, 4, 12]
    expected = Encoded(encoder).encode([Encoded(encoder).load(examples[0].file)], CPU)
    torch.testing.assert_close(stream.values[1, :4], expected.values[0])
    many = Encoded(FrameEncoder(encoder, 3), photos_once=False)
    assert many.encode([many.load(examples[0].file)], CPU).mask.sum(1).tolist() == [12]
    assert many.of_photos() is many
    assert source.of_photos().identity == encoder.identity


def test_words_are_those_of_a_captioners_vocabulary(examples, encoder):
    source = attributes(encoder).in_vocabulary(WordTokenizer(["a", "blue"]))
    loaded = [source.load(example.file) for example in examples]
    assert source.encode(loaded, CPU).values[:, 0, 0].tolist() == [-1, 5, -1, -1]
    assert [[word for word, _ in words] for words in source.named(loaded)] == [[], ["blue"], ["blue"], []]
    assert [[word for word, _ in words] for words in attributes(encoder).named(loaded)][2] in (
        ["red", "blue"],
        ["blue", "red"],
    )
    with pytest.raises(UserError, match="this captioner uses no attributes"):
        Encoded(encoder).named(loaded)


def test_sources_load_an_item_once_for_regions_and_their_boxes(examples, encoder):
    regions, count = Encoded(encoder), []
    load = regions.load
    regions.load = lambda item: count.append(item) or load(item)
    sources = Sources({"regions": regions, "boxes": regions.beside("boxes"), "attributes": attributes(encoder)})
    loaded = [sources.load(example.file) for example in examples[:2]]
    assert len(count) == 2
    inputs = sources.inputs(loaded)
    assert {name: tuple(stream.values.shape) for name, stream in inputs.items()} == {
        "regions": (2, 4, 1280),
        "boxes": (2, 4, 4),
        "attributes": (2, 2, 2),
    }
    assert sources.feature_sizes == {"regions": 1280, "boxes": 4, "attributes": 2}
    assert sources.region_boxes(loaded[0]).equal(inputs["boxes"].values[0])
    assert (Sources().takes, sources.takes) == ((), ("photos", "clips"))


def test_imported_features_need_their_folder_and_have_no_views(tmp_path):
    examples = [Example(11, tmp_path / "11.jpg")]
    archive = archives.as_tsv(tmp_path / "a", {"11": archives.photo(11, 3)})
    bring_in(examples, archive, import_folder(tmp_path / "f", "pets", "bu"), "bu")
    source = Imported("bu", 8)
    with pytest.raises(UserError, match=r"trained on imported features \(bu\).*--features DIR"):
        source.kept(None, [])
    with pytest.raises(UserError, match="features are stored per data set"):
        source.kept(tmp_path / "f", [])
    with pytest.raises(UserError, match=r"data\.views: features of bu were imported"):
        source.view(1)
    kept = source.kept(tmp_path / "f", [("pets", [("11.jpg", "11"), ("12.jpg", "12")])])
    np.testing.assert_array_equal(kept.load("11.jpg").rows, archives.photo(11, 3)["features"])
    for file, reason in (("12.jpg", "has no features in"), ("13.jpg", "belongs to no data set with imported features")):
        with pytest.raises(BadPhoto, match=reason):
            kept.load(file)


def test_a_tagger_of_imported_features_reads_them_in_place_of_photos():
    source = Attributes("t", WORDS, Imported("bu", 8).load, lambda loaded: None, {}, 2, 0.0, regions=Imported("bu", 8))
    with pytest.raises(UserError, match=r"the tagger t learned from imported features \(bu\) and cannot read photos"):
        source.kept(None, [])
