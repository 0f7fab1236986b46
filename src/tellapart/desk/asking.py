"""Captions of models that can be asked: a server, or a vision-language model on this machine.

`Asking` asks for captions of each photo.  `ContrastPrompt` shows a model what to tell apart: it asks for a caption of
each photo first; a photo whose first caption is another's too, or finds another photo at least as well, is shown again,
with the photos that it is confused with, and their captions.  The answers are candidates beside the first caption,
unless they are long, name an object that a detector does not see, or add a word without which the retriever finds the
photo more like them: asked for differences, models invent some.  Re-ranking chooses among them: an answer that does not
help is not used.

Wrappers give captions a style (`styled`) and a language (`translated`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from capscore.errors import UserError
from capscore.objects import CLASSES, mentions
from capscore.tokenize import tokenize
from capscore.words import NEVER_LAST, content
from tellapart.captioning.captioner import BATCH, PhotoCaptioner
from tellapart.captioning.pipeline import CaptionSource, Context
from tellapart.captioning.rerank import Scene
from tellapart.data.captions import PROMPT, Candidate, Caption, Proposed
from tellapart.data.media import photos as media
from tellapart.data.tokenizers import split_words
from tellapart.decoding.rules import Search
from tellapart.desk.chatter import LONGEST_ALT, caption_in, is_refusal, whole_sentences
from tellapart.desk.endpoint import SHEET_PROMPT, Endpoint, Question, contact_sheet
from tellapart.detectors.detector import Detector, detect
from tellapart.errors import BadPhoto
from tellapart.metrics.objects import WEAK
from tellapart.parallel import batched

Style = Literal["caption", "alt", "tags"]
MOST_TAGS = 10
_BATCH = 128  # photos that get a first caption before any is shown again: what a kill can cost
_TRANSLATED_TOGETHER = 16

PROMPTS: dict[Style, str] = {
    "caption": PROMPT,
    "alt": "Write alternative text for this photo, for people who cannot see it: one plain sentence of at most "
    f'{LONGEST_ALT} characters that says what can be seen, without "photo of" or "image of". Answer with the sentence '
    "only.",
    "tags": f"List 5 to {MOST_TAGS} tags for this photo: single words or short names of what can be seen, in lower "
    "case, on one line, separated by commas. Answer with the tags only.",
}
CONTRAST_PROMPT = (
    "The first photo is easily taken for the {count} after it. A caption of the first photo that does not tell them "
    'apart: "{caption}" {others}Write one plain sentence that is true of the first photo and of none of the others: '
    "name what only the first one shows. Say nothing that cannot be seen there. Use at most 20 words. Answer with the "
    "sentence only."
)
CONTRAST_PROMPTS: dict[Style, str] = {
    "caption": CONTRAST_PROMPT,
    "alt": CONTRAST_PROMPT.replace("Use at most 20 words.", f"Use at most {LONGEST_ALT} characters."),
    "tags": "The first photo is easily taken for the {count} after it. Tags of the first photo that do not tell them "
    f'apart: "{{caption}}" {{others}}List 5 to {MOST_TAGS} tags, in lower case, on one line, separated by commas, that '
    "are true of the first photo: first those that only the first one shows. Answer with the tags only.",
}
_TRANSLATE = 'Translate this caption of the photo into {language}: "{caption}" Answer with the translation only.'


Ask = Callable[[Iterable[Question]], Iterator[Proposed]]  # answers to each question, in order


def model_asked(captioner: PhotoCaptioner, search: Search) -> Ask | None:
    """Puts questions to a vision-language model on this machine, as a server gets them; none: it cannot be asked."""
    answer: Callable[..., list[str]] | None = getattr(captioner.model.captioner, "answer", None)
    if answer is None:
        return None

    def ask(questions: Iterable[Question]) -> Iterator[Proposed]:
        for batch in batched(questions, BATCH):
            if any(question.prompt for question in batch):
                yield from map(answered, batch)
            else:
                yield from captioner.propose([question.file for question in batch], search)

    def answered(question: Question) -> Proposed:
        try:
            pictures, hashes = zip(*map(media.upright, (question.file, *question.beside)), strict=True)
        except BadPhoto as error:
            return Proposed(question.file, error=error.reason)
        picture = contact_sheet(pictures) if question.beside else pictures[0]
        prompt = (SHEET_PROMPT if question.beside else "") + question.prompt
        texts = answer(picture, prompt, max(question.answers, 1), int(hashes[0][:15], 16))
        captions = [caption_in(text) for text in texts if not is_refusal(text)]
        return Proposed(question.file, [Candidate(text) for text in captions if text], sha256=hashes[0])

    return ask


@dataclass(frozen=True)
class Asking:
    """Asks for captions of each photo, with the known facts of it where there are any; a `Proposer`."""

    ask: Ask
    identity: str
    context: Context | None = None
    prompt: str = PROMPT  # to which the context is added
    answers: int = 0  # 0: as many as the server is set to give

    def propose(self, photos: Iterable[Any], scene: Scene | None) -> Iterator[Proposed]:
        return self.ask(in_context(Question(file, answers=self.answers), self.prompt, self.context) for file in photos)


def in_context(question: Question, prompt: str, context: Any) -> Question:
    """The question, with the known facts of its photo.  prompt: of a question that has none"""
    if context is None:
        return question
    return replace(question, prompt=context.prompt(question.prompt or prompt, question.file))


# A model that is shown what to tell apart


@dataclass(frozen=True)
class ContrastConfig:
    prompt: str = CONTRAST_PROMPT  # {caption}, {count} and {others} stand for what is known of the photos
    answers: int = 3  # of the second question: the likeliest, the others by sampling
    images: int = 4  # of a request, the photo itself included
    longest: int = 25  # words of an answer
    # By how much the cosine may rise when a word is left out.  By the embedded retriever on the album's references,
    # above it are 7 % of the words, and 52 % of words that were put at random in the place of one.
    doubt: float = 0.03

    def __post_init__(self) -> None:
        if self.images < 2:
            raise UserError(f"--images {self.images}: a photo must be shown beside at least one other.")


@dataclass(frozen=True)
class ContrastPrompt:
    """Shows a model the photos that a first caption is confused with; a `Proposer`.

    session       opens what asks the model, for one run over photos
    made_by       everything that the answers depend on
    objects_in    photos -> for each the classes of COCO that may be in it, by number; none: answers are not checked
    first_prompt  of the first question, where it is asked with the known facts of the photo
    """

    session: Callable[[], AbstractContextManager[Ask]]
    made_by: str
    config: ContrastConfig = field(default_factory=ContrastConfig)
    objects_in: Callable[[Sequence[str]], Sequence[frozenset[int] | None]] | None = None
    context: Context | None = None
    first_prompt: str = PROMPT

    @property
    def identity(self) -> str:
        return f"{self.made_by} {astuple(self.config)}"

    def propose(self, photos: Iterable[Any], scene: Scene | None) -> Iterator[Proposed]:
        if scene is None:
            raise UserError("--contrast prompt needs --among, the collection that photos are told apart from.")
        hashes = scene.collection.photos.sha256
        with self.session() as ask:
            for batch in batched(photos, _BATCH):
                first = list(ask([in_context(Question(file), self.first_prompt, self.context) for file in batch]))
                # Of each photo, by its hash: its caption if it has one already, else its first.  A run that continues
                # another one so asks what that would have asked.
                texts = {hashes[place]: caption.text for place, caption in scene.so_far.captions.items()}
                texts |= {answer.sha256: answer.candidates[0].text for answer in first if answer.candidates}
                yield from self._shown_again(ask, first, texts, scene)

    def _shown_again(
        self, ask: Ask, first: list[Proposed], texts: Mapping[str, str], scene: Scene
    ) -> Iterator[Proposed]:
        """The first captions, with the answers to second questions where one is asked.  texts: by hash"""
        places = [i for i, answer in enumerate(first) if answer.candidates and answer.sha256 in scene]
        confused = zip(places, self._confused([first[i] for i in places], texts, scene), strict=True)
        questions = {i: self._question(first[i], others, texts, scene) for i, others in confused if others}
        second = dict(zip(questions, ask(list(questions.values())) if questions else (), strict=True))
        for i, answer in enumerate(first):
            candidates = {candidate.text: candidate for candidate in answer.candidates[:1]}
            if i in second and second[i].may_pass:  # the next run may tell it apart
                yield Proposed(answer.file, error=second[i].error)
                continue
            for candidate in self._usable(answer, second[i].candidates, scene) if i in second else ():
                candidates.setdefault(candidate.text, candidate)
            yield replace(answer, candidates=list(candidates.values()))

    def _confused(self, first: Sequence[Proposed], texts: Mapping[str, str], scene: Scene) -> list[list[int]]:
        """The places in the collection of the photos that each is confused with, the worst first; none: it is not."""
        if not first:
            return []
        collection = scene.collection
        hashes = [answer.sha256 for answer in first]
        photos, features = scene.vectors(hashes)
        others = collection.others(hashes, collection.near_duplicates(hashes, features))
        alike = collection.look_alikes(photos, others, self.config.images)
        embedded = collection.retriever.embed_captions([answer.candidates[0].text for answer in first])
        by_caption: dict[tuple[str, ...], list[int]] = {}
        for place, sha256 in enumerate(collection.photos.sha256):
            if sha256 in texts:
                by_caption.setdefault(tuple(split_words(texts[sha256])), []).append(place)
        similar = photos @ collection.vectors.T  # (B, P)
        confused = []
        for i, answer in enumerate(first):
            fits = collection.retriever.similarity(embedded[i : i + 1], collection.vectors)[0]  # (P,)
            better = (fits >= (embedded[i] * photos[i]).sum()) & others[i]
            ahead = sorted(better.nonzero()[:, 0].tolist(), key=(-fits).tolist().__getitem__)
            words = tuple(split_words(answer.candidates[0].text))
            same = [place for place in by_caption.get(words, []) if others[i, place]]
            same.sort(key=(-similar[i]).tolist().__getitem__)
            more = alike[i] if same or ahead else []
            confused.append(list(dict.fromkeys([*same, *ahead, *more]))[: self.config.images - 1])
        return confused

    def _question(self, first: Proposed, places: Sequence[int], texts: Mapping[str, str], scene: Scene) -> Question:
        photos = scene.collection.photos
        captions = [texts.get(photos.sha256[place], "") for place in places]
        listed = " ".join(f'{number}. "{text}"' for number, text in enumerate(captions, 2) if text)
        values = {
            "{caption}": first.candidates[0].text,
            "{count}": str(len(places)),
            "{others}": f"Captions of the others: {listed} " if listed else "",
        }
        prompt = self.config.prompt
        for name, value in values.items():
            prompt = prompt.replace(name, value)
        beside = tuple(photos.files[place] for place in places)
        return in_context(Question(first.file, beside, prompt, self.config.answers), "", self.context)

    def _usable(self, first: Proposed, answers: Sequence[Candidate], scene: Scene) -> list[Candidate]:
        """The answers that are short and, as far as is known, true."""
        short = [answer for answer in answers if len(split_words(answer.text)) <= self.config.longest]
        classes = self.objects_in([first.file])[0] if self.objects_in is not None and short else None
        true = [answer for answer in short if classes is None or not names_unseen(answer.text, classes)]
        (photo,), _ = scene.vectors([first.sha256])
        return [answer for answer in true if not self._doubtful(answer.text, first.candidates[0].text, photo, scene)]

    def _doubtful(self, text: str, first: str, photo: Tensor, scene: Scene) -> bool:
        """True if one of the words that an answer adds is doubtful."""
        words = split_words(text)
        added = set(content(words)) - set(split_words(first))
        without = [" ".join(word for word in words if word != left_out) for left_out in sorted(added)]
        fits = scene.collection.retriever.embed_captions([" ".join(words), *without]) @ photo
        return bool((fits[1:] - fits[0] > self.config.doubt).any())


def names_unseen(caption: str, classes: frozenset[int]) -> bool:
    """True if a caption names an object that is none of these.

    >>> names_unseen("a dog on a bench", frozenset({13}))  # COCO's bench
    True
    """
    (words,) = tokenize([caption])
    return any(mention.sure and classes.isdisjoint(mention.classes) for mention in mentions(words))


def objects_by(detector: Detector, photos: Sequence[str]) -> list[frozenset[int] | None]:
    """Classes that a detector perhaps sees in photos; of one that it cannot read, nothing is known."""
    detected = detect(detector, list(photos))
    classes = dict(zip(detected.files, detected.classes_above(WEAK, detector.numbers_of(CLASSES)), strict=True))
    return [classes.get(file) for file in photos]


def contrast_prompt(
    source: Endpoint | PhotoCaptioner,
    config: ContrastConfig,
    *,
    search: Search | None = None,
    detector: Detector | None = None,
    context: Context | None = None,
    prompt: str = PROMPT,
) -> ContrastPrompt:
    """A server or vision-language model that is shown what to tell apart.

    detector  checks answers
    prompt    of the first question, where there is context
    """
    session: Callable[[], AbstractContextManager[Ask]]
    if isinstance(source, Endpoint):
        server = replace(source, candidates=1)
        session, made_by, prompt = server.session, f"{server.identity} {server.sheet}", server.prompt
    else:
        search = Search() if search is None else search
        ask, made_by = model_asked(source, search), f"{source.identity} {search}"
        if ask is None:
            raise UserError("--contrast prompt needs a vision-language model that answers questions, or a server.")
        session = partial(_opened, ask)
    made_by += "" if detector is None else f" {detector.sha256}"
    objects_in = None if detector is None else partial(objects_by, detector)
    return ContrastPrompt(session, made_by, config, objects_in, context, prompt)


def _opened(ask: Ask) -> AbstractContextManager[Ask]:
    return nullcontext(ask)


# Styles and languages


def styled(source: CaptionSource, style: Style) -> CaptionSource:
    """Captions in that style, from any source."""

    def captions(photos: Iterable[Any]) -> Iterator[Caption]:
        for caption in source.caption(photos):
            text = finished(caption.text, style)
            error = "" if text else "no caption was generated"
            yield caption if caption.error else replace(caption, text=text, error=error)

    return replace(source, caption=captions, identity=f"{source.identity} style={style}")


def translated(source: CaptionSource, ask: Ask, language: str) -> CaptionSource:
    """Captions that were chosen in English, in another language: retrievers read English only."""
    prompt = _TRANSLATE.replace("{language}", checked(language))

    def captions(photos: Iterable[Any]) -> Iterator[Caption]:
        translations: dict[str, str] = {}  # copies of a photo share the translation too
        for batch in batched(source.caption(photos), _TRANSLATED_TOGETHER):
            new: dict[str, str] = {}  # caption -> the first photo that has it
            for caption in batch:
                if not caption.error and caption.text not in translations:
                    new.setdefault(caption.text, caption.file)
            prompts = {text: prompt.replace("{caption}", text) for text in new}
            questions = [Question(file, prompt=prompts[text], answers=1) for text, file in new.items()]
            reasons = {}
            for text, answer in zip(new, ask(questions) if questions else (), strict=True):
                if answer.candidates:
                    translations[text] = answer.candidates[0].text
                reasons[text] = answer.error
            for caption in batch:
                if caption.error:
                    yield caption
                elif caption.text in translations:
                    yield replace(caption, text=translations[caption.text])
                else:
                    reason = reasons.get(caption.text) or "no translation was generated"
                    yield Caption(caption.file, error=reason)

    return replace(source, caption=captions, identity=f"{source.identity} language={language}")


def in_language(prompt: str, language: str) -> str:
    """A prompt whose answer is in that language."""
    return f"{prompt} Write it in {checked(language)}."


def checked(language: str) -> str:
    if not re.fullmatch(r"[^\W\d_][^\W_]*(?:[ -][^\W_]+){0,4}", language) or len(language) > 40:
        raise UserError(f"--language {language!r}: name a language, such as German or pt-BR.")
    return language


def finished(caption: str, style: Style) -> str:
    """
    >>> finished("The image shows a dog on a beach.", "alt")
    'A dog on a beach.'
    >>> finished("a dog on the beach", "tags")
    'dog, beach'
    """
    if style == "alt":
        return _short(caption_in(caption))
    if style == "tags":
        parts = re.split(r"[,;\n]", caption) if re.search(r"[,;\n]", caption) else content(split_words(caption))
        tags = (re.sub(r"^[\W_]+|[\W_]+$", "", part).lower() for part in parts)
        return ", ".join(list(dict.fromkeys(tag for tag in tags if tag))[:MOST_TAGS])
    return caption


def _short(text: str) -> str:
    """Whole sentences if one fits, else whole words that a text can end with."""
    if len(text) <= LONGEST_ALT:
        return text
    if sentences := whole_sentences(text[: LONGEST_ALT + 1]).strip():
        return sentences[:LONGEST_ALT]
    words = text[: LONGEST_ALT + 1].rpartition(" ")[0].split() or [text[:LONGEST_ALT]]
    while len(words) > 1 and words[-1].lower() in NEVER_LAST:
        words.pop()
    return " ".join(words).rstrip(",;:")
