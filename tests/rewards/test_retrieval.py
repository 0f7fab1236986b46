"""Rewards by a frozen retriever that knows the photos beforehand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from capscore.errors import UserError
from rewards.captions import sampled
from rewards.retriever_by_hand import EOS, FIRST, Directions, cosine, degrees, frozen, sampled_captions
from support.retrievers import bag_of_words_retriever
from tellapart.data.tokenizers import WordTokenizer
from tellapart.metrics import retrieval
from tellapart.metrics.retrieval import gaps
from tellapart.models import retrievers
from tellapart.rewards import Reward, SampledCaptions
from tellapart.rewards.retrieval import (
    Accuracy,
    BoundedRank,
    FrozenRetriever,
    GlobalDiscriminative,
    GroupGap,
    HardNeighbour,
    HardPositives,
    InBatch,
    InTurn,
    LogProbability,
    OwnSimilarity,
    at_progress,
    bounded_rank,
    closeness_weights,
    embedding,
    in_batch,
)

AXES = degrees(0, 90, 180)


class Counting(Directions):
    calls = 0

    def __call__(self, tokens):
        self.calls += 1
        return super().__call__(tokens)


def test_a_batch_is_embedded_once_and_forgotten_when_another_comes():
    embed = Counting(AXES)
    retriever = FrozenRetriever("counting", degrees(0, 45), torch.zeros(2), 1.0, embed)
    first, second = sampled_captions([[0], [1]], [0, 1]), sampled_captions([[1], [2]], [0, 1])
    embedded = retriever.embed_sampled(first)
    retriever.similarities(first)
    assert retriever.embed_sampled(first) is embedded
    retriever.to_batch(first), retriever.to_own(first)
    assert embed.calls == 1
    torch.testing.assert_close(retriever.embed_sampled(second), AXES[[1, 2]])
    torch.testing.assert_close(retriever.similarities(second), AXES[[1, 2]] @ degrees(0, 45).T)
    assert embed.calls == 2
    twin = replace(first)  # equal, but another: nothing is compared
    torch.testing.assert_close(retriever.embed_sampled(twin), embedded)
    assert embed.calls == 3


def random_world(seed, photos=23, captions=17, size=6):
    torch.manual_seed(seed)
    images = F.normalize(torch.randn(photos, size), dim=1)
    words = torch.randn(9, size)
    lines = [torch.randint(9, (int(torch.randint(1, 5, ())),)).tolist() for _ in range(captions)]
    return images, words, lines, torch.randint(photos, (captions,)).tolist()


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_photo_is_looked_for_in_its_own_data_set_and_where_nothing_is_known_not_at_all(interleaved):
    images, words, lines, photos = random_world(0)
    images[4] = 0
    pool = [i % 3 if interleaved else i // 9 for i in range(23)]
    retriever, batch = frozen(images, words, pool=pool), sampled_captions(lines, photos)
    result = retriever.similarities(batch)
    assert result.shape == (17, 23)
    for caption in range(17):
        for photo in range(23):
            if pool[photo] != pool[photos[caption]] or photo == 4:
                assert result[caption, photo] == -torch.inf
            else:
                expected = cosine(retriever.embed_sampled(batch)[caption], images[photo])
                assert result[caption, photo].item() == pytest.approx(expected, abs=1e-6)


def test_similarities_to_chosen_photos_to_the_own_one_and_to_those_of_the_batch():
    images, words, lines, photos = random_world(1)
    retriever, batch = frozen(images, words, pool=[i % 2 for i in range(23)]), sampled_captions(lines, photos)
    embedded, chosen = retriever.embed_sampled(batch), torch.randint(23, (17, 4))
    some, own, (among, which) = retriever.to_photos(batch, chosen), retriever.to_own(batch), retriever.to_batch(batch)
    different = sorted(set(photos))
    assert among.shape == (17, len(different))
    assert [different[i] for i in which.tolist()] == photos
    for caption in range(17):
        assert own[caption].item() == pytest.approx(cosine(embedded[caption], images[photos[caption]]), abs=1e-6)
        for place, photo in enumerate(chosen[caption].tolist()):
            assert some[caption, place].item() == pytest.approx(cosine(embedded[caption], images[photo]), abs=1e-6)
        for place, photo in enumerate(different):
            assert among[caption, place].item() == pytest.approx(cosine(embedded[caption], images[photo]), abs=1e-6)


def test_photos_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match=r"directions: the vector of photo number 2 .* not a finite number"):
        frozen(torch.tensor([[1.0, 0.0], [torch.nan, 0.0]]), AXES)


# Real retrievers


@pytest.fixture(scope="module")
def trained(small_retriever):
    return retrievers.load(small_retriever)


CAPTIONER_WORDS = WordTokenizer(["dog", "zebra", "a", "red", "bus", "on", "the", "street"])  # not the retriever's words


def captions_of(*captions):
    ids, photos = [*map(CAPTIONER_WORDS.encode, captions)], list(range(len(captions)))
    return sampled(ids, photos, end=EOS, filler=CAPTIONER_WORDS.pad)


def test_a_real_retriever_embeds_tokens_as_it_reads_text(trained):
    torch.manual_seed(0)
    features = torch.rand(3, trained.encoder.feature_size)
    retriever = FrozenRetriever.of_photos(trained, CAPTIONER_WORDS, features, torch.zeros(3, dtype=torch.long))
    captions = ["a red bus on the street", "dog", ""]
    expected = trained.embed_captions(captions) @ trained.embed_images(features).T
    torch.testing.assert_close(retriever.similarities(captions_of(*captions)), expected)
    assert (retriever.name, retriever.scale, len(retriever)) == (trained.name, trained.scale, 3)
    assert retriever.embed_sampled(captions_of(*captions))[2].tolist() == [0.0] * trained.size
    with pytest.raises(UserError, match="none of the captioner's words"):
        embedding(trained, WordTokenizer(["hund", "katze"]))


def test_what_a_real_retriever_answers_can_be_multiplied_with_what_has_a_gradient(trained):
    features, pool = torch.rand(2, trained.encoder.feature_size), torch.zeros(2, dtype=torch.long)
    seen = FrozenRetriever.of_photos(trained, CAPTIONER_WORDS, features, pool)
    read = FrozenRetriever.of_references(trained, CAPTIONER_WORDS, [["a dog"], ["a bus"]], pool)
    for retriever in (seen, read):
        weight, batch = torch.ones(2, requires_grad=True), captions_of("dog", "a bus")
        answers = [retriever.embed_sampled(batch), retriever.similarities(batch), retriever.to_batch(batch)[0]]
        for answer in (*answers, retriever.images):
            (gradient,) = torch.autograd.grad((answer * weight[:, None]).sum(), weight)
            torch.testing.assert_close(gradient, answer.sum(1))


def test_a_photo_known_by_its_references_is_as_like_a_caption_as_they_are_on_average():
    """And a reference is compared with the others of its photo."""
    bags, one_set = bag_of_words_retriever(["dog", "bus", "red", "street"], scale=7.0), torch.zeros(3, dtype=torch.long)
    half = 0.5**0.5  # the cosine of "red dog" and "dog"
    references = [["dog", "red dog", "street"], ["bus"], []]
    retriever = FrozenRetriever.of_references(bags, CAPTIONER_WORDS, references, one_set + 4)
    expected = torch.tensor([[(half + 1 + 0) / 3, 0, -torch.inf], [0, 1, -torch.inf], [0, 0, -torch.inf]])
    torch.testing.assert_close(retriever.similarities(captions_of("red dog", "bus", "zebra")), expected)
    assert retriever.scale == pytest.approx(7)

    references = [["dog", "red dog", "street"], ["bus street"], ["red bus", "street"]]
    retriever = FrozenRetriever.of_references(bags, CAPTIONER_WORDS, references, one_set)
    batch = replace(captions_of("red dog", "bus", "red bus"), reference=torch.tensor([1, 0, -1]))
    expected = retriever.similarities(replace(batch, reference=None)).clone()
    expected[0, 0] = (half + 0) / 2  # with "dog" and "street"
    expected[1, 1] = 0  # it is the only one, cut short: nothing else is known of the photo
    torch.testing.assert_close(retriever.similarities(batch), expected)
    torch.testing.assert_close(retriever.to_batch(batch)[0], expected)
    torch.testing.assert_close(retriever.to_own(batch), expected.diagonal())
    torch.testing.assert_close(retriever.to_photos(batch, torch.arange(3).expand(3, 3)), expected)


WORDS = degrees(0, 45, 60, 90, 120)


def cos(angle):
    return math.cos(math.radians(angle))


@pytest.mark.parametrize("seed", range(4))
def test_rewards_are_the_measures_of_these_names_and_what_loops_find(seed):
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(15, 5), dim=1)
    groups = torch.stack([torch.randperm(15)[:6] for _ in range(15)])
    for photo, count in enumerate(torch.randint(7, (15,)).tolist()):
        groups[photo, count:] = -1
    photos = torch.randint(15, (20,)).tolist()
    retriever = frozen(images, torch.randn(20, 5))
    batch = sampled_captions(torch.randint(20, (20, 3)).tolist(), photos)
    result = {kind: GroupGap(retriever, groups, kind, k=4)(batch).sentence for kind in ("average", "hardest")}
    own = OwnSimilarity(retriever)(batch).sentence
    similarity, used = (retriever.embed_sampled(batch) @ images.T).numpy(), groups[:, :4].numpy()
    measured = gaps(similarity, np.array(photos), used[photos])
    np.testing.assert_allclose(result["average"].numpy(), measured[0], atol=1e-6)
    np.testing.assert_allclose(result["hardest"].numpy(), measured[1], atol=1e-6)
    for caption, photo in enumerate(photos):
        embedded = retriever.embed_sampled(batch)[caption]
        theirs = [cosine(embedded, images[other]) for other in used[photo].tolist() if other >= 0]
        match = cosine(embedded, images[photo])
        assert own[caption].item() == pytest.approx(match, abs=1e-5)
        average = match - sum(theirs) / len(theirs) if theirs else 0.0
        assert result["average"][caption].item() == pytest.approx(average, abs=1e-5)


def test_a_curriculum_goes_from_the_farthest_look_alikes_to_the_nearest():
    ten, three, none = list(range(10)), [5, 6, 7] + [-1] * 7, [-1] * 10
    groups = torch.tensor([ten, three, none])

    def at(progress):
        return at_progress(groups, 2, progress).tolist()

    assert at(0.0) == [[8, 9], [6, 7], [-1, -1]]
    assert at(0.25) == [[6, 7], [6, 7], [-1, -1]]
    assert at(0.5) == [[4, 5], [5, 6], [-1, -1]]  # half a photo on is rounded to even
    assert at(1.0) == [[0, 1], [5, 6], [-1, -1]]
    assert at(1.7) == at(1.0)
    assert at_progress(groups, 4, 0.0).tolist() == [[6, 7, 8, 9], [5, 6, 7, -1], [-1] * 4]
    assert at_progress(groups, 99, 0.3).tolist() == groups.tolist()
    retriever = frozen(degrees(0, 60, 120, 180), WORDS)
    groups = torch.tensor([[1, 2, 3], [0, 2, 3], [1, 3, 0], [2, 1, 0]])

    def gap(progress, curriculum=True):
        batch = sampled_captions([[1]], [0], progress=progress)
        return GroupGap(retriever, groups, k=1, curriculum=curriculum)(batch).sentence.item()

    assert gap(0.0) == pytest.approx(cos(45) - cos(135), abs=1e-6)
    assert gap(0.5) == pytest.approx(cos(45) - cos(75), abs=1e-6)
    assert gap(1.0) == gap(0.0, curriculum=False) == pytest.approx(cos(45) - cos(15), abs=1e-6)


def test_the_nearest_photo_of_all_data_is_the_one_that_counts():
    """Photos at 0, 60 and 120 degrees; nearest: 0 - 60, 60 - 120, and the last has nobody."""
    reward = HardNeighbour(frozen(degrees(0, 60, 120), WORDS), torch.tensor([1, 2, -1]), margin=0.2)
    result = reward(sampled_captions([[0], [1], [1], [3], [0]], [0, 0, 1, 1, 2]))
    expected = [
        -(0.2 + cos(60) - cos(0)),  # better than by the margin: 0 once it is a hinge
        -(0.2 + cos(15) - cos(45)),
        -(0.2 + cos(75) - cos(15)),
        -(0.2 + cos(30) - cos(30)),
        0.0,
    ]
    assert result.sentence.tolist() == pytest.approx([min(0.0, value) for value in expected], abs=1e-6)
    assert result.sentence.tolist()[:3] == pytest.approx([0, -(0.2 + cos(15) - cos(45)), 0], abs=1e-6)
    assert result.words is None


def by_loops(embedded, photos, images, margin, generated):
    result = []
    for caption, own in zip(embedded, photos, strict=True):
        match = cosine(caption, images[own])
        captions = [
            cosine(other, images[own])
            for other, of, free in zip(embedded, photos, generated, strict=True)
            if of != own and free
        ]
        others = [cosine(caption, images[photo]) for photo in set(photos) if photo != own]
        hinges = [max(0.0, margin + max(rivals) - match) for rivals in (captions, others) if rivals]
        result.append(-sum(hinges))
    return result


@pytest.mark.parametrize("seed", range(5))
def test_on_random_vectors_it_is_what_loops_over_all_pairs_find(seed):
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(12, 5), dim=1)
    photos = torch.randint(12, (4,)).repeat_interleave(3).tolist()  # with this seed or that, the same photo twice
    reference = torch.where(torch.rand(12) < 0.3, 0, -1).tolist()
    retriever = frozen(images, torch.randn(20, 5))
    batch = sampled_captions(torch.randint(20, (12, 3)).tolist(), photos, reference=reference)
    expected = by_loops(retriever.embed_sampled(batch), photos, images, 0.3, [which < 0 for which in reference])
    assert InBatch(retriever, 0.3)(batch).sentence.tolist() == pytest.approx(expected, abs=1e-5)
    assert min(expected) < 0


def test_a_reference_in_the_batch_is_no_generated_caption():
    """Photos at 0 and 90 degrees, said to be at 45 and at 0: the second caption fits the first photo better."""
    reward, captions, photos = InBatch(frozen(degrees(0, 90), WORDS)), [[1], [0]], [0, 1]
    of_second = -(0.2 + cos(45) - cos(90)) - (0.2 + cos(0) - cos(90))
    plain = reward(sampled_captions(captions, photos)).sentence
    assert plain.tolist() == pytest.approx([-(0.2 + cos(0) - cos(45)) - 0.2, of_second], abs=1e-6)
    marked = reward(sampled_captions(captions, photos, reference=[-1, 0])).sentence
    assert marked.tolist() == pytest.approx([-0.2, of_second], abs=1e-6)
    similarity = torch.tensor([[0.5, 0.1], [0.6, 0.7]])
    own, only_first = torch.arange(2), torch.tensor([True, False])
    assert in_batch(similarity, own, 0.2).tolist() == pytest.approx([-0.3, -0.1])
    assert in_batch(similarity, own, 0.2, only_first).tolist() == pytest.approx([0.0, -0.1])


def test_the_two_parts_are_added_and_weigh_what_the_photo_does():
    retriever, nearest = frozen(degrees(0, 60, 120), WORDS), torch.tensor([1, 0, 1])
    batch = sampled_captions([[1], [3], [1], [4]], [0, 0, 1, 2])
    neighbour, within = HardNeighbour(retriever, nearest, 0.2)(batch).sentence, InBatch(retriever, 0.2)(batch).sentence
    assert (neighbour < 0).any()
    assert (within < 0).any()
    torch.testing.assert_close(GlobalDiscriminative(retriever, nearest)(batch).sentence, neighbour + within)
    weights = torch.tensor([0.5, 1.0, 1.5])
    result = GlobalDiscriminative(retriever, nearest, per_photo=weights)(batch).sentence
    expected = (neighbour + within) * torch.tensor([0.5, 0.5, 1.0, 1.5])
    torch.testing.assert_close(result, expected)


def test_the_closer_the_look_alike_the_more_a_photo_weighs():
    weights = closeness_weights(torch.tensor([0.1, 0.9, 0.3, 0.8, 0.95]))
    torch.testing.assert_close(weights, torch.tensor([0.5, 1.25, 0.75, 1.0, 1.5]))
    tied = closeness_weights(torch.tensor([0.9, 0.9, -torch.inf, 0.2, 0.9]))
    torch.testing.assert_close(tied, torch.tensor([1.25, 1.25, 0.5, 0.75, 1.25]))
    torch.manual_seed(0)
    many = torch.rand(501).mul(50).round()
    assert closeness_weights(many).mean().item() == pytest.approx(1)
    torch.testing.assert_close(closeness_weights(many * 7 - 3), closeness_weights(many))
    assert closeness_weights(torch.tensor([0.3])).tolist() == [1.0]
    assert closeness_weights(torch.tensor([0.4, 0.4])).tolist() == [1.0, 1.0]


def test_log_probabilities_by_hand():
    """Photos at 0 and 60 degrees, the third is not in the batch; the scale is the retriever's, or the one given."""
    retriever = frozen(degrees(0, 60, 10), degrees(0, 30, 90), scale=10.0)
    batch = sampled_captions([[0], [1], [1], []], [0, 0, 1, 1])
    result = LogProbability(retriever)(batch).sentence
    assert result.tolist() == pytest.approx([-math.log(1 + math.exp(-5)), *[-math.log(2)] * 3], abs=1e-6)
    bare = LogProbability(retriever, scale=1.0)(batch).sentence
    assert bare[0].item() == pytest.approx(-math.log(1 + math.exp(-0.5)), abs=1e-6)


