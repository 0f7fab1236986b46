"""`views`: word probabilities averaged over the photo, its mirror image and crops of it."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from capscore.errors import UserError
from support import small_models
from support.clips import counted, write_clip
from tellapart import models
from tellapart.captioning import views
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.captioning.visual_input import AttributeInput, EncoderInput, GridBoxes, StoredInput, VisualInput
from tellapart.data.examples import read
from tellapart.data.media import photos
from tellapart.data.media.clips import open_clip
from tellapart.data.media.photos import Fit
from tellapart.data.readers import folder
from tellapart.data.streams import region_inputs
from tellapart.data.views import view_of
from tellapart.decoding.search import Search
from tellapart.encoders.encoder import Encoder
from tellapart.encoders.frames import FrameEncoder
from tellapart.encoders.sound import LogMel
from tellapart.errors import BadPhoto
from tellapart.features.attributes import AttributeSource
from tellapart.features.extracted import extract, store_folder
from tellapart.features.imported import find, folder_of
from tellapart.features.importing import bring_in
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")
MOST_WORDS = 20  # of a caption


@pytest.fixture(scope="module")
def captioner(small_model):
    """With words that depend on the photo: the random weights of the others hardly look at it."""
    made = load(small_model, device="cpu")
    for name, weight in made.model.captioner.named_parameters():
        if weight.ndim > 1 and "embed" not in name:
            weight *= 2.5
    return made


@pytest.fixture
def noise(tmp_path):
    """Photos of the encoder's own size, so that nothing is resized, and their mirror images."""
    draw = np.random.default_rng(7)
    for number in range(5):
        photo = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((64, 64), 0)
        photo.save(tmp_path / f"{number}.png")
        ImageOps.mirror(photo).save(tmp_path / f"{number}-mirrored.png")
    return tmp_path


def shown(file, count):
    """The squares of a photo, made with Pillow alone.  (count, 64, 64, 3)"""
    photo, sha256 = Image.open(file).convert("RGB"), hashlib.sha256(file.read_bytes()).hexdigest()
    squeezed = photo.resize((64, 64), Image.Resampling.BICUBIC)
    pictures = [squeezed, ImageOps.mirror(squeezed)]
    for number in range(1, count - 1):
        view = view_of(sha256, number)
        width, height = photo.size
        box = (view.left * width, view.top * height, view.right * width, view.bottom * height)
        crop = photo.resize((64, 64), Image.Resampling.BICUBIC, box=box)
        pictures.append(ImageOps.mirror(crop) if view.mirrored else crop)
    return np.stack([np.asarray(picture) for picture in pictures[:count]])


def next_words(captioner, file, count, words):
    """p of the words after these: of each view by itself, over the whole caption so far, and then their mean.  (V,)"""
    network, tokens = captioner.model.captioner, torch.tensor([[captioner.model.tokenizer.bos, *words]])
    regions = [captioner.encoder(square[None]).grid for square in shown(file, count)]
    each = [network.forward(tokens, network.encode(region_inputs(grid)))[0, -1] for grid in regions]
    return np.mean([torch.softmax(one.double(), 0).detach().numpy() for one in each], axis=0)


def greedily(captioner, file, count):
    tokenizer, words, logp = captioner.model.tokenizer, [], 0.0
    allowed = [word for word in range(len(tokenizer)) if word not in tokenizer.banned_ids]
    while len(words) < MOST_WORDS and tokenizer.eos not in words:
        p = next_words(captioner, file, count, words)
        words.append(max(allowed, key=lambda word, p=p: p[word]))
        logp += math.log(p[words[-1]])
    return tokenizer.decode(words), logp


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_word_is_the_one_that_the_views_find_likeliest_together(captioner, photo_folder, count):
    for file in sorted(photo_folder.iterdir())[:3]:
        text, logp = greedily(captioner, file, count)
        found = captioner.caption(file, search=Search(beam=1, views=count))
        assert (found.text, found.logprob) == (text, pytest.approx(logp, abs=1e-3))


def test_views_make_a_difference(captioner, photo_folder):
    file = photo_folder / "0.png"
    found = {round(captioner.caption(file, search=Search(views=count)).logprob, 3) for count in (1, 2, 3, 16)}
    assert len(found) == 4


@pytest.mark.parametrize("search", [Search(beam=4, n_best=4, views=3), Search(n_best=4, groups=2, views=3)])
def test_log_p_of_every_caption_of_a_list_is_that_of_the_mean(captioner, photo_folder, search):
    file, tokenizer = photo_folder / "1.png", captioner.model.tokenizer
    listed = captioner.caption(file, search=search).candidates
    assert len({one.text for one in listed}) > 1
    for one in listed:
        words = [*tokenizer.encode(one.text), tokenizer.eos][: one.tokens]
        before = [next_words(captioner, file, 3, words[:place])[word] for place, word in enumerate(words)]
        assert one.logp == pytest.approx(np.log(before).sum(), abs=1e-3)


