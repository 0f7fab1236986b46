"""A frozen retriever that knows the photos beforehand."""

import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from capscore.errors import UserError
from rewards.retriever_by_hand import EOS, Directions, cosine, degrees, frozen, sampled_captions
from support.retrievers import bag_of_words_retriever
from tellapart.data.tokenizers import WordTokenizer
from tellapart.models import retrievers
from tellapart.rewards import SampledCaptions
from tellapart.rewards.retrieval import EmbedCaptions, FrozenRetriever

WORDS = degrees(0, 90, 180)


class Counting(Directions):
    calls = 0

    def __call__(self, tokens):
        self.calls += 1
        return super().__call__(tokens)


def test_a_batch_is_embedded_once_and_forgotten_when_another_comes():
    embed = Counting(WORDS)
    ears = FrozenRetriever("counting", degrees(0, 45), torch.zeros(2), 1.0, embed)
    first, second = sampled_captions([[0], [1]], [0, 1]), sampled_captions([[1], [2]], [0, 1])
    embedded, similarity = ears.embed_sampled(first), ears.similarities(first)
    assert ears.embed_sampled(first) is embedded
    assert ears.similarities(first) is similarity
    ears.to_batch(first), ears.to_own(first)
    assert embed.calls == 1
    torch.testing.assert_close(ears.embed_sampled(second), WORDS[[1, 2]])
    torch.testing.assert_close(ears.similarities(second), WORDS[[1, 2]] @ degrees(0, 45).T)
    assert embed.calls == 2
    twin = replace(first)  # equal, but another: nothing is compared
    torch.testing.assert_close(ears.embed_sampled(twin), embedded)
    assert embed.calls == 3


def test_captions_are_embedded_up_to_their_end():
    ears = frozen(degrees(0), WORDS)
    short, padded = sampled_captions([[0, 1], []], [0, 0]), sampled_captions([[0, 1], []], [0, 0], width=9)
    torch.testing.assert_close(ears.embed_sampled(short), torch.cat([degrees(45), torch.zeros(1, 2)]))
    torch.testing.assert_close(ears.embed_sampled(padded), ears.embed_sampled(short), rtol=0, atol=0)


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
    ears, batch = frozen(images, words, pool=pool), sampled_captions(lines, photos)
    found = ears.similarities(batch)
    assert found.shape == (17, 23)
    for caption in range(17):
        for photo in range(23):
            if pool[photo] != pool[photos[caption]] or photo == 4:
                assert found[caption, photo] == -torch.inf
            else:
                expected = cosine(ears.embed_sampled(batch)[caption], images[photo])
                assert found[caption, photo].item() == pytest.approx(expected, abs=1e-6)


def test_similarities_to_chosen_photos_to_the_own_one_and_to_those_of_the_batch():
    images, words, lines, photos = random_world(1)
    ears, batch = frozen(images, words, pool=[i % 2 for i in range(23)]), sampled_captions(lines, photos)
    embedded, chosen = ears.embed_sampled(batch), torch.randint(23, (17, 4))
    some, own, (among, which) = ears.to_photos(batch, chosen), ears.to_own(batch), ears.to_batch(batch)
    different = sorted(set(photos))
    assert among.shape == (17, len(different))
    assert [different[i] for i in which.tolist()] == photos
    for caption in range(17):
        assert own[caption].item() == pytest.approx(cosine(embedded[caption], images[photos[caption]]), abs=1e-6)
        for place, photo in enumerate(chosen[caption].tolist()):
            assert some[caption, place].item() == pytest.approx(cosine(embedded[caption], images[photo]), abs=1e-6)
        for place, photo in enumerate(different):
            assert among[caption, place].item() == pytest.approx(cosine(embedded[caption], images[photo]), abs=1e-6)


def test_a_pickled_retriever_answers_the_same_and_takes_no_memories_along():
    images, words, lines, photos = random_world(2)
    ears, batch = frozen(images, words), sampled_captions(lines, photos)
    fresh = len(pickle.dumps(ears))
    expected = ears.similarities(batch)
    assert len(pickle.dumps(ears)) == fresh
    torch.testing.assert_close(pickle.loads(pickle.dumps(ears)).similarities(batch), expected, rtol=0, atol=0)


def test_whatever_precision_a_retriever_has_the_answer_is_single():
    ears = FrozenRetriever("double", degrees(0, 90), torch.zeros(2), 1.0, Directions(WORDS.double()))
    batch = sampled_captions([[0]], [1])
    assert ears.embed_sampled(batch).dtype == ears.similarities(batch).dtype == torch.float32


