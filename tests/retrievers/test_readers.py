"""How a retriever reads captions: their text, and the tokens of captioners."""

import pytest
import torch

from capscore.errors import UserError
from tellapart.data.tokenizers import WordTokenizer
from tellapart.retrievers.readers import MAX_WORDS, WordReader

PAD, BOS, EOS, UNK = 0, 1, 2, 3
OURS = WordTokenizer(["a", "dog", "cat", "'s", "red", "bed"])  # a is 4
THEIRS = WordTokenizer(["bed", "zebra", "a", "cat", "'s", "on"])  # bed is 4


def tokens_of(*captions, tokenizer=OURS, length=8):
    """As a decoder leaves captions: words, EOS, padding."""
    rows = [[*tokenizer.encode(caption), EOS] for caption in captions]
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def without_padding(tokens):
    assert all(row == sorted(row, key=lambda token: token == PAD) for row in tokens.tolist()), "words after padding"
    return [[token for token in row if token != PAD] for row in tokens.tolist()]


def test_text_becomes_the_ids_of_its_words():
    read = WordReader(OURS).read(["A red dog!", "a cat's bed", "a zebra"])
    assert read.tolist() == [[4, 8, 5, 0], [4, 6, 7, 9], [4, UNK, 0, 0]]


def test_a_reader_that_needs_to_know_the_end_is_told_it():
    read = WordReader(OURS, with_eos=True).read(["A red dog!", "a cat's bed", ""])
    assert read.tolist() == [[4, 8, 5, EOS, 0], [4, 6, 7, 9, EOS], [EOS, 0, 0, 0, 0]]


@pytest.mark.parametrize("with_eos", [False, True])
@pytest.mark.parametrize("words", [OURS, THEIRS], ids=["of its own words", "of other words"])
def test_tokens_are_read_as_the_text_they_stand_for(with_eos, words):
    reader = WordReader(OURS, with_eos=with_eos)
    captions = ["a cat", "a cat's bed", "cat", "on a bed", "", "zebra zebra"]
    tokens = tokens_of(*captions, tokenizer=words)
    texts = [words.decode(row) for row in tokens.tolist()]
    assert without_padding(reader.read_tokens(tokens, words)) == without_padding(reader.read(texts))


def test_another_vocabulary_is_translated_word_by_word():
    tokens = torch.tensor([[4, 5, 6, 7, 8, 9, UNK, EOS]])  # bed zebra a cat 's on <unk>
    assert WordReader(OURS).read_tokens(tokens, THEIRS).tolist() == [[9, UNK, 4, 6, 7, UNK, UNK, PAD]]


def test_two_captioners_are_not_mixed_up():
    reader = WordReader(OURS)
    tokens = torch.tensor([[4, EOS]])
    assert reader.read_tokens(tokens, OURS).tolist() == [[4, PAD]]
    assert reader.read_tokens(tokens, THEIRS).tolist() == [[9, PAD]]
    assert reader.read_tokens(tokens, OURS).tolist() == [[4, PAD]]


@pytest.mark.parametrize(("with_eos", "end"), [(False, []), (True, [EOS])])
def test_nothing_counts_after_the_end_and_padding_and_beginnings_are_not_read(with_eos, end):
    reader = WordReader(OURS, with_eos=with_eos)
    tokens = torch.tensor([
        [4, 5, EOS, 6, 7, EOS],  # whatever a decoder leaves behind the end
        [BOS, 4, 5, EOS, PAD, PAD],
        [4, 5, 6, 8, 8, 8],  # cut, without an end
        [PAD, PAD, PAD, PAD, PAD, PAD],
        [EOS, 4, 5, PAD, PAD, PAD],
    ])  # fmt: skip
    ids = without_padding(reader.read_tokens(tokens, OURS))
    assert ids == [[4, 5, *end], [4, 5, *end], [4, 5, 6, 8, 8, 8, *end], end, end]


@pytest.mark.parametrize("with_eos", [False, True])
def test_what_comes_after_the_last_word_that_is_read_changes_nothing(with_eos):
    reader = WordReader(OURS, with_eos=with_eos)
    end = [EOS] if with_eos else []
    long = " ".join(["dog"] * (MAX_WORDS + 7))
    assert without_padding(reader.read([long])) == [[5] * MAX_WORDS + end]
    other = " ".join(["dog"] * MAX_WORDS + ["cat", "bed"])
    tokens = tokens_of(long, other, length=MAX_WORDS + 10)
    assert without_padding(reader.read_tokens(tokens, OURS)) == [[5] * MAX_WORDS + end] * 2
    begun = torch.cat([torch.full((2, 1), BOS), tokens], 1)
    assert without_padding(reader.read_tokens(begun, OURS)) == [[5] * MAX_WORDS + end] * 2


def test_a_captioner_of_another_language_is_refused():
    with pytest.raises(UserError, match=r"^the retriever knows none of the captioner's words; .*\?$"):
        WordReader(OURS).read_tokens(torch.tensor([[4, EOS]]), WordTokenizer(["ein", "hund"]))


def test_parts_of_words_are_read_as_text():
    class Parts:
        pad, bos, eos = PAD, BOS, EOS

        def decode(self, tokens):
            return "a dog"

    reader = WordReader(OURS)
    assert reader.read_tokens(torch.tensor([[4, EOS]]), Parts()).tolist() == reader.read(["a dog"]).tolist()


@pytest.mark.parametrize("with_eos", [False, True])
def test_captions_that_are_read_once_are_given_as_often_as_one_likes(with_eos, tmp_path):
    reader = WordReader(OURS, with_eos=with_eos)
    captions = ["a red dog", "a cat's bed", "a dog"]
    prepared = reader.prepare(captions, 20, tmp_path)
    assert prepared([2, 0, 2]).tolist() == reader.read([captions[2], captions[0], captions[2]]).tolist()
    assert prepared([2]).tolist() == reader.read(["a dog"]).tolist()
    cut = reader.prepare(captions, 2, tmp_path)
    assert without_padding(cut([0, 1])) == without_padding(reader.read(["a red", "a cat"]))
    assert list(tmp_path.iterdir()) == []
