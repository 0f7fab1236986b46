"""Several processes that train as one: which they are, and what they exchange.

torchrun starts them and says by environment variables who is who.  Small things travel as JSON, numbers as tensors, and
nothing is pickled.  A world of one process does nothing of all this, so the loop is the same for one and for many.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from capscore.errors import UserError
from tellapart import numerics

_PATIENCE = timedelta(days=1)  # for one process to compute features or to validate while the others wait
_BUCKET = 2**23  # gradients that travel at once: enough to keep a network busy, little beside a model

Answer = TypeVar("Answer")


class SharedError(UserError):
    """The error that all processes end with at once; the first one prints it."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run; by default one alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes of this machine
    waiting: dist.ProcessGroup | None = None  # for what may take long; a step of the loop uses the default group

    @classmethod
    @contextmanager
    def from_environment(cls) -> Iterator[ProcessGroup]:
        """The world that torchrun made.  Within, only the first process prints."""
        try:
            size, rank, local_rank = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
        except (KeyError, ValueError):
            raise UserError(
                "WORLD_SIZE, RANK and LOCAL_RANK do not say which process this is; start several by "
                "torchrun --nproc-per-node 2 -m tellapart train RECIPE.yaml, and a single one without them."
            ) from None
        try:
            store, _, _ = next(rendezvous("env://"))
            # After a restart by torchrun the addresses of the dead are still in the store.
            store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            waiting = dist.new_group(backend="gloo", timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"the processes do not find each other ({str(error).splitlines()[0]}).") from None
        world = cls(rank, size, local_rank, waiting)
        try:
            with Path(os.devnull).open("w") as nowhere:
                if world.is_main:
                    yield world
                else:
                    with redirect_stdout(nowhere), redirect_stderr(nowhere):
                        yield world
        finally:  # after an error too: threads of a group that was not ended abort the process now and then as it exits
            dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """The one that writes and prints."""
        return self.rank == 0

    def choose_device(self, wanted: str) -> torch.device:
        """The recipe's device; of several graphics cards each process of a machine has its own."""
        if self.size > 1 and (wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())):
            device = numerics.choose_device(f"cuda:{self.local_rank}")
            torch.cuda.set_device(device)
            return device
        return numerics.choose_device(wanted)

    # --- small things, as JSON ----------------------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """The values that the processes give here, by rank."""
        return [value] if self.size == 1 else self._exchange({"value": value})

    def _exchange(self, message: dict[str, Any]) -> list[Any]:
        """All processes meet here, by any path: where one brings an error, all stop."""
        sent = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        messages = [json.loads(bytes(received.tolist())) for received in _of_all(sent, self.waiting)]
        for received in messages:
            if "error" in received:
                raise SharedError(received["error"])
        return [received["value"] for received in messages]

    def on_main(self, function: Callable[[], Answer]) -> Answer:
        """The first process calls the function while the others wait; all get its answer."""
        answer: Answer = self.gather(function() if self.is_main else None)[0]
        return answer

    def sequentially(self, function: Callable[[], Answer]) -> Answer:
        """All call the function, one after the other: what the first one puts on the disk the others find there."""
        self.gather(None)  # a process that has failed stops the others before an hour of work
        answers = []
        for rank in range(self.size):
            if rank == self.rank:
                answers.append(function())
            self.gather(None)
        return answers[0]

    def require_same(self, what: str, digest: Callable[[], str]) -> None:
        """Processes that do not learn from the same must not learn together."""
        values = [""] if self.size == 1 else self.gather(digest())
        if different := [rank for rank, other in enumerate(values) if other != values[0]]:
            raise SharedError(
                f"{what} of process {different[0]} are not those of process 0: give all machines the same files."
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within, a process that fails stops the others when they meet next."""
        try:
            yield
        except SharedError:
            raise
        except UserError as error:
            if self.size > 1:
                self._exchange({"error": str(error)})
            raise
        self.gather(None)

    # --- numbers --------------------------------------------------------------------------------------------------

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each of the values, added up over the processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.double)
        with _listening():
            dist.all_reduce(total)
        return total.tolist()

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether some process has raised it."""
        return [count > 0 for count in self.sum([float(flag) for flag in flags])]

    def join(self, rows: Tensor) -> Tensor:
        """The rows (n, E) of all processes, one after the other; some may have none, and then need not know E.

        For a loss of all rows together, which every process computes for itself and counts for 1/size of: that is why
        a process's own rows get size times the gradient that they have here.
        """
        return rows if self.size == 1 else _Joined.apply(rows, self)  # type: ignore[no-untyped-call]

    def add_gradients(self, model: nn.Module) -> None:
        """Give all processes the sum of their gradients; what none has a gradient of stays without."""
        if self.size == 1:
            return
        for bucket in _buckets(p for p in model.parameters() if p.requires_grad):
            has_gradient = bucket[0].new_tensor([p.grad is not None for p in bucket])
            for p in bucket:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            flat = torch.cat([has_gradient, *(p.grad.flatten() for p in bucket if p.grad is not None)])
            with _listening():
                dist.all_reduce(flat)
            counts, *sums = flat.split_with_sizes([len(bucket), *(p.numel() for p in bucket)])
            for p, count, gradient in zip(bucket, counts.tolist(), sums, strict=True):
                p.grad = p.grad.copy_(gradient.view_as(p)) if count and p.grad is not None else None

    @torch.no_grad()
    def share_weights(self, model: nn.Module) -> None:
        """All processes get those of the first."""
        if self.size == 1:
            return
        for tensor in model.state_dict().values():
            sent = tensor.contiguous()
            with _listening():
                dist.broadcast(sent, 0)
            tensor.copy_(sent)


SINGLE = ProcessGroup()


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: ProcessGroup) -> Tensor:
        widths = _of_all(torch.tensor([rows.shape[1]], device=rows.device))
        parts = _of_all(rows.detach().float().flatten())
        size = max(int(width) for width in widths)
        ctx.counts = [part.numel() // size for part in parts]
        ctx.rank, ctx.size = world.rank, world.size
        return torch.cat(parts).view(-1, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.size * gradients[0].split_with_sizes(ctx.counts)[ctx.rank], None


def _of_all(flat: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """The tensors (n,) of all processes, by rank; each may have its own length."""
    with _listening():
        lengths = [torch.zeros(1, dtype=torch.long, device=flat.device) for _ in range(dist.get_world_size())]
        dist.all_gather(lengths, torch.tensor([len(flat)], device=flat.device), group=group)
        most = max(int(length) for length in lengths)
        received = [flat.new_empty(most) for _ in lengths]
        dist.all_gather(received, torch.cat([flat, flat.new_zeros(most - len(flat))]), group=group)
    return [tensor[: int(length)] for tensor, length in zip(received, lengths, strict=True)]


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters together until there are enough of their numbers."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(p.numel() for p in bucket) >= _BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


@contextmanager
def _listening() -> Iterator[None]:
    """A process that was killed closes its connections, and the others find out here."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[[^]]*\] ", "", str(error)).split(". ")[0]  # without gloo's source file and advice
        raise SharedError(
            f"another process of this run has ended, or cannot be reached ({' '.join(reason.split())}); "
            "the same command with --resume continues from the last checkpoint."
        ) from None