def test_hard_distractors_are_the_look_alikes_of_the_own_photo_alone():
    """Photos at 0, 60 and 180 degrees.  The first has the second as a look-alike, the second both, the third none."""
    retriever = frozen(degrees(0, 60, 180), degrees(0, 90), scale=2.0)
    look_alikes = torch.tensor([[1, -1], [0, 2], [-1, -1]])
    result = LogProbability(retriever, distractors=look_alikes)(sampled_captions([[0], [0], [0]], [0, 1, 2])).sentence
    near, far, opposite = math.exp(2), math.exp(2 * 0.5), math.exp(-2)
    by_hand = [math.log(near / (near + far)), math.log(far / (far + near + opposite)), 0.0]
    assert result.tolist() == pytest.approx(by_hand, abs=1e-6)


def test_accuracy_is_one_where_the_own_photo_is_best_and_a_tie_is_wrong():
    retriever = frozen(degrees(0, 60, 10), degrees(0, 30, 90))
    batch = sampled_captions(
        [[0], [1], [1], [2], []], [0, 0, 1, 1, 1]
    )  # the word at 30 degrees is between the two photos
    assert Accuracy(retriever)(batch).sentence.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    hard = Accuracy(retriever, torch.tensor([[2], [0], [0]]))(sampled_captions([[0], [0], [1]], [0, 2, 2])).sentence
    assert hard.tolist() == [1.0, 0.0, 1.0]  # at 30 degrees the photo at 10 is nearer than the one at 0