def test_samples_are_weighed_by_the_mean_too(captioner, photo_folder):
    file, tokenizer = photo_folder / "2.png", captioner.model.tokenizer
    (proposed,) = captioner.propose([file], Search(beam=1, views=2), samples=3)
    for one in proposed.candidates:
        words = [*tokenizer.encode(one.text), tokenizer.eos][: one.tokens]
        before = [next_words(captioner, file, 2, words[:place])[word] for place, word in enumerate(words)]
        assert one.logp == pytest.approx(np.log(before).sum(), abs=1e-3)


@pytest.mark.parametrize("search", [Search(beam=1), Search(), Search(beam=4, n_best=4)])
def test_a_photo_and_its_mirror_image_are_one_pair_of_views(captioner, noise, search):
    def said(name, count):
        found = captioner.caption(noise / name, search=Search(search.beam, search.n_best, views=count))
        return [(one.text, one.logp) for one in found.candidates] or [(found.text, found.logprob)]

    differ = 0
    for number in range(5):
        one, other = (said(f"{number}{end}.png", 2) for end in ("", "-mirrored"))
        assert [text for text, _ in one] == [text for text, _ in other]
        assert [logp for _, logp in one] == pytest.approx([logp for _, logp in other], abs=1e-4)
        alone, mirrored = (said(f"{number}{end}.png", 1) for end in ("", "-mirrored"))
        differ += abs(alone[0][1] - mirrored[0][1]) > 0.01
    assert differ == 5  # or the test would say nothing


def test_photos_that_are_captioned_together_are_those_that_are_captioned_alone(captioner, tmp_path):
    """More than a batch, and more than are read ahead with so many views."""
    files = sorted(small_models.photos(tmp_path / "many", 19).iterdir())
    (tmp_path / "many" / "no.png").write_bytes(b"no photo")
    search = Search(beam=2, views=16)
    together = list(captioner.caption([*files[:3], tmp_path / "many" / "no.png", *files[3:]], search=search))
    assert [row.error != "" for row in together] == [False] * 3 + [True] + [False] * 16
    for file, row in zip(files, [row for row in together if not row.error], strict=True):
        alone = captioner.caption(file, search=search)
        assert (row.file, row.text, row.sha256) == (str(file), alone.text, alone.sha256)
        assert row.logprob == pytest.approx(alone.logprob, abs=1e-4)


def test_an_opened_picture_has_the_views_of_its_file(captioner, photo_folder):
    file, search = photo_folder / "3.png", Search(views=4)
    with Image.open(file) as picture:
        assert captioner.caption(picture, search=search).logprob == pytest.approx(
            captioner.caption(file, search=search).logprob, abs=1e-5
        )


def test_members_of_an_ensemble_see_all_views(small_model, captioner, photo_folder, tmp_path):
    other = small_models.captioner(tmp_path)
    models.save_weights(tmp_path / "model.safetensors", captioner.model.captioner)
    both, file = load(f"{small_model}+{other}", device="cpu"), photo_folder / "4.png"
    found = both.caption(file, search=Search(beam=1, views=3))
    tokenizer = both.model.tokenizer
    words = [*tokenizer.encode(found.text), tokenizer.eos][:MOST_WORDS]
    plain = load(small_model, device="cpu")
    before = [
        (next_words(plain, file, 3, words[:place])[word] + next_words(captioner, file, 3, words[:place])[word]) / 2
        for place, word in enumerate(words)
    ]
    assert found.logprob == pytest.approx(np.log(before).sum(), abs=1e-3)


# --- cost, and what is stored -----------------------------------------------------------------------------------------


@pytest.fixture
def looked_at(monkeypatch):
    """How many photos went through an encoder."""
    counts, look = [], Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, pixels: counts.append(len(pixels)) or look(self, pixels))
    return counts


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_encoder_sees_each_view_once(captioner, photo_folder, looked_at, count):
    list(captioner.caption(sorted(photo_folder.iterdir()), search=Search(views=count)))
    assert looked_at == [6] * count


