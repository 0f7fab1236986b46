"""A model that is shown what to tell apart: a caption of each photo first, then one that its look-alikes do not fit.

A photo whose first caption is another's too, or finds another photo at least as well, is shown again: with the photos
that it is confused with, and their captions.  The answers are candidates beside the first caption, unless they are
long, name an object that a detector does not see, or add a word without which the retriever finds the photo more like
them: asked for differences, models invent some.  `rerank` chooses among them: an answer that does not help is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from capscore import objects
from capscore.object_words import CLASSES
from capscore.stop_words import content
from capscore.tokenize.tokenizer import tokenize
from tellapart.captioning.rerank import Collection, PhotoVectors, RerankConfig, rerank, stacked
from tellapart.data.captions import PROMPT, Candidate, Caption, Proposed
from tellapart.data.tokenizers import split_words
from tellapart.desk.endpoint import Question, ServerCaptions
from tellapart.detectors.detections import detect
from tellapart.detectors.detector import Detector
from tellapart.parallel import batched

CONTRAST_PROMPT = (
    "The first photo is easily taken for the {count} after it. A caption of the first photo that does not tell them "
    'apart: "{caption}" {others}Write one plain sentence that is true of the first photo and of none of the others: '
    "name what only the first one shows. Say nothing that cannot be seen there. Use at most 20 words. Answer with the "
    "sentence only."
)
_BATCH = 128  # photos that get a first caption before any is shown again: what a kill can cost

Ask = Callable[[Sequence[Question]], Iterator[ServerCaptions]]  # answers to each, in order


@dataclass(frozen=True)
class ContrastConfig:
    prompt: str = CONTRAST_PROMPT  # {caption}, {count} and {others} stand for what is known of the photos
    answers: int = 3  # of the second question: the likeliest, the others by sampling
    images: int = 4  # of a request, the photo itself included
    longest: int = 25  # words of an answer
    # By how much the cosine may rise when a word is left out.  By the embedded retriever on the album's references,
    # above it are 7 % of the words, and 52 % of words that were put at random in the place of one.
    doubt: float = 0.03


@dataclass
class Contrast:
    """The captions of photos that are told apart so.

    objects_in    photos -> for each the classes of COCO that may be in it, by number; none: answers are not checked
    first_prompt  of the first question, where it is asked with what is known of the photo
    """

    ask: Ask
    collection: Collection
    how: RerankConfig
    config: ContrastConfig = field(default_factory=ContrastConfig)
    objects_in: Callable[[Sequence[str]], Sequence[frozenset[int] | None]] | None = None
    first_prompt: str = PROMPT

    def captions(self, files: Sequence[str], seen: Mapping[str, PhotoVectors]) -> Iterator[Caption]:
        """seen  the photos as the retriever sees them, by their hash"""
        so_far = self.collection.captions_so_far()
        hashes = self.collection.photos.sha256
        # Of each photo, by its hash: its caption if it has one already, else its first.  A run that continues another
        # one so asks what that would have asked.
        known = {hashes[place]: caption.text for place, caption in so_far.captions.items()}
        for batch in batched(files, _BATCH):
            first = list(self.ask([self._in_context(Question(file)) for file in batch]))
            known |= {one.sha256: one.captions[0] for one in first if one.captions}
            captions = list(rerank(self._proposed(first, seen, known), seen, self.collection, self.how, so_far))
            known |= {one.sha256: one.text for one in captions if not one.error}
            yield from captions

    def _proposed(
        self, first: list[ServerCaptions], seen: Mapping[str, PhotoVectors], known: Mapping[str, str]
    ) -> list[Proposed]:
        proposed = [
            Proposed(one.file, [Candidate(text) for text in one.captions[:1]], one.error, one.sha256) for one in first
        ]
        numbers = [i for i, one in enumerate(proposed) if one.candidates and one.sha256 in seen]
        confused = self._confused([proposed[i] for i in numbers], seen, known)
        shown = {i: places for i, places in zip(numbers, confused, strict=True) if places}
        questions = {i: self._question(proposed[i], places, known) for i, places in shown.items()}
        for i, answer in zip(questions, self.ask(list(questions.values())) if questions else (), strict=True):
            if answer.may_pass:  # the next run may tell it apart
                proposed[i] = Proposed(answer.file, error=answer.error)
                continue
            good = self._usable(proposed[i], answer.captions, seen[proposed[i].sha256])
            proposed[i] = replace(proposed[i], candidates=_once([*proposed[i].candidates, *map(Candidate, good)]))
        return proposed

    def _confused(
        self, proposed: Sequence[Proposed], seen: Mapping[str, PhotoVectors], known: Mapping[str, str]
    ) -> list[list[int]]:
        """The places in the collection of the photos that each is confused with, the worst first; none: it is not."""
        if not proposed:
            return []
        collection = self.collection
        own, features = stacked([seen[one.sha256] for one in proposed])
        others = collection.others([one.sha256 for one in proposed], features)
        alike = collection.look_alikes(own, others, self.config.images)
        embedded = collection.retriever.embed_captions([one.candidates[0].text for one in proposed])
        by_caption: dict[tuple[str, ...], list[int]] = {}
        for place, sha256 in enumerate(collection.photos.sha256):
            if sha256 in known:
                by_caption.setdefault(tuple(split_words(known[sha256])), []).append(place)
        similar = own @ collection.vectors.T  # (B, P)
        found = []
        for i, one in enumerate(proposed):
            fits = collection.retriever.similarity(embedded[i : i + 1], collection.vectors)[0]  # (P,)
            better = (fits >= (embedded[i] * own[i]).sum()) & others[i]
            ahead = sorted(better.nonzero()[:, 0].tolist(), key=(-fits).tolist().__getitem__)
            words = tuple(split_words(one.candidates[0].text))
            same = [place for place in by_caption.get(words, []) if others[i, place]]
            same.sort(key=(-similar[i]).tolist().__getitem__)
            more = alike[i] if same or ahead else []
            found.append(list(dict.fromkeys([*same, *ahead, *more]))[: self.config.images - 1])
        return found

    def _question(self, one: Proposed, places: Sequence[int], known: Mapping[str, str]) -> Question:
        photos = self.collection.photos
        captions = [known.get(photos.sha256[place], "") for place in places]
        listed = " ".join(f'{number}. "{text}"' for number, text in enumerate(captions, 2) if text)
        values = {
            "{caption}": one.candidates[0].text,
            "{count}": str(len(places)),
            "{others}": f"Captions of the others: {listed} " if listed else "",
        }
        prompt = self.config.prompt
        for name, value in values.items():
            prompt = prompt.replace(name, value)
        beside = tuple(photos.files[place] for place in places)
        return self._in_context(Question(one.file, beside, prompt, self.config.answers))

    def _in_context(self, question: Question) -> Question:
        context = self.how.context
        if context is None:
            return question
        return replace(question, prompt=context.prompt(question.prompt or self.first_prompt, question.file))

    def _usable(self, first: Proposed, answers: Sequence[str], photo: PhotoVectors) -> list[str]:
        """Those that are short and, as far as is known, true."""
        short = [text for text in answers if len(split_words(text)) <= self.config.longest]
        classes = self.objects_in([first.file])[0] if self.objects_in is not None and short else None
        seen = [text for text in short if classes is None or not unseen(text, classes)]
        return [text for text in seen if not self._doubtful(text, first.candidates[0].text, photo)]

    def _doubtful(self, text: str, first: str, photo: PhotoVectors) -> bool:
        """Whether one of the words that an answer adds is doubtful."""
        words = split_words(text)
        added = set(content(words)) - set(split_words(first))
        without = [" ".join(word for word in words if word != left_out) for left_out in sorted(added)]
        fits = self.collection.retriever.embed_captions([" ".join(words), *without]) @ photo.embedding
        return bool((fits[1:] - fits[0] > self.config.doubt).any())


def unseen(caption: str, classes: frozenset[int]) -> bool:
    """Whether a caption names an object that is none of these.

    >>> unseen("a dog on a bench", frozenset({13}))  # COCO's bench
    True
    """
    (words,) = tokenize([caption])
    return any(one.sure and classes.isdisjoint(one.classes) for one in objects.mentions(words))


def objects_by(detector: Detector) -> Callable[[Sequence[str]], list[frozenset[int] | None]]:
    """What a detector perhaps sees in photos; of one that it cannot read, nothing is known."""

    def look(files: Sequence[str]) -> list[frozenset[int] | None]:
        found = detect(detector, list(files))
        seen = dict(zip(found.files, found.seen(objects.WEAK, detector.numbers_of(CLASSES)), strict=True))
        return [seen.get(file) for file in files]

    return look


def _once(candidates: Sequence[Candidate]) -> list[Candidate]:
    return list({one.text: one for one in reversed(candidates)}.values())[::-1]
