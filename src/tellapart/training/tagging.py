"""The run of a tagger: its words, what it sees of photos, its step, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capscore.errors import UserError
from capscore.words import content
from tellapart import models
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.examples import Example
from tellapart.data.media import photos
from tellapart.data.store import Array, Store
from tellapart.data.streams import REGIONS, Stream
from tellapart.data.tokenizers import WordTokenizer
from tellapart.distributed import ProcessGroup
from tellapart.encoders import ENCODERS, Published, weights_file
from tellapart.encoders.efficientnet_lite import STRIDE
from tellapart.encoders.encoder import read_weights
from tellapart.features.extracted import PHOTO_KEYS, EncodedRows, add_missing, encode_batches, safe_name
from tellapart.metrics.retrieval import average_precision, weighted_average_precision
from tellapart.models.parts import carry
from tellapart.objectives import StepInfo, StepResult
from tellapart.recipe import Recipe
from tellapart.rewards.context import text_retriever_of
from tellapart.taggers import TAGGERS
from tellapart.taggers.clip_tagger import ClipTagger
from tellapart.taggers.tagger import SPECIALS, Tagger, TaggerConfig, cropped, sentence_loss, tagging_loss
from tellapart.training.build import Parts, seed_everything
from tellapart.training.objectives import OBJECTIVES
from tellapart.training.preparation import Preparation, Selection, held_out, split, views, with_features

_BATCH = 64
ReadPhotos = Callable[
    [NDArray[np.int64], NDArray[np.float64] | None], Stream | Tensor
]  # photos, chance -> regions or pixels


class PixelStore(Store):
    """Photos as squares of bytes, decoded once: runs that train an encoder see every photo many times.

    pixels.u8    (rows, S, S, 3)
    rows.jsonl   a line per photo, as in a feature cache
    """

    def __init__(self, root: Path, dataset: str, size: int):
        """Opens the store of a data set below a features folder, or makes an empty one."""
        folder = root / f"{safe_name(dataset)}.pixels-{size}px"
        manifest = {"format": 1, "encoder": {"name": "pixels", "image_size": size}}
        super().__init__(folder, manifest, {"pixels": Array((size, size, 3), "u8")}, PHOTO_KEYS)

    def add(self, examples: Sequence[Example], size: int) -> dict[str, str]:
        """Decode what is missing; why photos failed, by id."""

        def make(batch: Sequence[photos.Photo]) -> EncodedRows:
            return EncodedRows([torch.from_numpy(np.stack([photo.pixels for photo in batch]))])

        extraction = partial(encode_batches, partial(photos.read, size=size), make)
        failed, _ = add_missing(self, examples, extraction, f"pixels of {self.folder.name}")
        return failed

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """(len(rows), S, S, 3)"""
        return self.read("pixels", rows)


@dataclass
class TaggedBatch:
    photos: NDArray[np.int64]  # (B,) positions in the data
    inputs: Stream | Tensor  # regions; or pixels (B, S, S, 3) where the encoder is tuned
    has: Tensor  # (B, W) 1 where a caption has the word

    def to(self, device: torch.device) -> TaggedBatch:
        return TaggedBatch(self.photos, self.inputs.to(device), self.has.to(device))


class TaggedPhotos:
    """Photos with the words of their captions."""

    def __init__(self, examples: Sequence[Example], tokenizer: WordTokenizer, read: ReadPhotos):
        self.examples, self._read = list(examples), read
        self.captions = [example.captions for example in examples]
        self.mentions = mentions(self.captions, tokenizer)  # (P, W)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(
        self,
        photos: NDArray[np.int64],
        chosen: Sequence[Sequence[int]] = (),
        chance: NDArray[np.float64] | None = None,
    ) -> TaggedBatch:
        """The photos with the words of all their captions, whichever were chosen."""
        has = torch.from_numpy(self.mentions[photos] > 0).float()
        return TaggedBatch(photos, self._read(photos, chance), has)


def frequent_words(captions: Iterable[str], most: int, min_count: int) -> WordTokenizer:
    """The most frequent content words."""
    words = content(WordTokenizer.build(captions, min_count).words[SPECIALS:])[:most]
    if not words:
        raise UserError(f"data.min_count: no content word of the training captions occurs {min_count} times.")
    return WordTokenizer(words)


def mentions(captions: Sequence[Sequence[str]], tokenizer: WordTokenizer) -> NDArray[np.int16]:
    """The number of captions of each photo that have each word, (P, W)."""
    counts = np.zeros((len(captions), len(tokenizer) - SPECIALS), np.int16)
    for row, of_photo in zip(counts, captions, strict=True):
        for text in of_photo:
            tokens = np.unique(np.array(tokenizer.encode(text), np.int64))
            row[tokens[tokens >= SPECIALS] - SPECIALS] += 1
    return counts


def tagger_parts(
    recipe: Recipe, prepared: Preparation, out: Path, resume: bool, device: torch.device, world: ProcessGroup
) -> Parts:
    settings, name = dict(recipe.model), OBJECTIVES[recipe.objective.name].network
    if name == "clip_tagger":
        encoder = recipe.streams[REGIONS]
        settings |= {"frames": encoder.frames or 1, "grid": encoder.grid, "around": encoder.around}
    tunes = int(settings.get("tuned_blocks", 0)) > 0
    examples, readers, regions, failed = (_pixels if tunes else _regions)(recipe, prepared, world)
    if resume:
        tokenizer = WordTokenizer.load(out)
    else:
        texts = (text for part in prepared.selections for example in part.training for text in example.captions)
        most = int(settings.get("words", 0) or TAGGERS[name].load()[1].words)
        tokenizer = frequent_words(texts, most, recipe.data.min_count)
    sizes = {"vocab_size": len(tokenizer), **models.stream_sizes(prepared.streams.feature_sizes)}
    if tunes:
        settings["variant"] = _tunable(recipe).variant
    weight = recipe.objective.sentence_weight
    retriever = text_retriever_of(recipe.objective.rewards, prepared.load) if weight else None
    if retriever is not None:
        settings["sentence_size"] = retriever.size
    seed_everything(recipe.seed)
    network = models.build(TAGGERS, "network", name, settings | sizes)
    assert isinstance(network, Tagger | ClipTagger)
    training, judged_by = (TaggedPhotos(*parts) for parts in zip(examples, [tokenizer] * 2, readers, strict=True))
    network.start_at(torch.from_numpy((training.mentions > 0).mean(0)), regions)
    if network.encoder is not None:
        network.encoder.load_state_dict(read_weights(weights_file(recipe.encoder.name, _tunable(recipe))))
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.to(device)
    if world.is_main:
        models.describe(out, name, network, tokenizer, prepared.streams.identities, "network")
        carry(prepared.streams.parts, out)

    step: Callable[[TaggedBatch, StepInfo], StepResult] = partial(_words, network)
    if retriever is not None:
        assert isinstance(network, Tagger)
        sentences = retriever.embed_references(training.captions).clone()  # (P, E)
        step = partial(_words_and_sentences, network, sentences, retriever.scale, weight)
    return Parts(network, step, partial(validate, network, judged_by, device), training, [*prepared.problems, *failed])


def _words(network: Tagger | ClipTagger, batch: TaggedBatch, info: StepInfo) -> StepResult:
    loss = tagging_loss(network(batch.inputs), batch.has)
    return StepResult(loss, float(len(batch.photos)), {"loss": loss.item()})


def _words_and_sentences(
    network: Tagger, sentences: Tensor, scale: float, weight: float, batch: TaggedBatch, info: StepInfo
) -> StepResult:
    """Words, and the photo's captions found among those of all training photos, `sentences` (P, E)."""
    rows, photos = network.rows(batch.inputs), torch.from_numpy(batch.photos).to(sentences.device)
    words = tagging_loss(network.words(rows), batch.has)
    whole = sentence_loss(network.sentences(rows), sentences, photos, scale)
    log = {"loss": words.item(), "sentences": whole.item()}
    return StepResult(words + weight * whole, float(len(batch.photos)), log)


