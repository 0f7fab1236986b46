"""What a vision-language model's folder may ask for before its weights are used: sizes of photos, and a chat template.

Templates are Jinja, a language with loops: one is rendered in a process of its own, with limits of time and memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from capscore import files
from capscore.errors import UserError

# Photos

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
    """Whether the sizes of an image processor are numbers of pixels, as Qwen's are, by its own defaults."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as PROCESSORS

    of_kind = PROCESSORS.get(kind)
    names = [name] if name else list(of_kind.values()) if isinstance(of_kind, dict) else [of_kind]
    for one in filter(None, names):
        own = getattr(transformers, f"{str(one).removesuffix('Fast').removesuffix('Pil')}Pil", None)
        size = getattr(own, "size", None)
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
def _answer(given: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-P", "-c", _RENDER]  # -P: nothing is imported from the folder that one is in
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, input=given, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        answer: dict[str, str] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # one that is ended by a limit answers nothing
        return {"error": "it takes too much time or memory"}
    return answer
