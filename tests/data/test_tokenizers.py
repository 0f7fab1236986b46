"""Captions to words and ids, and back."""

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


def test_words_are_joined_as_people_write_them_and_an_accent_is_part_of_its_letter():
    for text in ("the dog's ball isn't red", "they're here", "a t-shirt", "a man", ""):
        assert join_words(split_words(text)) == text
    assert split_words("cafe\u0301s") == split_words("caf\u00e9s") == ["caf\u00e9s"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("a umbrella and an uniform", "an umbrella and a uniform"),
        ("an horse at a honorary hour", "a horse at an honorary hour"),
        ("a orange suv beside a suv", "an orange suv beside an suv"),
        ("an used boat and a up-to-date ukulele", "a used boat and an up-to-date ukulele"),
        ("a unusual unicycle, an one-way street", "an unusual unicycle, a one-way street"),
        ("an a and a an in a is", "an a and a an in a is"),  # what is no noun stays
        ("an 18 wheeler, an i phone and an mlb player", "an 18 wheeler, an i phone and an mlb player"),  # as people say
        ("banana and ana eat", "banana and ana eat"),
    ],
)
def test_articles_fit_the_sound_that_follows(wrong, right):
    assert tokenizers.with_articles(wrong) == tokenizers.with_articles(right) == right


def test_only_english_captions_get_articles():
    french = WordTokenizer(["il", "y", "a", "une", "image", "an"])
    assert french.decode(french.encode("il y a image")) == "il y a image"
    english = WordTokenizer(["a", "an", "the", "of", "umbrella"])
    assert english.decode(english.encode("the a umbrella")) == "the an umbrella"


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


LISTS = [b'"cat"', b'{"a": 1}', b'["a", 1]', b"null", b'["\xff"]']
UNREADABLE = [b"", b"{", b"[]", b"null", b'"words"', b'{"kind": "words"}', b'{"words": ["a"]}', b"[" * 100_000]
UNREADABLE += [
    b'{"kind": "pieces", "words": ["a"]}',
    *(b'{"kind": "words", "words": ' + words + b"}" for words in LISTS),
]


def test_a_damaged_vocabulary_is_named(tmp_path):
    file = tmp_path / "vocabulary.json"
    twice = [b'{"kind": "words", "words": ' + words + b"}" for words in (b'["a", "cat", "a"]', b'["a", "<eos>"]')]
    for content in (*UNREADABLE, *twice):
        file.write_bytes(content)
        said = ": a vocabulary names a word twice" if content in twice else " is not a vocabulary that this version can"
        with pytest.raises(UserError, match=rf"vocabulary\.json{said}"):
            tokenizers.load(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match=r"vocabulary\.json: there is no such file"):
        WordTokenizer.load(tmp_path)
    file.mkdir()
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
    ("name", "content", "said"),
    [
        (
            "vocabulary.json",
            '{"kind": "subwords", "eos": 0, "bos": 0}',
            "is not a vocabulary that this version can read",
        ),
        ("vocabulary.json", '{"kind": "subwords", "eos": "0", "bos": 0, "pad": 0}', "is not a vocabulary that this"),
        ("vocabulary.json", '{"kind": "subwords", "eos": 0, "bos": 0, "pad": 100000}', "its pad is 100000"),
        ("tokenizer.json", "{}", "is not a tokenizer that this version can read"),
        ("tokenizer.json", "[", "is not a tokenizer that this version can read"),
    ],
)
def test_damaged_subwords_are_named(tmp_path, name, content, said):
    byte_pairs(["a dog"]).save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said):
        tokenizers.load(tmp_path)