def test_stored_features_are_those_of_the_whole_photo(captioner, small_model, photo_folder, tmp_path, looked_at):
    known, root = folder.read(photo_folder), tmp_path / "features"
    extract(known.examples[:4], captioner.encoder, store_folder(root, known.name, captioner.encoder))
    files, search = sorted(map(str, photo_folder.iterdir())), Search(beam=1, views=3)
    stored = load(small_model, device="cpu", features=root, paths=[str(photo_folder)])
    fresh = [row.logprob for row in load(small_model, device="cpu").caption(files, search=search)]
    looked_at.clear()
    assert [row.logprob for row in stored.caption(files, search=search)] == pytest.approx(fresh, abs=0.02)
    assert looked_at == [2, 6, 6]
    (photo_folder / "0.png").unlink()  # its features are there still, its views are not
    assert stored.caption(files[0]).text
    with pytest.raises(BadPhoto, match="there is no such file"):
        stored.caption(files[0], search=search)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_words_of_the_whole_photo_and_cells_of_the_grid_are_the_same_in_all_views(captioner, photo_folder):
    """As in training (`training.data.views`)."""
    asked = []

    def probabilities(contents):
        asked.append(len(contents))
        return torch.tensor([[0.9, 0.2]] * len(contents))

    source = AttributeSource("two", ("cat", "dog"), lambda _: (np.zeros(1), "0"), probabilities, {}, 2, 0.0)
    regions = EncoderInput(captioner.encoder, CPU, {})
    visual = VisualInput(
        {
            "regions": regions,
            "attributes": AttributeInput(source, torch.tensor([7, 5]), CPU),
            "boxes": GridBoxes({"grid": 2}, CPU),
        }
    )
    files = [photo_folder / "0.png", photo_folder / "1.png"]
    seen = list(views.inputs(visual, [views.load(visual, file, 3) for file in files]))
    assert asked == [2]
    expected = torch.stack([captioner.encoder(shown(file, 3)).grid for file in files], 1)  # (views, B, R, D)
    for number, inputs in enumerate(seen):
        assert list(inputs) == ["regions", "attributes", "boxes"]
        torch.testing.assert_close(inputs["regions"].values, expected[number], atol=1e-4, rtol=1e-4)
        assert inputs["attributes"].values.tolist() == [[[7, pytest.approx(0.9)], [5, pytest.approx(0.2)]]] * 2
        assert inputs["boxes"].values.equal(seen[0]["boxes"].values)
    assert len(seen) == 3


def test_all_frames_of_a_clip_are_seen_in_the_same_view(captioner, photo_folder, tmp_path):
    clip = write_clip(tmp_path / "c.mkv", [counted(number) for number in range(9)], codec="ffv1")
    visual = VisualInput({"regions": EncoderInput(FrameEncoder(captioner.encoder, 3), CPU, {})})
    loaded = views.load(visual, clip, 3)
    with open_clip(clip) as opened:
        frames = [Image.fromarray(frame) for frame in opened.frames([1, 4, 7])]
    assert loaded.contents[0].shape == (3, 64, 64, 3)
    for fit, pixels in ((Fit(), loaded.contents[0]), (Fit(view=1), loaded.others[1][0])):
        expected = [photos.fitted(frame, loaded.sha256, 64, fit).pixels for frame in frames]
        assert np.array_equal(pixels, expected)
    assert np.array_equal(loaded.others[0][0], loaded.contents[0][:, :, ::-1])
    photo = views.load(visual, photo_folder / "0.png", 2)  # a clip of one frame
    assert np.array_equal([photo.contents[0], photo.others[0][0]], shown(photo_folder / "0.png", 2))
    assert [inputs["regions"].mask.sum(1).tolist() for inputs in views.inputs(visual, [loaded])] == [[12]] * 3


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1, 17])
def test_too_many_views_or_none_are_refused(count):
    with pytest.raises(ValueError, match=f"views must be from 1 to 16, not {count}"):
        Search(views=count)


def refused(streams, captioner, file, sentence):
    blind = PhotoCaptioner(captioner.model, VisualInput(streams), CPU)
    with pytest.raises(UserError, match=sentence):  # at once, before an iterator is asked
        blind.caption([file], search=Search(views=2))
    with pytest.raises(UserError, match=sentence):
        list(blind.propose([file], Search(views=2)))


def test_imported_features_have_no_views(captioner, photo_folder, tmp_path):
    (tmp_path / "found").mkdir()
    np.savez(tmp_path / "found" / "0.npz", features=np.ones((2, 3), np.float32))
    file, data = photo_folder / "0.png", tmp_path / "data.json"
    data.write_text(json.dumps({"dataset": "one", "images": [{"id": 0, "file": str(file), "captions": ["a dog"]}]}))
    bring_in(read(data).examples, [tmp_path / "found"], folder_of(tmp_path / "f", "one", "found"), "found")
    stream = StoredInput(find(tmp_path / "f", "found"), tmp_path / "f", [str(data)], CPU, "regions")
    sentence = r"^--views: features of found were imported; there is no encoder to see views with\.$"
    refused({"regions": stream}, captioner, str(file), sentence)


def test_what_reads_clips_in_its_own_way_has_no_views(captioner, photo_folder):
    sentence = r"^--views: log_mel: has its own way to read photos and clips, and cannot be shown views of them\.$"
    streams = {"sound": EncoderInput(LogMel(EncoderConfig(name="log_mel")), CPU, {})}
    refused({**captioner.visual_input.streams, **streams}, captioner, photo_folder / "0.png", sentence)
