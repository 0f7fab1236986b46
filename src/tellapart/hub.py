"""The Hugging Face hub: folders that are downloaded and uploaded.  No code from there is ever run."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from capscore import files
from capscore.errors import UserError
from capscore.printable import bars_on_stderr
from capscore.system import package as package_folder

INSTALL = "pip install 'tellapart[hub]'"
_ANSWERS_WITHIN = 10.0  # seconds
_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def could_be(name: str) -> bool:
    """True of a name that may be owner/name on the hub: not of `runs/mistyped` where there is a folder runs."""
    return _ID.fullmatch(name) is not None and not files.is_folder(Path(name).parent)


def fetch(name: str, parts: Sequence[str]) -> Path:
    """The folder of a hub id on this machine; fetched if need be, unless HF_HUB_OFFLINE says not to.

    parts  patterns of the files that are taken; others are left where they are
    """
    _require(name)
    from huggingface_hub import hf_hub_download, snapshot_download

    silence = _silence()  # of the hub; then only what is on this machine already can be had
    here_only = bool(silence)
    try:
        with bars_on_stderr():
            # First config.json, because it is small and every model has one.
            hf_hub_download(name, "config.json", local_files_only=here_only)
            return Path(snapshot_download(name, allow_patterns=list(parts), local_files_only=here_only))
    except Exception as error:  # a network fails in many ways
        raise UserError(
            f"there is no folder {name!r}, and the Hugging Face hub gave no model of this name: config.json of {name} "
            f"was wanted ({silence or reason(error)}); a local folder with the files of the model can be given instead."
        ) from None


def _silence() -> str:
    """The reason why the hub cannot be asked, or nothing: huggingface_hub itself would try for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = urlsplit(constants.ENDPOINT)
    if address.scheme in getproxies() and not proxy_bypass(address.hostname or ""):
        return ""  # only a proxy knows which addresses it reaches
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_ANSWERS_WITHIN).close()
    except OSError as error:
        return f"{address.hostname} does not answer: {error.strerror or error}"
    return ""


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
    if package_folder("huggingface_hub") is None:
        raise UserError(
            f"{name}: there is no such folder, and the Hugging Face hub is asked with huggingface_hub, which is not "
            f"installed; `{INSTALL}` brings it."
        )
