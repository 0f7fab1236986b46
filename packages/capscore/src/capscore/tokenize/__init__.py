"""Captions to words as COCO's caption evaluation does it: Penn Treebank tokens in lower case, without punctuation.

Equal to pycocoevalcap's PTBTokenizer, which is Stanford CoreNLP 3.4.1 behind a list of punctuation to leave out, but
for one thing: there, a caption's words can depend on the next caption in the file. In `tokenize` they never do.

- Every line break in a caption is a blank. There, others than "\\n" shift all later captions by a line.
- A lone letter with a full stop at a caption's end ("the letter P.") is a letter and a full stop. There, so it is if
  the next caption begins with "A", "The" or the like; otherwise the word is "p.". And "no." at a caption's end is one
  word there if the next caption begins with a digit. `tokenize_file` does as they do, so that scores are equal: one
  caption in ten thousand ends so.
- A tag left open ends with its caption. There, it can swallow the captions up to the one that closes it.
- Every caption ends as if another followed. There, ":)" at the very end of the file is not one word.

The final sigma of Greek capitals is Python's, which differs from Java's behind a hyphen, an underscore or a digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import islice

from capscore.tokenize.automaton import Scanner
from capscore.tokenize.rules import CATEGORIES, FRAGMENTS, RULES, is_digit

Words = tuple[str, ...]

# The list of pycocoevalcap. Its "-LRB-" and the like never match, for tokens are in lower case: brackets remain.
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";", ""])

LINE_BREAKS = str.maketrans(dict.fromkeys("\n\r\u000b\u000c\u0085\u2028\u2029", " "))
END = "\n"  # stands after every caption: some patterns ask what follows a word

# Of words made of ASCII letters only, these alone are not one token; a comma behind one never changes it.
SPLIT_WORDS = frozenset(["cannot", "gonna", "gotta", "lemme", "gimme", "wanna"])

LONE_LETTER_AT_END = re.compile(r"[A-Za-z]\.\s*\Z")
# In the rules, a letter in brackets has its case and others have any.
_BEGINNINGS = re.sub(r"\[([A-Z])\]", r"(?-i:\1)", FRAGMENTS["starts_a_sentence"].replace("|{tag}", ""))
SENTENCE_BEGINS = re.compile(rf"\s*(?:{_BEGINNINGS}|</?[a-z!?][^>]*>)\s", re.IGNORECASE)
BEFORE_A_NUMBER_AT_END = re.compile(rf"(?<![^\W_]){FRAGMENTS['before_a_number']}\Z", re.IGNORECASE)
LONGEST_THAT_DEPENDS = 4  # characters: "prop", "bldg"

# After this many characters without a match the scan takes notes, so that it is not made again from the next place.
PATIENCE = 16

MOST_REMEMBERED = 1 << 16
LONGEST_REMEMBERED = 64


@cache
def scanner() -> Scanner:
    return Scanner([rule.pattern for rule in RULES], FRAGMENTS, CATEGORIES)


class NeedsWhatFollows(Exception):
    """The words of a piece of a caption depend on the text behind it."""


def scan(text: str, *, stop: int | None = None) -> list[str]:
    """The words of a text; with `stop`, of the part before it, which ends in a blank or the text's end.

    With `stop`, NeedsWhatFollows is raised unless the words would be the same for any text behind it.
    """
    automaton = scanner()
    step, rows, accepted = automaton.step, automaton.rows, automaton.accepted
    words: list[str] = []
    hopeless: set[tuple[int, int]] = set()  # (place, state) from which no match is reached
    size = len(text)
    at, limit = 0, size if stop is None else stop
    while at < limit:
        state, place, end, number = automaton.start, at, at, 0
        notes: list[tuple[int, int]] = []
        while place < size:
            character = text[place]
            following = rows[state].get(character)
            if following is None:
                following = step(state, character)
            if not following:
                break
            state = following
            place += 1
            rule = accepted[state]
            if rule is not None:
                end, number = place, rule
                notes.clear()
            elif place - end > PATIENCE:
                if (place, state) in hopeless:
                    break
                notes.append((place, state))
        else:
            if stop is not None and automaton.can_continue(state):
                raise NeedsWhatFollows
        hopeless.update(notes)
        matched = text[at:end]
        length = RULES[number].length(matched)
        word = RULES[number].spelling(matched[:length]).lower()
        if word not in PUNCTUATION:
            words.append(word)
        at += length
    if stop is not None and at > stop:  # a token with a blank inside
        raise NeedsWhatFollows
    return words


@lru_cache(maxsize=MOST_REMEMBERED)
def words_before(piece: str, following: str) -> Words | None:
    """The words of a piece between blanks, given the character behind the blank; None if more must be known.

    Without `following`, None unless they are the same for any text behind. A piece may end with END instead of a blank.
    """
    last = piece.endswith(END)
    try:
        return tuple(scan(piece if last else f"{piece} {following}", stop=len(piece) - last))
    except NeedsWhatFollows:
        return None


class OneWord(dict[str, str]):
    """Pieces between blanks that are one word each, wherever they stand; looked up when first asked for."""

    def __missing__(self, piece: str) -> str:
        if len(piece) > LONGEST_REMEMBERED:
            raise KeyError(piece)
        letters = piece.rstrip("," + END)
        if letters.isalpha() and letters.isascii() and (word := letters.lower()) not in SPLIT_WORDS:
            words: Words | None = (word,)
        else:
            words = words_before(piece, "")
        if words is None or len(words) != 1:
            raise KeyError(piece)
        if len(self) >= MOST_REMEMBERED:
            self.clear()
        self[piece] = words[0]
        return words[0]


ONE_WORD = OneWord()


def ptb_words(text: str) -> list[str]:
    """The words of one caption."""
    return scan(text.translate(LINE_BREAKS) + END)


def tokenize(texts: Iterable[str]) -> list[list[str]]:
    """The words of each caption: what `ptb_words` gives, but fast for many captions."""
    one_word = ONE_WORD.__getitem__
    captions: list[list[str]] = []
    for text in texts:
        if not text.isprintable():  # line breaks, or blanks at which a caption must not be split
            text = text.translate(LINE_BREAKS)
            if not text.isprintable():
                captions.append(scan(text + END))
                continue
        pieces = (text.rstrip(" ") + END).split(" ")
        try:
            captions.append([*map(one_word, pieces)])
        except KeyError:
            captions.append(words_of_pieces(text, pieces))
    return captions


def tokenize_file(texts: Sequence[str], places: Sequence[int] | None = None) -> list[list[str]]:
    """As `tokenize`, for captions that follow each other in one file, as pycocoevalcap hands them over.

    There the full stop at a caption's end can depend on the next caption.  In "the letter P." it belongs to the word
    unless the next one begins with a word that begins sentences ("A", "The" ...); in "says no." it does if the next one
    begins with a digit, as an abbreviation of "number".

    places  which captions of the file are wanted: all, if none are named
    """
    places = range(len(texts)) if places is None else places
    captions = tokenize(texts[place] for place in places)
    for place, words in zip(places, captions, strict=True):
        if words and may_keep_its_stop(texts[place], words[-1]) and not words[-1].endswith("."):
            if len(words[-1]) == 1:
                keeps_its_stop = not begins_a_sentence(texts, place + 1)
            else:
                keeps_its_stop = is_digit("".join(texts[place + 1 : place + 2])[:1] or END)
            if keeps_its_stop:
                words[-1] += "."
    return captions


def may_keep_its_stop(text: str, last_word: str) -> bool:
    """True if the full stop at the end of a text can belong to its last word, given the right text behind it."""
    if len(last_word) > LONGEST_THAT_DEPENDS:
        return False
    pattern = LONE_LETTER_AT_END if len(last_word) == 1 else BEFORE_A_NUMBER_AT_END
    return pattern.search(text) is not None


def begins_a_sentence(texts: Sequence[str], place: int) -> bool:
    """True if the first caption with anything in it, from `place` on, begins as sentences do."""
    following = next((text for text in islice(texts, place, None) if text and not text.isspace()), "")
    return SENTENCE_BEGINS.match(following + END) is not None


def words_of_pieces(text: str, pieces: list[str]) -> list[str]:
    """The words of a caption some of whose pieces are not one word, or depend on what follows them."""
    caption: list[str] = []
    for piece, next_piece in zip(pieces, [*pieces[1:], ""], strict=True):
        if len(piece) > LONGEST_REMEMBERED:
            return scan(text + END)
        words = words_before(piece, "")
        if words is None:
            words = words_before(piece, next_piece[:1] or " ")
        if words is None:
            return scan(text + END)
        caption += words
    return caption
