"""Which device and which number type to compute with: fp32 unless asked on a CPU, bf16 on a GPU that has it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch

from capscore.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OutOfMemory = torch.OutOfMemoryError


def choose_device(wanted: str = "auto") -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device).item()  # one that cannot compute fails here
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {wanted!r} cannot be used here ({str(error).splitlines()[0]}).") from None
    return device


def device_of_process(wanted: str = "auto") -> str:
    """The device that "auto" and "cuda" mean in this process: of several graphics cards its own.

    Whoever started the processes has chosen a card for each (accelerate), or says which is its own (LOCAL_RANK).
    """
    if wanted not in ("auto", "cuda") or not torch.cuda.is_available():
        return wanted
    rank = os.environ.get("LOCAL_RANK", "")
    others = rank.isdecimal() and int(rank) < torch.cuda.device_count()
    return f"cuda:{torch.cuda.current_device() or (int(rank) if others else 0)}"


@contextmanager
def memory_of(device: torch.device, what: str) -> Iterator[None]:
    """Says in one sentence that the memory of a device does not suffice for something."""
    try:
        yield
    except OutOfMemory:
        raise UserError(
            f"{what}: the memory of {device} is not enough; --dtype bf16, a narrower --beam or --device cpu take less."
        ) from None


def choose_dtype(device: torch.device, wanted: str = "auto") -> str:
    """fp32 or bf16.  "auto" goes by what the device is able to, not by how quick it is today: figures depend on it."""
    if wanted in DTYPES:
        return wanted
    if wanted != "auto":
        raise UserError(f"dtype must be auto, {' or '.join(DTYPES)}, not {wanted!r}.")
    if device.type != "cuda":
        return "fp32"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def is_slow(device: torch.device, dtype: str) -> bool:
    """True of a type that PyTorch knows no instructions for, which can be 90 times slower than fp32."""
    return dtype == "bf16" and device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported()


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    return nullcontext() if dtype == "fp32" else torch.autocast(device.type, DTYPES[dtype])


def keep_freed_memory() -> None:
    """Memory that tensors free stays with the process, where the C library can be told so (glibc).

    A training step asks for the same sizes again and again, and fresh pages took up to half of its time on a CPU.
    """
    with suppress(OSError, AttributeError, TypeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(-4, 0)  # M_MMAP_MAX: no block gets pages of its own
        set_option(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, in bytes
