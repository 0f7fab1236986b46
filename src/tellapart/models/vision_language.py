"""Vision-language models of transformers, by folder or hub id, as models of our own: captioner, tokenizer and encoder.

What such a model is like is found out, not assumed: it looks at two blank photos and reads its prompt, as a whole and
taken apart.  Where both give the same logits it is decoded and trained by our own loops, else asked by `generate`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capscore import files
from capscore.errors import UserError
from tellapart import numerics
from tellapart.captioners import Captioner, select
from tellapart.captioners.vision_language import (
    MAX_TOKENS,
    Blip,
    EncoderDecoder,
    Family,
    Generates,
    Git,
    Placeholders,
    VisionLanguage,
    ended,
)
from tellapart.data.captions import PROMPT
from tellapart.data.streams import REGIONS
from tellapart.data.tokenizers import SubwordTokenizer
from tellapart.encoders import pretrained
from tellapart.encoders.towers import VisionTower, squared
from tellapart.hub import reason

if TYPE_CHECKING:
    from tellapart.models import Model

INSTALL = "pip install 'tellapart[vlm]'"
OWN_PROMPT = "tellapart_prompt"  # in config.json of a model that we trained
PROMPTS = {  # model_type: what a model of this kind was trained to continue or to answer; others are asked as people
    "blip": "a picture of",
    "blip-2": "a photo of",
    "git": "",
    "vision-encoder-decoder": "",
    "florence2": "<CAPTION>",
    "paligemma": "caption en",
    "kosmos-2": "<grounding>An image of",
    "pix2struct": "",
}
# Kinds whose prompt has no place for the photo.
_FAMILIES: dict[str, type[Family]] = {"blip": Blip, "git": Git, "vision-encoder-decoder": EncoderDecoder}
_SIZES = ((96, 48), (40, 72), (700, 520))


def is_one(folder: Path) -> bool:
    """True of a folder with a model in the form of transformers, and not in ours."""
    try:
        config = files.read_json(files.inside(folder, "config.json"))
    except UserError:
        return False
    return isinstance(config, dict) and "model_type" in config and "format" not in config


class Loaded:
    """A model with its processor."""

    def __init__(self, source: str, device: torch.device, prompt: str | None, dtype: str):
        self.source, self.device = source, device
        self.folder = pretrained.find(source, INSTALL)
        self.kind = _refuse_others(source, self.folder)
        weights = numerics.DTYPES[numerics.choose_dtype(device, dtype)]
        check_sizes(self.folder, self.kind)
        with _explained(source, "processor"):
            self.tokenizer, self.photos, self.processor = _processor(self.folder, self.kind)
        config = files.read_json(self.folder / "config.json")
        usual = config.get(OWN_PROMPT, PROMPTS.get(self.kind, PROMPT))
        self.prompt = str(usual if prompt is None else prompt)
        self.network, missing = pretrained.read_network(
            source, self.folder, "AutoModelForImageTextToText", "model", weights
        )
        pretrained.refuse_incomplete(source, missing)
        with numerics.memory_of(device, source):
            self.network.to(device).eval().requires_grad_(False)
        self.sha256 = self._digest()

    def _digest(self) -> str:
        """Of all that captions depend on beside the photo, but for what this machine rounds."""
        digest = hashlib.sha256(f"{self.prompt}\n".encode())
        for file in sorted(self.folder.iterdir()):
            if file.suffix in (".safetensors", ".json", ".jinja", ".model"):
                with file.open("rb") as handle:
                    digest.update(hashlib.file_digest(handle, "sha256").digest())
        return digest.hexdigest()

    def inputs(self, image: Image.Image) -> dict[str, Tensor]:
        """One photo and the prompt as the network takes them."""
        if self.kind in _FAMILIES:
            return self._text() | {"pixel_values": self.photos(image, return_tensors="pt")["pixel_values"]}
        inputs = self.processor(images=image, text=self.question, return_tensors="pt")
        if "pixel_values" not in inputs:
            raise ValueError("its processor gives no pixel_values")
        return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}

    def _text(self) -> dict[str, Tensor]:
        config = self.network.config
        firsts = {
            "blip": lambda: [config.text_config.bos_token_id],
            "git": lambda: [self.tokenizer.cls_token_id, config.bos_token_id],
            "vision-encoder-decoder": lambda: [config.decoder_start_token_id, config.decoder.bos_token_id],
        }
        first = next((token for token in firsts[self.kind]() if token is not None), None)
        if first is None:
            raise ValueError("config.json does not say which token a caption begins with")
        return {"input_ids": torch.tensor([[first, *self.tokenizer(self.prompt, add_special_tokens=False).input_ids]])}

    @torch.inference_mode()
    def answer(self, image: Image.Image, prompt: str, count: int, seed: int) -> list[str]:
        """Texts that answer a question about a picture: the likeliest, the others by sampling."""
        if self.kind in PROMPTS:
            raise UserError(f"{self.source}: models of the type {self.kind!r} caption photos and answer no questions.")
        inputs = self.processor(images=image, text=self._with_place(prompt), return_tensors="pt").to(self.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.network.dtype)
        usual = {"max_new_tokens": MAX_TOKENS, "pad_token_id": self.tokenizer.pad_token_id}
        outputs = [self.network.generate(**inputs, **usual, do_sample=False)]
        if count > 1:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed)
                outputs.append(self.network.generate(**inputs, **usual, do_sample=True, num_return_sequences=count - 1))
        start = inputs["input_ids"].shape[1]
        texts = [self.tokenizer.batch_decode(out[:, start:], skip_special_tokens=True) for out in outputs]
        return [text for batch in texts for text in batch]

    @cached_property
    def question(self) -> str:
        return self._with_place(self.prompt)

    def _with_place(self, prompt: str) -> str:
        """A prompt with a place for the photo, unless the processor makes one by itself."""
        if template := getattr(self.processor, "chat_template", None):
            content = [{"type": "image"}, {"type": "text", "text": prompt}]
            chat = [{"role": "user", "content": content}]
            values = {**self.tokenizer.special_tokens_map, "add_generation_prompt": True}
            return rendered(self.source, template["default"] if isinstance(template, dict) else template, chat, values)
        config = self.network.config
        place = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
        try:
            tokens = self.processor(images=_drawn(_SIZES[0]), text=prompt, return_tensors="pt")["input_ids"]
        except ValueError:  # some refuse a photo without its place
            tokens = torch.tensor([])
        if place is None or (tokens == place).any():
            return prompt
        return f"{getattr(self.processor, 'image_token', '<image>')}\n{prompt}"

    def words(self) -> tuple[SubwordTokenizer, tuple[int, ...]]:
        """The tokenizer of captions, and the tokens that end one, the tokenizer's own first."""
        config, text = self.network.config, self.network.config.get_text_config(decoder=True)
        count, size = len(self.tokenizer), int(text.vocab_size)
        if count > size:
            raise UserError(
                f"{self.source}: the tokenizer has {count} tokens, and the model {size}: they do not match."
            )
        separator = getattr(text, "sep_token_id", None) if self.kind == "blip" else None
        stated = [
            separator,
            self.network.generation_config.eos_token_id,
            text.eos_token_id,
            self.tokenizer.eos_token_id,
        ]
        ends = next((token for token in stated if token is not None), None)
        endings = tuple(token for token in (ends if isinstance(ends, list) else [ends]) if token is not None)
        if not endings or not all(0 <= token < count for token in endings):
            raise UserError(f"{self.source}: eos_token_id is not a token; a captioner must know how to end.")
        special = {"bos": text.bos_token_id, "pad": self.tokenizer.pad_token_id}
        special_ids = {name: token for name, token in special.items() if token is not None and 0 <= token < count}
        places = {getattr(config, f"{kind}_token_id", None) for kind in ("image", "video")}
        never = {token for token in places if isinstance(token, int) and token < count} | set(range(count, size))
        words = SubwordTokenizer(self.tokenizer.backend_tokenizer, eos=endings[0], never=never, **special_ids)
        return words, endings


