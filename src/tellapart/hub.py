"""The Hugging Face hub: folders that are fetched from it and put onto it.  No program that lies there is ever run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tellapart import files, places
from tellapart.errors import UserError

INSTALL = "pip install 'tellapart[hub]'"
_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def could_be(name: str) -> bool:
    """Whether a name may be owner/name on the hub: `runs/mistyped` in a place where there is a folder runs is not."""
    return _ID.fullmatch(name) is not None and not files.is_folder(Path(name).parent)


def fetch(name: str, parts: Sequence[str]) -> Path:
    """Where the files of a hub id lie on this machine; fetched if need be, unless HF_HUB_OFFLINE says not to.

    parts  patterns of the files that are taken; others are left where they are
    """
    _require(name)
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache

    try:
        if try_to_load_from_cache(name, "config.json") is None:
            print(f"{name}: asking the Hugging Face hub ...", file=sys.stderr)  # without a network it tries for long
        hf_hub_download(name, "config.json")  # first, because it is small and every model has one
        return Path(snapshot_download(name, allow_patterns=list(parts)))
    except Exception as error:  # a network fails in many ways
        raise UserError(
            f"there is no folder {name!r}, and the Hugging Face hub gave no model of this name: config.json of {name} "
            f"was wanted ({reason(error)}); a local folder with the files of the model can be given instead."
        ) from None


def push(folder: Path, name: str, parts: Sequence[str], *, private: bool, token: str | None) -> str:
    """Put the files of a folder onto the hub, in one commit; returns its address."""
    _require(name)
    if _ID.fullmatch(name) is None:
        raise UserError(f"{name!r} is not the name of a model on the Hugging Face hub: owner/name.")
    from huggingface_hub import HfApi

    hub = HfApi(token=token)
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        done = hub.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(parts), commit_message="Written by tellapart"
        )
    except Exception as error:
        raise UserError(f"{name} could not be put onto the Hugging Face hub ({reason(error)}).") from None
    return str(done.commit_url)


def reason(error: Exception) -> str:
    """An error of another library, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def _require(name: str) -> None:
    if places.package("huggingface_hub") is None:
        raise UserError(
            f"{name}: there is no such folder, and the Hugging Face hub is asked with huggingface_hub, which is not "
            f"installed; `{INSTALL}` brings it."
        )