def test_hard_positives_go_by_the_view_that_fits_least():
    """The own photo at 0 degrees is seen at 20 and 70 too; the other photo of the batch is at 90."""
    retriever = frozen(degrees(0, 90), degrees(0, 90), scale=3.0)
    views = torch.stack([degrees(20, 90), degrees(70, 80)])
    result = HardPositives(retriever, views)(sampled_captions([[0], [1]], [0, 1])).sentence
    least = math.exp(3 * math.cos(math.radians(70)))
    assert result[0].item() == pytest.approx(math.log(least / (least + math.exp(0))), abs=1e-5)
    least = math.exp(3 * math.cos(math.radians(10)))
    assert result[1].item() == pytest.approx(math.log(least / (least + math.exp(0))), abs=1e-5)


def test_retrievers_take_turns_by_the_photos_of_the_batch():
    terms = [lambda s, n=n: Reward(torch.full((len(s.words),), float(n))) for n in range(3)]
    turns = InTurn(terms)
    embedded = {
        turns(sampled_captions([[0]] * len(photos), photos)).sentence[0].item()
        for photos in ([1], [2], [3, 3], [0, 1, 4])
    }
    assert embedded == {0.0, 1.0, 2.0}
    once, twice = turns(sampled_captions([[0]] * 2, [1, 3])), turns(sampled_captions([[0]] * 4, [3, 3, 1, 1]))
    assert once.sentence[0] == twice.sentence[0]  # however many captions there are, in whatever order