_Read = tuple[tuple[list[Example], list[Example]], tuple[ReadPhotos, ReadPhotos], int, list[str]]
# of training and validation: examples, readers of photos; then R, and the problems


def _regions(recipe: Recipe, prepared: Preparation, world: ProcessGroup) -> _Read:
    """Stored features."""
    if list(prepared.streams) != [REGIONS]:
        raise UserError("inputs: a tagger takes the stream regions alone.")
    root = Path(recipe.data.features)
    sources, failed = with_features(prepared.selections, prepared.streams, root, world)
    parts = (
        split(sources, recipe.data.train_split, recipe.data.limit),
        split(sources, recipe.data.val_split, held_out(recipe)),
    )
    nothing = WordTokenizer([])  # captions are not read here
    others = views(recipe.data.views, prepared.streams, root, prepared.selections, parts[0], world)
    training = CaptionedPhotos(parts[0], nothing, 1, others)
    judged_by = CaptionedPhotos(parts[1], nothing, 1)

    def of(data: CaptionedPhotos) -> ReadPhotos:
        return lambda photos, chance: data.inputs(photos, chance)[REGIONS]

    most = max(stores[REGIONS].shape[0] for stores, _ in sources)
    return (training.examples, judged_by.examples), (of(training), of(judged_by)), most, failed


