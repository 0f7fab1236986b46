"""Captions to words and ids, and back."""

import json

import pytest

from capscore.errors import UserError
from support.subwords import byte_pairs
from tellapart.data import tokenizers
from tellapart.data.tokenizers import SubwordTokenizer, WordTokenizer, join_words, split_words

PAD, BOS, EOS, UNK = range(4)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man, riding a wave.", "a man riding a wave"),
        ("the dog's ball", "the dog 's ball"),
        ("The dogs' ball", "the dogs ball"),
        ("it isn't; they can't", "it is n't they ca n't"),
        ("I'm sure he'd say they're here", "i 'm sure he 'd say they 're here"),
        ("we've been, she'll see", "we 've been she 'll see"),
        ("the dog\N{RIGHT SINGLE QUOTATION MARK}s ball isn\N{RIGHT SINGLE QUOTATION MARK}t", "the dog 's ball is n't"),
        ("'sunny' days", "sunny days"),
        ("a black-and-white t-shirt", "a black-and-white t-shirt"),
        ("well - a dash -- and a -minus-", "well a dash and a minus"),
        ("two 2 dogs_cats", "two 2 dogs cats"),
        ("Ein Café an der STRAẞE", "ein café an der straße"),
        ("一只狗 и кошка", "一只狗 и кошка"),
        ("?!... \t\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_a_caption_is_split_into_words(caption, words):
    assert split_words(caption) == words.split()


def test_an_accent_is_part_of_its_letter_however_it_is_encoded():
    assert split_words("cafe\u0301s") == split_words("caf\u00e9s") == ["caf\u00e9s"]


@pytest.mark.parametrize("text", ["the dog's ball isn't red", "they're here", "a t-shirt", "a man", ""])
def test_words_are_joined_as_people_write_them(text):
    assert join_words(split_words(text)) == text


def test_the_vocabulary_has_words_that_occur_often_enough_the_frequent_first_and_ties_by_the_alphabet():
    captions = ["a cat", "a cat and a dog", "a bird"]  # a 4, cat 2, the others once
    assert WordTokenizer.build(captions, min_count=2).words[4:] == ["a", "cat"]
    assert WordTokenizer.build(captions, min_count=5).words[4:] == []
    captions = ["dog cat", "cat zebra bird", "bird cat dog"]
    for order in (captions, reversed(captions)):
        assert WordTokenizer.build(order, min_count=1).words[4:] == ["cat", "bird", "dog", "zebra"]


def test_captions_become_ids_without_special_tokens_and_ids_captions_up_to_the_first_eos():
    tokenizer = WordTokenizer(["a", "cat", "eos"])
    assert len(tokenizer) == 7
    assert tokenizer.encode("A cat, a dog") == [4, 5, 4, UNK]
    assert tokenizer.encode("a <eos> <pad>") == [4, 6, UNK]  # in a caption they are only words
    assert tokenizer.decode([BOS, 4, 5, EOS, 4, 4, PAD]) == tokenizer.decode([4, PAD, 5]) == "a cat"
    assert tokenizer.decode([EOS]) == tokenizer.decode([]) == ""
    assert set(tokenizer.banned_ids) == {PAD, BOS, UNK}  # EOS may be said
    text = "the dog's ball isn't red"
    tokenizer = WordTokenizer.build([text], min_count=1)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_saved_vocabulary_comes_back(tmp_path):
    tokenizer = WordTokenizer(["café", "'s", "n't", "狗"])
    for _ in range(2):  # the same bytes again
        tokenizer.save(tmp_path)
        assert WordTokenizer.load(tmp_path).words == tokenizer.words
    stored = '{"kind": "words", "words": ["café", "\'s", "n\'t", "狗"]}\n'
    assert (tmp_path / "vocabulary.json").read_text(encoding="utf-8") == stored


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"words"',
        b'{"kind": "words"}',
        b'{"words": ["a"]}',
        b'{"kind": "pieces", "words": ["a"]}',
        b'{"kind": "words", "words": "cat"}',
        b'{"kind": "words", "words": {"a": 1}}',
        b'{"kind": "words", "words": ["a", 1]}',
        b'{"kind": "words", "words": null}',
        b'{"kind": "words", "words": ["\xff"]}',
        b"[" * 100_000,
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)
def test_a_damaged_vocabulary_is_named(tmp_path, content):
    (tmp_path / "vocabulary.json").write_bytes(content)
    with pytest.raises(UserError, match=r"vocabulary\.json is not a vocabulary that this version can read"):
        tokenizers.load(tmp_path)


def test_a_vocabulary_with_a_word_twice_or_none_at_all_is_named(tmp_path):
    for words in (["a", "cat", "a"], ["a", "<eos>"]):
        (tmp_path / "vocabulary.json").write_text(json.dumps({"kind": "words", "words": words}))
        with pytest.raises(UserError, match=r"vocabulary\.json: a vocabulary names a word twice"):
            WordTokenizer.load(tmp_path)
    (tmp_path / "vocabulary.json").unlink()
    with pytest.raises(UserError, match=r"vocabulary\.json: there is no such file"):
        WordTokenizer.load(tmp_path)
    (tmp_path / "vocabulary.json").mkdir()
    with pytest.raises(UserError, match="this is a folder, not a file"):
        WordTokenizer.load(tmp_path)


def test_subwords_come_back_from_a_folder(tmp_path):
    tokenizer = byte_pairs(["a man rides a horse", "a dog isn't here"])
    tokenizer.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert isinstance(again, SubwordTokenizer)
    assert (again.eos, again.bos, again.pad, len(again)) == (tokenizer.eos,) * 3 + (len(tokenizer),)
    text = "a man isn't riding zebras"  # words that training never saw are spelt
    assert again.decode(again.encode(text)) == text
    assert again.decode([*again.encode("a man"), again.eos, *again.encode("a dog")]) == "a man"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocabulary.json", '{"kind": "subwords", "eos": 0, "bos": 0}'),
        ("vocabulary.json", '{"kind": "subwords", "eos": "0", "bos": 0, "pad": 0}'),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "["),
    ],
)
def test_damaged_subwords_are_named(tmp_path, name, content):
    byte_pairs(["a dog"]).save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=rf"{name} is not a (vocabulary|tokenizer) that this version can read"):
        tokenizers.load(tmp_path)


def test_special_tokens_must_be_in_the_vocabulary(tmp_path):
    byte_pairs(["a dog"]).save(tmp_path)
    (tmp_path / "vocabulary.json").write_text('{"kind": "subwords", "eos": 0, "bos": 0, "pad": 100000}')
    with pytest.raises(UserError, match="its pad is 100000"):
        tokenizers.load(tmp_path)
