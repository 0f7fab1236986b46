"""`tellapart.adapt`: discriminative fine-tuning from photos alone (DiscriTune), kept only if it helps.

In the folder `out`, while it works: work/ with the captioner before, the run, features and captions, so that a call
that was killed continues where it stopped.  In the end adapt.json and report.html; and the model, if it is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from capscore import files
from capscore.errors import UserError
from capscore.objects import CLASSES
from tellapart import journals, models, recipe_files
from tellapart.adapting import photos as photo_files
from tellapart.adapting import verdict
from tellapart.adapting.photos import HELD_OUT, TRAIN, Name, Photos
from tellapart.adapting.verdict import Check
from tellapart.album import DEFAULT
from tellapart.captioners.vision_language import Generates
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.data import examples as data_files
from tellapart.data.examples import DataSet
from tellapart.data.streams import REGIONS
from tellapart.data.tokenizers import WordTokenizer
from tellapart.detectors import load as load_detector
from tellapart.detectors.detector import Detector
from tellapart.evaluation.captions import Captioners
from tellapart.evaluation.evaluate import REPORT as REPORT
from tellapart.evaluation.evaluate import Evaluation, grid_of
from tellapart.evaluation.grid import embed
from tellapart.evaluation.models import Model, Split
from tellapart.features.sources import Encoded, Sources, regions_of
from tellapart.models import VISION_LANGUAGE
from tellapart.models.retrievers import load as load_retriever
from tellapart.recipe import EncoderConfig, LoraConfig, Recipe
from tellapart.retrievers import DEFAULT as RETRIEVER
from tellapart.rewards.preference import LEAST, Decision, learn
from tellapart.training import build, run_folder
from tellapart.training.loop import Position
from tellapart.training.preparation import check, select, sources_of, split, views, with_features

RECIPE = "discritune/adapt"
JUDGE = "judge"
OUTCOME = "adapt.json"
MINUTES = 15.0
LARGE = 100_000_000  # weights, above which a captioner learns by LoRA

_BEFORE, _AFTER = "before", "after"  # the rows of the report, and folders of work/
_PREFERENCES = "preferences.json"  # a file of work/
_FORMAT = 1
_FIRST = 32  # photos whose features predict the time of all
_FEATURES = 0.3  # share of the time that features may take
_REPORT = 4.0  # seconds that loading, figures and page take for each that it took to load the models at first
_LEAST_REPORT = 20.0
_RANK = 8  # of LoRA
_TOKENS = 20  # of a caption, where they are parts of words
_SHOWN = 6  # examples at the top of the report


@dataclass(frozen=True)
class Adapted:
    """Result of `adapt`.

    folder    with the report; a model folder if `kept`
    checks    what had to hold for the model to be kept
    scores    {before, after: {measure: value}} on the photos held out
    problems  a sentence for each photo that could not be used
    """

    folder: Path
    checks: list[Check]
    scores: dict[str, dict[str, float]]
    problems: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = field(default=None, repr=False)  # none if all was done before
    feedback: str = ""  # whether it was used, in a sentence

    @property
    def kept(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def summary(self) -> str:
        """A sentence: the model is kept, or which guards object and by how much."""
        if self.kept:
            return f"The adapted model is kept: {self.checks[0].sentence}, and all guards hold."
        failed = "; ".join(check.sentence for check in self.checks if not check.passed)
        return f"The model is not kept: {failed}."

    def captioner(self, *, device: str = "auto") -> PhotoCaptioner:
        if not self.kept:
            raise UserError(f"{self.folder} holds no model: it was not kept.")
        return load(self.folder, device=device)


def adapt(
    photos: Name | Sequence[Name],
    *,
    model: Name | PhotoCaptioner = DEFAULT,
    retriever: Name = RETRIEVER,
    judge: Name = JUDGE,
    out: Name = "runs/adapted",
    minutes: float = MINUTES,
    detector: Name | None = None,
    device: str = "auto",
    feedback: Sequence[Decision] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Adapted:
    """Fine-tune a captioner on photos without captions, and keep it only if the judge and the guards agree.

    photos     a folder, or photos; of a data file the captions are not read
    model      the captioner to start from
    retriever  has to find the photos by their captions: that is the reward
    judge      another retriever, which decides whether the model is kept
    minutes    for everything: features, training, the report
    detector   a YOLOX .onnx of COCO's classes, or a DETR; captions must not name more objects that it does not see
    feedback   decisions of people about captions (`tellapart.desk.feedback.read` has those of a captions file or a
               study): what they prefer is rewarded too, if decisions about some photos predict those about others
    overrides  fields of the recipe discritune/adapt

    Example:
        >>> adapted = tellapart.adapt("holiday/", out="runs/holiday", minutes=15)  # doctest: +SKIP
        >>> print(adapted.summary)  # doctest: +SKIP
        The adapted model is kept: the judge finds ...
    """
    retrievers, detector = [os.fspath(retriever), os.fspath(judge)], os.fspath(detector or "")
    decisions, recipe_fields = list(feedback), dict(overrides or {})
    adapting = _Adapting(Path(out), minutes, model, retrievers, detector, device, decisions, overrides=recipe_fields)
    return adapting.run(photos)


@dataclass
class _Adapting:
    """One call: what it works with, and until when."""

    out: Path
    minutes: float
    model: Name | PhotoCaptioner
    retriever_names: list[str]  # of the one that rewards, and of the judge
    detector_file: str
    device: str
    decisions: list[Decision]
    overrides: dict[str, Any]

    def __post_init__(self) -> None:
        began = time.monotonic()
        self.work, self.deadline = self.out / "work", began + 60 * self.minutes
        if 0 < len(self.decisions) < LEAST:
            raise UserError(f"feedback: these are {len(self.decisions)} decisions; {LEAST} are needed.")
        self.preference = learn(self.decisions) if self.decisions else None
        self.retrievers = [load_retriever(name, device=self.device) for name in self.retriever_names]
        rewards, judge = self.retrievers
        if rewards.sees != "photos":
            raise UserError(f"--retriever {rewards.name}: it compares with captions by people, and here are none.")
        if rewards.sha256 == judge.sha256:
            raise UserError(
                f"--retriever {rewards.name}: the judge decides whether the model is kept; it cannot reward it."
            )
        if isinstance(self.model, PhotoCaptioner):
            self.captioner = self.model
        else:
            self.captioner = load(os.fspath(self.model), device=self.device, detector=self.detector_file or None)
        if isinstance(self.captioner.model.captioner, Generates):
            raise UserError("this model can only be asked by transformers' generate, and cannot be trained.")
        if not isinstance(self.captioner.model.captioner, torch.nn.Module):
            raise UserError("adapt: only a single captioner can be trained: not an ensemble.")
        assert self.captioner.encoder  # refuses captioners of imported features
        self.report = max(_LEAST_REPORT, _REPORT * (time.monotonic() - began))
        self.detector: Detector | None = load_detector(self.detector_file, CLASSES) if self.detector_file else None

    def run(self, named: Name | Sequence[Name]) -> Adapted:
        where = os.fspath(named) if isinstance(named, str | os.PathLike) else "the photos"
        photos = photo_files.find(named)
        photo_files.require_enough(len(photos.of(TRAIN)), len(photos.of(HELD_OUT)), where)
        is_new = not self.out.exists()
        request = self._request(photos)
        if (done := _claim(self.out, request)) is not None:
            return done
        with journals.held(self.work, "another process adapts a model in this folder."):
            files.replace(self.out / OUTCOME, _json({"format": _FORMAT, "request": request}))
            try:
                recipe, usable, problems = self._prepare(photos, where)
            except UserError:  # nothing of a call that could not begin stays
                shutil.rmtree(self.work)
                (self.out / OUTCOME).unlink(missing_ok=True)
                if is_new:
                    with suppress(OSError):
                        self.out.rmdir()
                raise
            adapted = self._finish(usable, problems, self._train(recipe, usable))
        shutil.rmtree(self.work)
        return adapted

    def _request(self, photos: Photos) -> dict[str, Any]:
        """Everything that makes another call another adaptation."""
        return {
            "photos": hashlib.sha256(" ".join(sorted(photos.hashes)).encode()).hexdigest(),
            "model": self.captioner.model.sha256,
            "retrievers": [retriever.sha256 for retriever in self.retrievers],
            "detector": self.detector.sha256 if self.detector else "",
            "overrides": json.loads(json.dumps(self.overrides)),
            **({"feedback": hashlib.sha256(repr(self.decisions).encode()).hexdigest()} if self.decisions else {}),
        }

    def _prepare(self, photos: Photos, where: str) -> tuple[Recipe, Photos, list[str]]:
        """The recipe, and features of as many photos as the time allows."""
        self.captioner.save_pretrained(self.work / _BEFORE)
        if self.preference:
            self.preference.save(self.work / _PREFERENCES)
        if self.captioner.model.encoder is not None:  # whose features are known by the files that it was read from
            self.captioner = load(self.work / _BEFORE, device=str(self.captioner.device))
        features = self.work / "features"
        features.mkdir(parents=True, exist_ok=True)
        plan = self.work / "photos.json"
        if files.is_file(plan):
            most = int(files.read_json(plan)["most"])
        else:
            began = time.monotonic()
            self._features(photos.some(_FIRST))
            each = (time.monotonic() - began) / _FIRST
            most = max(2 * photo_files.LEAST_TRAINING, int(_FEATURES * 60 * self.minutes / max(each, 1e-6)))
            files.replace(plan, _json({"most": most}))
        subset = photos.some(most)
        recipe, failed = self._features(subset)
        usable = replace(subset, examples=[example for example in subset.examples if str(example.id) not in failed])
        photo_files.require_enough(len(usable.of(TRAIN)), len(usable.of(HELD_OUT)), where)
        problems = [*photos.problems, *(f"{file}: {reason}" for file, reason in failed.values())]
        return recipe, usable, problems

    def _features(self, photos: Photos) -> tuple[Recipe, dict[str, tuple[str, str]]]:
        """Makes the features that the captioner needs; returns the recipe, and by id the photos that have none."""
        data = self.work / "data.json"
        files.refuse_link(data)
        data_files.write(DataSet(photos.name, photos.examples), data)
        recipe = self._recipe(photos, data)
        encoder = self.captioner.model.encoder
        streams = (
            Sources({REGIONS: Encoded(encoder)}) if encoder is not None else sources_of(recipe, self.captioner.device)
        )
        every = replace(recipe, validation=replace(recipe.validation, photos=0))
        chosen, _ = select(every, takes=streams.takes)
        root = Path(recipe.data.features)
        sources, problems = with_features(chosen, streams, root)
        if any(example.split == TRAIN for _, examples in sources for example in examples):
            # now, so that the training need not wait for them
            views(recipe.data.views, streams, root, chosen, split(sources, TRAIN, 0))
        usable = {str(example.id) for _, examples in sources for example in examples}
        reasons = {
            problem.split(": image ", 1)[-1].partition(": ")[0]: problem.rsplit(": ", 1)[-1] for problem in problems
        }
        lost = {str(example.id): str(example.file) for example in photos.examples if str(example.id) not in usable}
        return recipe, {id: (file, reasons.get(id, "cannot be read")) for id, file in lost.items()}

    def _recipe(self, photos: Photos, data: Path) -> Recipe:
        model = self.captioner.model
        if model.encoder is None:
            config = models.read_config(self.work / _BEFORE, "captioner")
        else:
            config = models.Config(VISION_LANGUAGE, {}, {})
        inputs = {name: regions_of(identity)[0] for name, identity in config.inputs.items()}
        names = [part.name for part in fields(EncoderConfig)]
        encoders = {
            stream: EncoderConfig(**{name: identity[name] for name in names if name in identity})
            for stream, identity in inputs.items()
        }
        recipe = recipe_files.filled(Recipe(), recipe_files.read(RECIPE).content)
        for name, value in self.overrides.items():
            recipe = recipe_files.with_value(recipe, name, value)
        language: Any = getattr(model.captioner, "language", model.captioner)
        is_large = sum(tensor.numel() for tensor in models.own_weights(language).values()) > LARGE
        # As stated; else beside the layers of a large model, of which only small parts are then trained.
        lora = LoraConfig(rank=_RANK) if is_large and not recipe.lora.rank else recipe.lora
        rewards = replace(recipe.objective.rewards, image_retriever=self.retriever_names[0])
        if self.preference:
            rewards.weights = {"preference": 1.0} | rewards.weights
            rewards.preferences = str(self.work / _PREFERENCES)
        recipe = replace(
            recipe,
            captioner=config.name,
            model={key: value for key, value in config.settings.items() if not models.is_size(key)},
            inputs=encoders,
            init_from=str(self.work / _BEFORE),
            lora=lora,
            data=replace(
                recipe.data,
                files=[str(data)],
                features=str(self.work / "features"),
                views=0
                if model.encoder or any(encoder.detected for encoder in encoders.values())
                else recipe.data.views,
                max_words=max(recipe.data.max_words, 0 if isinstance(model.tokenizer, WordTokenizer) else _TOKENS),
            ),
            objective=replace(recipe.objective, rewards=rewards),
            batch_size=min(recipe.batch_size, len(photos.of(TRAIN))),
            device=str(self.captioner.device),
            detector=self.detector_file,
        )
        check(recipe)
        return recipe

    def _train(self, recipe: Recipe, photos: Photos) -> Position:
        """Until its steps are done, or only the time is left that captions and report take."""
        embed(self.retrievers, _split(photos))  # kept as well
        began = time.monotonic()
        before = Model(str(self.work / _BEFORE), _BEFORE, "captioner")
        self._captioners().captions_of(before, _split(photos))  # kept for the report
        captions = time.monotonic() - began
        left = (self.deadline - time.monotonic() - 1.5 * captions - self.report) / 60
        run = self.work / _AFTER
        if files.is_file(run / "recipe.yaml"):  # a run may get longer, not shorter
            left = max(left, float(recipe_files.read_yaml(run / "recipe.yaml").get("max_minutes", 0)))
        return build.run(replace(recipe, max_minutes=max(left, 0.05)), run, resume=True).position

    def _captioners(self) -> Captioners:
        data, device, detector = [str(self.work / "data.json")], str(self.captioner.device), self.detector_file or None
        return Captioners(self.work / "captions", device, self.work / "features", data, detector)

    def _finish(self, photos: Photos, problems: list[str], position: Position) -> Adapted:
        """Compare before and after on the photos held out, write the report, and keep the model or not."""
        named = [Model(str(self.work / name), name, "captioner") for name in (_BEFORE, _AFTER)]
        captioners = self._captioners()
        grid, more = grid_of(
            _split(photos), named, captioners, self.retrievers, None, against=_BEFORE, detector=self.detector
        )
        assert grid is not None  # both have captions of all of them
        grid.skipped["TT"] = "text to text, which people win, compares with captions by people, and none were read."
        for row in grid.rows.values():
            verdict.add_unidiomatic(row, grid.measured, len(grid.split.photos))
            if self.preference:
                verdict.add_preference(row, grid.measured, len(grid.split.photos), self.preference)
        _, logged, _ = run_folder.curves(self.work / _AFTER / "log.jsonl")
        kl = logged["kl"][-1][1] if "kl" in logged else 0.0
        checks = verdict.checks(grid, _AFTER, judge=self.retrievers[1].name, kl=kl)
        evaluation = Evaluation([grid], named, [*problems, *more], captioners.word_regions)
        adapted = Adapted(self.out, checks, grid.scores, evaluation.problems, evaluation, self._learned())
        trained = f"{position.step} steps on {len(photos.of(TRAIN))} photos, {len(grid.measured)} held out"
        evaluation.write_report(
            self.out, title=f"Adapted to {photos.name}", subtitle=f"{adapted.summary} {trained}.", first=_SHOWN
        )
        if adapted.kept:
            scores = grid.scores[_AFTER].items()
            figures = {
                name: score for name, score in scores if name.startswith(("P@1/", "R@1[")) and "hard" not in name
            }
            load(self.work / _AFTER, device="cpu").save_pretrained(self.out, metrics=figures)  # of the model card
        outcome = json.loads(files.read_text(self.out / OUTCOME)) | {
            "kept": adapted.kept,
            "checks": [asdict(check) for check in checks],
            "scores": grid.scores,
            "details": grid.details(grid.differences()),
            "steps": position.step,
            "training_seconds": position.seconds,
            "seconds": 60 * self.minutes - (self.deadline - time.monotonic()),
            "problems": evaluation.problems,
            "feedback": adapted.feedback,
        }
        files.replace(self.out / OUTCOME, _json(outcome))
        return adapted

    def _learned(self) -> str:
        """A sentence on whether the feedback is used; nothing if there was none."""
        decisions = f"its {len(self.decisions)} decisions"
        if self.preference is not None:
            share = f"{100 * self.preference.predicted:.0f} %"
            return f"of {decisions}, {share} are predicted by those about other photos."
        chance = "do not predict each other better than chance (cross-validation over photos)."
        return f"it is not used: {decisions} {chance}" if self.decisions else ""


def _claim(out: Path, request: Mapping[str, Any]) -> Adapted | None:
    """See that the folder is free, or of the same request; what came of that, if it is finished."""
    file = out / OUTCOME
    if not files.is_file(file):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is not empty and holds no adapted model; choose another --out.")
        (out / "work").mkdir(parents=True)
        return None
    outcome = files.read_json(file)
    if outcome.get("format") != _FORMAT or outcome.get("request") != request:
        raise UserError(f"{out} was made with other photos, another model or other settings; choose another --out.")
    if "kept" not in outcome:
        (out / "work").mkdir(exist_ok=True)
        return None
    shutil.rmtree(out / "work", ignore_errors=True)
    checks = [Check(**check) for check in outcome["checks"]]
    return Adapted(out, checks, outcome["scores"], outcome["problems"], feedback=outcome.get("feedback", ""))


def _split(photos: Photos) -> Split:
    return Split(photos.name, photos.name, photos.of(HELD_OUT), [])


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode("ascii")