def load(source: str, device: torch.device, prompt: str | None = None, dtype: str = "auto") -> Model:
    """A `models.Model` whose captioner is a `VisionLanguage`, or `Generates`."""
    from tellapart.models import Model

    loaded = Loaded(source, device, prompt, dtype)
    with _explained(source, "prompt or a photo"), torch.no_grad(), numerics.memory_of(device, source):
        tokenizer, endings = loaded.words()
        square = not _is_alike(loaded.inputs, lambda image: image)
        if square and not _is_alike(loaded.inputs, squared):
            raise ValueError("its processor makes inputs of different shapes even of square photos of one size")
        drawn = squared(_drawn(_SIZES[0])) if square else _drawn(_SIZES[0])
        blank = {name: value.to(device) for name, value in loaded.inputs(drawn).items()}
        blank["pixel_values"] = blank["pixel_values"].to(loaded.network.dtype)
        captioner: VisionLanguage | Generates | None = _taken_apart(loaded, blank, endings)
        look: Callable[[Tensor], Tensor]
        if isinstance(captioner, VisionLanguage):
            family = captioner.family
            look = lambda pixels: family.look(loaded.network, pixels.to(loaded.network.dtype))  # noqa: E731
        elif loaded.kind == "blip":  # whose `generate` has its own way with prompts
            raise ValueError("its text decoder does not read photos as this version expects")
        else:
            rest = {name: value for name, value in blank.items() if name != "pixel_values"}
            captioner = Generates(loaded.network, rest, blank["pixel_values"].shape, endings)
            captioner.generate((blank["pixel_values"][None],), max_new_tokens=1)  # what fails, fails now
            first = len(blank["pixel_values"])
            look = lambda pixels: pixels.reshape(len(pixels) // first, first, -1)  # noqa: E731

        def make_ready(image: Image.Image) -> NDArray[np.float32]:
            ready: NDArray[np.float32] = loaded.inputs(image)["pixel_values"].numpy()
            return ready

        name, dtype_of_weights = Path(source).name, loaded.network.dtype
        tower = VisionTower(name, loaded.sha256, make_ready, look, device, square=square, dtype=dtype_of_weights)
    captioner.answer = loaded.answer  # type: ignore[assignment]
    captioner.save_pretrained = lambda folder: save(loaded, folder)  # type: ignore[assignment]
    return Model(cast(Captioner, captioner), tokenizer, {REGIONS: tower.identity}, loaded.sha256, encoder=tower)


def save(loaded: Loaded, folder: Path) -> None:
    """A folder that transformers and `tellapart.load` take, with the weights as they are now."""
    setattr(loaded.network.config, OWN_PROMPT, loaded.prompt)
    loaded.network.save_pretrained(folder)
    for file in loaded.folder.iterdir():  # tokenizer and processor
        is_other = file.suffix in (".json", ".jinja", ".txt", ".model") and not file.name.endswith(".index.json")
        if is_other and not (folder / file.name).exists():
            files.replace(folder / file.name, files.read_bytes(file))


def _refuse_others(source: str, folder: Path) -> str:
    """The kind of model (model_type), if it is one that captions photos and needs no program of its own."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as CAPTIONERS

    config = files.read_json(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        if "auto_map" in config:
            raise UserError(f"{source} needs code from its repository (auto_map in config.json), which is never run.")
        raise UserError(f"{source} is a model of the type {str(kind)[:60]!r}, which this transformers does not know.")
    if kind not in CAPTIONERS:
        raise UserError(f"{source} is a model of the type {kind!r}, which does not caption photos.")
    return kind


def _processor(folder: Path, kind: str) -> tuple[Any, Any, Any]:
    """The tokenizer, what makes photos ready, and what joins both; each of transformers, none of torchvision."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    def part(name: str) -> Any:
        made = {"tokenizer": "AutoTokenizer", "image_processor": "AutoImageProcessor"}.get(name)
        if name.endswith("_tokenizer"):  # a second one, in a folder of its own
            return transformers.AutoTokenizer.from_pretrained(str(folder / name), trust_remote_code=False)
        if made is None:
            return None  # clips and sound are not for us, and would need other packages
        return getattr(transformers, made).from_pretrained(str(folder), trust_remote_code=False)

    name = PROCESSOR_MAPPING_NAMES.get(kind)
    if kind in _FAMILIES:
        return part("tokenizer"), part("image_processor"), None
    if name is None:
        raise ValueError(f"transformers has none for models of the type {kind!r}")

    def parts(cls: Any, *_: Any, **__: Any) -> list[Any]:
        return [part(name) for name in cls.get_attributes()]

    replaced = {
        "_get_arguments_from_pretrained": classmethod(parts),
        "check_argument_for_proper_class": lambda *_: None,
    }
    base = getattr(transformers, name)
    module = sys.modules[base.__module__]
    if getattr(module, "num2words", base) is None:  # SmolVLM's clips need this package; photos do not
        vars(module)["num2words"] = str
    kind_of_processor = type(name, (base,), replaced)
    processor = kind_of_processor.from_pretrained(str(folder), trust_remote_code=False)  # type: ignore[attr-defined]
    return processor.tokenizer, processor.image_processor, processor


def _is_alike(inputs: Callable[[Image.Image], dict[str, Tensor]], fit: Callable[[Image.Image], Image.Image]) -> bool:
    """True where photos of all sizes give the same inputs, but for the values of their pixels."""
    first, *others = (inputs(fit(_drawn(size))) for size in _SIZES)
    for other in others:
        if first.keys() != other.keys() or first["pixel_values"].shape != other["pixel_values"].shape:
            return False
        if not all(torch.equal(value, other[name]) for name, value in first.items() if name != "pixel_values"):
            return False
    return True


def _drawn(size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)


def _taken_apart(loaded: Loaded, blank: dict[str, Tensor], endings: tuple[int, ...]) -> VisionLanguage | None:
    """The model as a captioner of ours, if that gives the logits which the model gives as a whole."""
    network = loaded.network
    prompt = blank["input_ids"]
    extras = {name: value for name, value in blank.items() if name not in ("input_ids", "attention_mask")}
    whole = {"decoder_input_ids" if loaded.kind == "vision-encoder-decoder" else "input_ids": prompt} | extras
    if loaded.kind in _FAMILIES:
        families: list[Family] = [_FAMILIES[loaded.kind]()]
    elif not hasattr(network, "get_image_features"):
        return None
    else:
        of_one = len(extras.pop("pixel_values"))
        families = [Placeholders(network, prompt.shape[1], extras, of_one, type_of_caption=kind) for kind in (0, 1)]
    for family in families:
        captioner = VisionLanguage(network, family, prompt[0].tolist(), endings)
        if _agrees(captioner, whole):
            return captioner
    return None


def _agrees(captioner: VisionLanguage, whole: dict[str, Tensor]) -> bool:
    """True where it gives the logits of the whole model, and step by step the same as at once."""
    network, end = captioner.network, captioner.endings[0]
    try:
        memory = (captioner.family.look(network, whole["pixel_values"]),)
        expected = ended(network(**whole).logits[:, -1], captioner.endings)
        two = torch.zeros(2, dtype=torch.long, device=expected.device)
        probe = torch.tensor([[0, end, 0], [0, 0, end]], device=expected.device)
        state, stepped = select(captioner.start(memory), two), []
        for token in probe.unbind(1):
            logits, state = captioner.step(token, state, memory)
            stepped.append(logits)
        at_once = captioner(probe, memory)
    except numerics.OutOfMemory:
        raise
    except Exception:  # each kind that cannot be taken apart fails in its own way
        return False
    return _close(stepped[0], expected.expand(2, -1)) and _close(torch.stack(stepped, 1), at_once)


def _close(first: Tensor, second: Tensor) -> bool:
    rough = 1e-3 if first.dtype == torch.float32 else 5e-2
    first, second = first.float(), second.float()
    usual = second > torch.finfo(torch.bfloat16).min / 2  # not those that are never used
    return bool(((first - second).abs()[usual] <= rough * (1 + second[usual].abs().max())).all())


@contextmanager
def _explained(source: str, what: str) -> Iterator[None]:
    """One sentence for faults of a model's files, which fail in as many ways as there are fields."""
    try:
        yield
    except (UserError, numerics.OutOfMemory):
        raise
    except Exception as error:
        raise UserError(f"{source}: its {what} cannot be made ready ({reason(error)[:200]}).") from None


# What a model's folder may ask for before its weights are used: sizes of photos, and a chat template.  Templates are
# Jinja, a language with loops: one is rendered in a process of its own, with limits of time and memory.

_EDGE = 4096  # pixels of a side, and the most of any other number
_LEAST_PIXELS, _MOST_PIXELS = 1 << 22, 1 << 24  # where sizes are counts of pixels: of a small photo, of a large one
_TILED_PIXELS = 1 << 25  # of all tiles of a photo
_TILES_A_SIDE = 32
_PAIRS = 1000  # of shapes that tiles may have
_UNUSED = re.compile("video|audio|feature_extractor")
_NO_SIZE = re.compile("(_ids?|_index|_token)$")
_TILES = re.compile("tiles|crops|(max|min)_patches")


def check_sizes(folder: Path, kind: str) -> None:
    """Refuses photos, or numbers of their tokens, that no model needs and no memory has; kind: model_type."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if not files.is_file(folder / name):
            continue
        values = files.read_json(folder / name)
        settings = values.get("image_processor") if isinstance(values.get("image_processor"), dict) else values
        counts = _counts_pixels(str(settings.get("image_processor_type") or ""), kind)  # type: ignore[union-attr]
        edges, tiles = [], [1.0]
        for key, number in _numbers(values, folder / name):
            most = float(_EDGE)
            if key == "max_pixels" or (counts and key == "longest_edge"):
                most = _MOST_PIXELS
            elif key == "min_pixels" or (counts and key == "shortest_edge"):
                most = _LEAST_PIXELS
            elif key in ("height", "width", "size", "crop_size", "shortest_edge", "longest_edge"):
                edges.append(number)
            elif _TILES.search(key):
                tiles.append(number)
            if not number <= most:
                raise UserError(f"{folder / name}: {key} is too large; {most:.0f} is the most.")
        small, large = (pick((edge for edge in edges if edge > 0), default=1) for pick in (min, max))
        if large > _TILES_A_SIDE * small or max(tiles) * large**2 > _TILED_PIXELS:
            raise UserError(f"{folder / name}: photos would be cut into too many tiles.")


def _counts_pixels(name: str, kind: str) -> bool:
    """True where the sizes of an image processor are numbers of pixels, as Qwen's are, by its own defaults."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as PROCESSORS

    of_kind = PROCESSORS.get(kind)
    names = [name] if name else list(of_kind.values()) if isinstance(of_kind, dict) else [of_kind]
    for processor_name in filter(None, names):
        processor = getattr(transformers, f"{str(processor_name).removesuffix('Fast').removesuffix('Pil')}Pil", None)
        size = getattr(processor, "size", None)
        if isinstance(size, Mapping) and max((v for v in size.values() if isinstance(v, int)), default=0) > _EDGE:
            return True
    return False


def _numbers(values: Any, file: Path, key: str = "") -> Iterator[tuple[str, float]]:
    """All numbers with the name of their field."""
    if isinstance(values, dict):
        for name, value in values.items():
            if not _UNUSED.search(name) and not _NO_SIZE.search(name):
                yield from _numbers(value, file, name)
    elif isinstance(values, list):
        if len(values) > _PAIRS:
            raise UserError(f"{file}: {key} is too long; {_PAIRS} is the most.")
        for value in values:
            yield from _numbers(value, file, key)
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield key, values


# Chat templates

_SECONDS, _PATIENCE = 10, 60  # of computing, and by the clock on a busy machine
_MEMORY = 1 << 30  # bytes beyond what the process itself takes
_LETTERS = 100_000

_RENDER = f"""
import json, sys
from contextlib import suppress
from transformers.utils.chat_template_utils import render_jinja_template as render
given = json.load(sys.stdin)
with suppress(ImportError, ValueError, OSError):  # other systems than Linux have not all of these limits
    import resource
    own = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + {_MEMORY}, own + {_MEMORY}))
with suppress(ImportError, ValueError, OSError):
    resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    (text,), _ = render(conversations=[given["chat"]], chat_template=given["template"], **given["values"])
    answer = {{"text": text}} if len(text) <= {_LETTERS} else {{"error": "it makes more than {_LETTERS} letters"}}
except MemoryError:
    answer = {{"error": "it takes too much memory"}}
except Exception as error:
    answer = {{"error": (str(error).strip() or type(error).__name__)[:200]}}
sys.stdout.write(json.dumps(answer))
"""


def rendered(source: str, template: str, chat: list[dict[str, Any]], values: Mapping[str, Any]) -> str:
    """A chat by the template of a model.

    values  what the template knows beside it, such as special tokens
    """
    answer = _answer(json.dumps({"template": template, "chat": chat, "values": dict(values)}))
    if "error" in answer:
        raise UserError(f"{source}: its chat template cannot be used ({' '.join(answer['error'].split())}).")
    return answer["text"]


@lru_cache
def _answer(request: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-P", "-c", _RENDER]  # -P: nothing is imported from the folder that one is in
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, input=request, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        answer: dict[str, str] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # one that is ended by a limit answers nothing
        return {"error": "it takes too much time or memory"}
    return answer