def _pixels(recipe: Recipe, prepared: Preparation, world: ProcessGroup) -> _Read:
    """Photos themselves, from which a part is cut whenever they are learned from."""
    _tunable(recipe)
    size, least = recipe.encoder.image_size, float(recipe.model.get("crop", TaggerConfig.crop))
    side = int(recipe.model.get("crop_size", 0)) or size
    stores, failed = list[PixelStore](), list[str]()
    for selection in prepared.selections:
        store = PixelStore(Path(recipe.data.features), selection.name, size)
        missing = world.sequentially(partial(store.add, [*selection.training, *selection.held_out], size))
        failed += [f"{selection.file}: image {id_}: {reason}" for id_, reason in missing.items()]
        stores.append(PixelStore(Path(recipe.data.features), selection.name, size))  # with another process's rows

    def of(chosen: Callable[[Selection], list[Example]], crops: bool) -> tuple[list[Example], ReadPhotos]:
        usable = [
            (number, example)
            for number, (one, store) in enumerate(zip(prepared.selections, stores, strict=True))
            for example in chosen(one)
            if str(example.id) in store.lines
        ]
        if not usable:
            raise UserError("no photo of the training or of the validation split can be read.")
        source = np.array([number for number, _ in usable])
        rows = np.array([stores[number].row_of(str(example.id)) for number, example in usable])

        def read(photos: NDArray[np.int64], chance: NDArray[np.float64] | None) -> Tensor:
            pixels = torch.empty(len(photos), size, size, 3, dtype=torch.uint8)
            for number, store in enumerate(stores):
                here = np.flatnonzero(source[photos] == number)
                if len(here):
                    pixels[here] = store.of(rows[photos[here]])
            return cropped(pixels, chance.tolist(), least, side) if crops and chance is not None else pixels

        return [example for _, example in usable], read

    training, judged_by = of(lambda part: part.training, True), of(lambda part: part.held_out, False)
    cells = (-(-side // STRIDE)) ** 2
    return (training[0], judged_by[0]), (training[1], judged_by[1]), cells, failed


def _tunable(recipe: Recipe) -> Published:
    entry = ENCODERS.get(recipe.encoder.name)
    if not isinstance(entry, Published) or recipe.inputs:
        names = ", ".join(name for name, one in ENCODERS.items() if isinstance(one, Published))
        raise UserError(f"model.tuned_blocks: the encoders that can be tuned are {names}.")
    return entry


@torch.inference_mode()
def validate(network: Tagger | ClipTagger, data: TaggedPhotos, device: torch.device) -> dict[str, float]:
    """Mean average precision over the words that held-out photos have: plain, and as Fang et al. weigh it."""
    probability, loss = [], 0.0
    for start in range(0, len(data), _BATCH):
        batch = data.batch(np.arange(start, min(start + _BATCH, len(data)))).to(device)
        absent = network(batch.inputs)
        loss += float(tagging_loss(absent, batch.has)) * len(batch.photos)
        probability.append(-torch.expm1(-absent.double()).cpu())
    scores = torch.cat(probability).numpy()
    captions = max(map(len, data.captions))
    return {
        "mAP": float(np.nanmean(average_precision(scores, data.mentions > 0))),
        "mAP[Fang]": float(np.nanmean(weighted_average_precision(scores, data.mentions, captions))),
        "loss": loss / len(data),
    }