def test_worth_falls_with_the_logarithm_and_never_below_zero():
    result = bounded_rank(torch.tensor([0, 1, 9, 199, 200, 201, 100_000]))
    expected = [1 - math.log(1 + rank) / math.log(201) for rank in (0, 1, 9, 199)] + [0, 0, 0]
    assert result.tolist() == pytest.approx(expected, abs=1e-6)
    assert result.dtype == torch.float32
    assert result.min() == 0
    assert bounded_rank(torch.tensor([3]), base=7).item() == pytest.approx(1 - 2 / 3, abs=1e-6)  # ln 4 / ln 8


@pytest.mark.parametrize("seed", range(4))
def test_ranks_are_those_of_the_measure_in_each_data_set(seed):
    torch.manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(300, 4), dim=1)
    images[100:120] = images[:20]  # copies
    pool = torch.where(torch.rand(300) < 0.3, 7, 2)
    photos = torch.randint(300, (40,))
    retriever = frozen(images, torch.randn(20, 4), pool=pool.tolist())
    batch = sampled_captions(torch.randint(20, (40, 2)).tolist(), photos.tolist())
    result = BoundedRank(retriever, base=150)(batch).sentence
    for number in (2, 7):
        rows, members = (pool[photos] == number).nonzero()[:, 0], (pool == number).nonzero()[:, 0]
        similarity = (retriever.embed_sampled(batch)[rows] @ images[members].T).numpy()
        own = np.searchsorted(members.numpy(), photos[rows].numpy())
        rank = retrieval.ranks(similarity, own)
        expected = np.maximum(0, 1 - np.log1p(rank) / np.log1p(150))
        np.testing.assert_allclose(result[rows].numpy(), expected, atol=1e-6)
    assert 0 < result.count_nonzero() < 40