def test_photos_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match=r"directions: the vector of photo number 2 .* not a finite number"):
        frozen(torch.tensor([[1.0, 0.0], [torch.nan, 0.0]]), WORDS)
    with pytest.raises(ValueError, match=r"2 photos and pool of shape \(3,\)"):
        frozen(degrees(0, 90), WORDS, pool=[0, 0, 0])
    with pytest.raises(ValueError, match=r"2 photos and references of shape \(1,\)"):
        frozen(degrees(0, 90), WORDS, references=torch.tensor([1]))


# Real retrievers


@pytest.fixture(scope="module")
def real(small_retriever):
    return retrievers.load(small_retriever)


SPEAKER = WordTokenizer(["dog", "zebra", "a", "red", "bus", "on", "the", "street"])  # not the retriever's words


def spoken(*captions):
    rows = [[*SPEAKER.encode(caption), EOS] for caption in captions]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [SPEAKER.pad] * (width - len(row)) for row in rows])
    return SampledCaptions(tokens, tokens != SPEAKER.pad, torch.arange(len(captions)))


def test_a_real_retriever_embeds_tokens_as_it_reads_text(real):
    torch.manual_seed(0)
    features = torch.rand(3, real.encoder.feature_size)
    ears = FrozenRetriever.of_photos(real, SPEAKER, features, torch.zeros(3, dtype=torch.long))
    captions = ["a red bus on the street", "dog", ""]
    expected = real.embed_captions(captions) @ real.embed_images(features).T
    torch.testing.assert_close(ears.similarities(spoken(*captions)), expected)
    assert (ears.name, ears.scale, len(ears)) == (real.name, real.scale, 3)
    assert ears.embed_sampled(spoken(*captions))[2].tolist() == [0.0] * real.size
    again = pickle.loads(pickle.dumps(ears))
    torch.testing.assert_close(again.similarities(spoken(*captions)), expected)


def test_what_a_real_retriever_answers_can_be_multiplied_with_what_has_a_gradient(real):
    features, pool = torch.rand(2, real.encoder.feature_size), torch.zeros(2, dtype=torch.long)
    seen = FrozenRetriever.of_photos(real, SPEAKER, features, pool)
    read = FrozenRetriever.of_references(real, SPEAKER, [["a dog"], ["a bus"]], pool)
    for ears in (seen, read):
        weight, batch = torch.ones(2, requires_grad=True), spoken("dog", "a bus")
        answers = [ears.embed_sampled(batch), ears.similarities(batch), ears.to_batch(batch)[0], ears.images]
        for answer in answers:
            (gradient,) = torch.autograd.grad((answer * weight[:, None]).sum(), weight)
            torch.testing.assert_close(gradient, answer.sum(1))


def test_a_captioner_of_another_language_and_photos_for_who_only_reads_are_refused(real):
    with pytest.raises(UserError, match="none of the captioner's words"):
        EmbedCaptions(real, WordTokenizer(["hund", "katze"]))
    reads = replace(bag_of_words_retriever(["dog", "bus"]), sees="references")
    with pytest.raises(UserError, match="bags knows photos by their references"):
        FrozenRetriever.of_photos(reads, SPEAKER, torch.rand(1, 4), torch.zeros(1))


def test_a_photo_known_by_its_references_is_as_like_a_caption_as_they_are_on_average():
    bags = bag_of_words_retriever(["dog", "bus", "red", "street"], scale=7.0)
    references = [["dog", "red dog", "street"], ["bus"], []]
    ears = FrozenRetriever.of_references(bags, SPEAKER, references, torch.tensor([4, 4, 4]))
    found = ears.similarities(spoken("red dog", "bus", "zebra"))
    half = 0.5**0.5  # the cosine of "red dog" and "dog"
    expected = torch.tensor([[(half + 1 + 0) / 3, 0, -torch.inf], [0, 1, -torch.inf], [0, 0, -torch.inf]])
    torch.testing.assert_close(found, expected)
    assert ears.scale == pytest.approx(7)


def test_a_reference_is_compared_with_the_other_references_of_its_photo():
    bags = bag_of_words_retriever(["dog", "bus", "red", "street"])
    references = [["dog", "red dog", "street"], ["bus street"], ["red bus", "street"]]
    ears = FrozenRetriever.of_references(bags, SPEAKER, references, torch.zeros(3, dtype=torch.long))
    batch = replace(spoken("red dog", "bus", "red bus"), reference=torch.tensor([1, 0, -1]))
    expected = ears.similarities(replace(batch, reference=None)).clone()
    expected[0, 0] = (0.5**0.5 + 0) / 2  # with "dog" and "street"
    expected[1, 1] = 0  # it is the only one, cut short: nothing else is known of the photo
    torch.testing.assert_close(ears.similarities(batch), expected)
    torch.testing.assert_close(ears.to_batch(batch)[0], expected)
    torch.testing.assert_close(ears.to_own(batch), expected.diagonal())
    torch.testing.assert_close(ears.to_photos(batch, torch.arange(3).expand(3, 3)), expected)
