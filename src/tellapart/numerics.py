"""Which device and which number type to compute with: measured on this machine, not assumed.

On a CPU without bf16 instructions bf16 can be 90 times slower than fp32; on others it is twice as fast.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from tellapart.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OutOfMemory = torch.OutOfMemoryError
_LEAST_GAIN = 1.3  # how much quicker bf16 must be before its coarser numbers pay


def choose_device(wanted: str = "auto") -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device).item()  # one that cannot compute fails here
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {wanted!r} cannot be used here ({str(error).splitlines()[0]}).") from None
    return device


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
    """fp32 or bf16"""
    if wanted in DTYPES:
        return wanted
    if wanted != "auto":
        raise UserError(f"dtype must be auto, {' or '.join(DTYPES)}, not {wanted!r}.")
    return quicker(bf16_gain(device))


def quicker(gain: float) -> str:
    """The number type to take where bf16 is `gain` times as quick as fp32."""
    return "bf16" if gain > _LEAST_GAIN else "fp32"


def bf16_gain(device: torch.device, seconds: float = 0.2) -> float:
    """How many times quicker a matrix product is in bf16 than in fp32 here."""
    took = {}
    for name, dtype in DTYPES.items():
        a = torch.ones(256, 256, dtype=dtype, device=device)
        a @ a  # the first one pays for setting up
        began, rounds = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            a @ a
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            rounds += 1
        took[name] = (time.perf_counter() - began) / rounds
    return took["fp32"] / took["bf16"]


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    return nullcontext() if dtype == "fp32" else torch.autocast(device.type, DTYPES[dtype])