PHOTOS, VOCABULARY = 30, 12
torch.manual_seed(0)
RETRIEVER = frozen(
    F.normalize(torch.randn(PHOTOS, 6), dim=1), torch.randn(VOCABULARY, 6), pool=[i // 18 for i in range(PHOTOS)]
)
GROUPS = torch.stack([torch.randperm(PHOTOS)[:8] for _ in range(PHOTOS)])
GROUPS[3, 4:], GROUPS[5] = -1, -1
NEAREST = GROUPS[:, 0]
TERMS = {
    "hard neighbour": HardNeighbour(RETRIEVER, NEAREST, 0.4),
    "in batch": InBatch(RETRIEVER, 0.4),
    "GD": GlobalDiscriminative(RETRIEVER, NEAREST, 0.4, per_photo=torch.linspace(0.5, 1.5, PHOTOS)),
    "average gap": GroupGap(RETRIEVER, GROUPS),
    "hardest gap": GroupGap(RETRIEVER, GROUPS, "hardest", k=3, curriculum=True),
    "own similarity": OwnSimilarity(RETRIEVER),
    "log probability": LogProbability(RETRIEVER),
    "log probability among look-alikes": LogProbability(RETRIEVER, distractors=GROUPS),
    "hard positives": HardPositives(RETRIEVER, F.normalize(torch.randn(2, PHOTOS, 6), dim=2)),
    "in turn": InTurn([LogProbability(RETRIEVER), OwnSimilarity(RETRIEVER)]),
    "rank": BoundedRank(RETRIEVER, base=12),
}


@pytest.fixture(params=TERMS)
def term(request):
    return TERMS[request.param]


def mixed_batch(*, width=5):
    """Six photos of two data sets, one of them in two places, with three captions each; one says nothing."""
    torch.manual_seed(1)
    photos = torch.tensor([3, 17, 20, 5, 3, 29]).repeat_interleave(3)
    captions = torch.randint(VOCABULARY, (18, 4)).tolist()
    captions = [caption[: 1 + i % 4] for i, caption in enumerate(captions)]
    captions[7] = []
    return sampled_captions(captions, photos.tolist(), width=width, progress=0.4)


def test_padding_and_what_follows_the_end_change_nothing(term):
    plain = mixed_batch()
    expected = term(plain).sentence
    torch.testing.assert_close(term(mixed_batch(width=9)).sentence, expected)
    garbage = plain.words.masked_fill(~plain.mask, FIRST)
    torch.testing.assert_close(term(replace(plain, words=garbage)).sentence, expected)


def test_one_photo_and_one_caption_are_a_batch_too(term):
    one = mixed_batch().of(torch.tensor([4]))
    assert term(one).sentence.shape == (1,)
    assert term(one).sentence.isfinite().all()


def test_captions_that_say_nothing_at_all_are_worth_the_same(term):
    silent = SampledCaptions(torch.full((4, 1), EOS), torch.ones(4, 1, dtype=torch.bool), torch.tensor([3, 3, 20, 20]))
    result = term(silent).sentence
    assert result.isfinite().all()
    assert result[0] == result[1]
    assert result[2] == result[3]
