"""Contrastive losses against loops in plain Python, and against cases that can be done in one's head."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tellapart.data.pairs import PairBatch
from tellapart.objectives.contrastive import contrastive_step, info_nce, max_violation, photo_of_caption

SCALE = torch.tensor(5.0, dtype=torch.double)


def unit(rows, size, seed):
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, size, generator=draw, dtype=torch.double), dim=1)


def cosine(a, b):
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def slow_info_nce(captions, images, scale, per_photo):
    finds_photo, finds_caption = [], []
    for n, caption in enumerate(captions):
        own = n // per_photo
        right = math.exp(scale * cosine(caption, images[own]))
        all_photos = sum(math.exp(scale * cosine(caption, image)) for image in images)
        all_captions = sum(math.exp(scale * cosine(other, images[own])) for other in captions)
        finds_photo.append(-math.log(right / all_photos))
        finds_caption.append(-math.log(right / all_captions))
    return (sum(finds_photo) / len(captions) + sum(finds_caption) / len(captions)) / 2


def slow_max_violation(captions, images, margin, per_photo):
    total = 0.0
    for n, caption in enumerate(captions):
        own = n // per_photo
        match = cosine(caption, images[own])
        photo = max(cosine(caption, image) for b, image in enumerate(images) if b != own)
        other = max(cosine(c, images[own]) for m, c in enumerate(captions) if m // per_photo != own)
        total += max(0, margin + photo - match) + max(0, margin + other - match)
    return total / len(captions)


@pytest.mark.parametrize("per_photo", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_info_nce_is_what_a_loop_over_pairs_gives(per_photo, seed):
    captions, images = unit(4 * per_photo, 6, seed), unit(4, 6, seed + 100)
    expected = slow_info_nce(captions, images, SCALE.item(), per_photo)
    assert info_nce(captions, images, SCALE).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("per_photo", [1, 3])
@pytest.mark.parametrize("margin", [0.05, 0.2, 1.0])
def test_max_violation_is_what_a_loop_over_pairs_gives(per_photo, margin):
    captions, images = unit(5 * per_photo, 4, seed=1), unit(5, 4, seed=2)
    expected = slow_max_violation(captions, images, margin, per_photo)
    assert expected > 0
    assert max_violation(captions, images, SCALE, margin=margin).item() == pytest.approx(expected, rel=1e-12)


CAT, DOG = torch.eye(2, dtype=torch.double)
EITHER = (CAT + DOG) / math.sqrt(2)
THREE, FOUR = torch.eye(3, dtype=torch.double), torch.eye(4, dtype=torch.double)
SAME = torch.full((4, 4), 0.5, dtype=torch.double)  # one and the same caption for all photos
FAR = torch.tensor([[0.6, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.double)
ONE = unit(1, 5, seed=4)


@pytest.mark.parametrize(
    ("loss", "captions", "images", "expected"),
    [
        # captions that meet their photos pay nothing; the others are at a cosine of 0
        (partial(max_violation, margin=0.2), THREE.repeat_interleave(2, 0), THREE, 0.0),
        (partial(max_violation, margin=1.0), THREE.repeat_interleave(2, 0), THREE, 0.0),
        (lambda captions, images, scale: info_nce(captions, images, torch.tensor(1000.0)), THREE, THREE, 0.0),
        # "either" ties between the photos (0.2) and, for the dog, is far ahead of "cat" (0); "cat" is 1 for its photo
        # and "either" 0.71, less than the margin behind it (0)
        (partial(max_violation, margin=0.2), torch.stack([CAT, EITHER]), torch.stack([CAT, DOG]), 0.2 / 2),
        (info_nce, SAME, FOUR, math.log(4)),  # it can only be guessed
        (partial(max_violation, margin=0.3), SAME, FOUR, 0.6),
        # a photo's captions are no negatives of each other: 0.6 is 0.4 behind its sibling, and owes nothing
        (partial(max_violation, margin=0.2), FAR, torch.eye(2, dtype=torch.double), 0.0),
        # of a single photo info_nce knows only that its captions share it
        (info_nce, unit(1, 5, seed=3), ONE, 0.0),
        (info_nce, ONE.repeat(3, 1), ONE, math.log(3) / 2),
    ],
)
def test_losses_that_can_be_done_in_ones_head(loss, captions, images, expected):
    assert loss(captions, images, SCALE).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss", [info_nce, max_violation, partial(max_violation, margin=2.0)])
@pytest.mark.parametrize(("photos", "per_photo"), [(1, 1), (1, 3), (2, 1), (4, 3)])
def test_losses_and_gradients_are_finite_even_where_nothing_competes(loss, photos, per_photo):
    captions = unit(photos * per_photo, 5, seed=3).requires_grad_()
    images = unit(photos, 5, seed=4).requires_grad_()
    scale = SCALE.clone().requires_grad_()
    value = loss(captions, images, scale)
    value.backward()
    assert value.isfinite()
    assert captions.grad.isfinite().all()
    assert images.grad.isfinite().all()
    if photos == 1 and loss is not info_nce:
        assert value == 0


def test_captions_belong_to_photos_in_groups():
    assert photo_of_caption(torch.zeros(6, 1), torch.zeros(2, 1)).tolist() == [0, 0, 0, 1, 1, 1]


def test_a_step_reports_the_loss_and_how_many_captions_found_their_photo():
    images = torch.eye(3)
    captions = images[[0, 0, 1, 2, 2, 1]]  # the fourth and the last are mistaken

    class Fixed:
        log_scale = torch.tensor(2.0)

        def __call__(self, pooled, texts):
            return texts, pooled

    batch = PairBatch(torch.arange(3).numpy(), images, captions)
    loss, _, line, _ = contrastive_step(Fixed(), batch, info_nce)
    assert loss.item() == pytest.approx(slow_info_nce(captions, images, math.exp(2), 2), rel=1e-5)
    assert line["loss"] == loss.item()
    assert line["accuracy"] == pytest.approx(4 / 6)
    assert line["scale"] == pytest.approx(math.exp(2))


@pytest.mark.parametrize("per_photo", [1, 3])
def test_at_first_every_other_photo_and_caption_may_count(per_photo):
    captions, images = unit(4 * per_photo, 6, 0), unit(4, 6, 1)
    own = [i // per_photo for i in range(len(captions))]
    margin, total = 0.3, 0.0
    for photo, image in enumerate(images):
        mean = sum(cosine(captions[c], image) for c in range(len(captions)) if own[c] == photo) / per_photo
        for c, caption in enumerate(captions):
            if own[c] != photo:
                total += max(0.0, margin + cosine(caption, image) - cosine(caption, images[own[c]]))
                total += max(0.0, margin + cosine(caption, image) - mean)
    loss = max_violation(captions, images, torch.tensor(1.0), margin=margin, hardest=False)
    assert loss.item() == pytest.approx(total / (len(captions) * len(images)), abs=1e-6)
