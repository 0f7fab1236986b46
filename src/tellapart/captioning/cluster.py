"""Batches of work for a Ray cluster: captions of photos, and features; results come back as they are done.

The one place that knows Ray.  Photos, and models that are folders, are read by their paths: every node must see them
under the same ones.  Workers are not brought back to life by Ray: a worker that is to start again waits for
free processors, and where its whole machine has gone there are none, so that its batches would wait for ever.  Instead
a dataset ends with the first worker that it loses, and the batches that are not done go out once more, as another
dataset, to the workers that there are then.  Everything that came back before is kept.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import textwrap
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from capscore.errors import UserError
from capscore.files import is_folder
from capscore.system import cores
from tellapart import models, numerics
from tellapart.album import DEFAULT, EMBEDDED
from tellapart.captioning import captioner as captioning
from tellapart.captioning.captioner import PhotoCaptioner, load
from tellapart.captioning.pipeline import RerankConfig
from tellapart.captioning.rerank import Scene
from tellapart.data.captions import Proposed
from tellapart.data.examples import Example
from tellapart.decoding.rules import Search
from tellapart.encoders import ENCODERS, PhotoEncoder
from tellapart.features import extracted
from tellapart.features.extracted import EncodedBatch, Extraction, encode_items
from tellapart.features.sources import Item as Source
from tellapart.models.parts import load_encoder
from tellapart.parallel import batched
from tellapart.recipe import EncoderConfig

Batch = TypeVar("Batch")
Result = TypeVar("Result")

LOCAL = "local"
INSTALL = "pip install 'tellapart[ray]'"
_ANSWERS_WITHIN = 10.0  # seconds
_ATTEMPTS = 3  # datasets in a row of which nothing came back, before we give up
_BLOCKS_A_WORKER = 8  # tasks of a worker in a dataset: more even out the end, fewer cost less
_MEMORY = 2**28  # bytes that a cluster of our own shares between processes: results on their way

# An HTTP/2 client's first words (RFC 9113, 3.4) with empty settings.  Ray's servers speak gRPC, hence HTTP/2, and
# answer with their own settings, a frame of type 4.  Ray itself would try for two minutes before it gives up.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


class Cluster:
    """`LOCAL`: one of our own, on this machine and for one call.  Or one that is there: "auto", HOST:PORT."""

    def __init__(self, address: str):
        """Refuses an address where no Ray cluster answers."""
        self.address = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address
        if self.address not in (LOCAL, "auto"):
            _knock(self.address)
        _import_ray()

    def map_batches(
        self, batches: Sequence[Batch], make: Callable[[], Callable[[Batch], Result]], *, gpus: bool = False
    ) -> Iterator[tuple[int, Result]]:
        """The number of a batch and what was made of it, in the order in which they are done.

        make  runs once in each worker: gives what makes something of a batch.  What is a UserError there is one here
        gpus  a worker for each GPU of the cluster, if it has any; else one for each processor
        """
        from ray.exceptions import RayError, RayTaskError

        if not batches:  # a cluster takes a while to start
            return
        with self._connected():
            todo = dict(enumerate(batches))
            without_result = 0
            while todo:
                waiting, lost = len(todo), ""
                try:
                    for number, result in _one_dataset(todo, make, gpus):
                        del todo[number]
                        yield number, result
                except RayTaskError:  # not that a worker was lost: something is wrong in what it does
                    raise
                except RayError as error:
                    lost = _in_one_line(str(error).strip().rpartition("\n")[2])  # above it are ids, or a traceback
                without_result = without_result + 1 if len(todo) == waiting else 0
                if without_result == _ATTEMPTS:
                    raise UserError(
                        f"Ray lost its workers {_ATTEMPTS} times in a row without a result ({lost}); finished "
                        "batches are kept.  Every node needs the same version of tellapart, and memory for a model."
                    )

    @contextmanager
    def _connected(self) -> Iterator[None]:
        ray = _import_ray()
        from ray.exceptions import RayError

        of_our_own = {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": _MEMORY}
        try:
            ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **(of_our_own if self.address == LOCAL else {}),
            )
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise UserError(f"--ray {self.address}: {_in_one_line(str(error))}") from None
        try:
            yield
        finally:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")  # there is one of ours
    try:
        import ray
        import ray._private.worker
        import ray.data
    except ImportError:
        raise UserError(f"--ray needs Ray Data: {INSTALL}.") from None
    ray._private.worker._worker_logs_enabled = False  # it tells of lost workers on stdout, among our results
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return ray


def _knock(address: str) -> None:
    """Refuses an address where no server answers, or one that is not Ray."""
    if address.startswith("ray://"):  # Ray Data is not made for Ray's client protocol
        raise UserError(f"--ray {address}: give HOST:PORT of the head node, or auto, on a machine of the cluster.")
    match = re.fullmatch(r"\[?([^/]+?)\]?:(\d{1,5})", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UserError(f"--ray {address}: an address is HOST:PORT, such as localhost:6379, or auto, or {LOCAL}.")
    try:
        with socket.create_connection((match[1], int(match[2])), _ANSWERS_WITHIN) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(9)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise UserError(f"--ray {address}: no Ray cluster answers at this address ({reason}).") from None
    if len(answer) < 9 or answer[3] != _SETTINGS:
        raise UserError(f"--ray {address}: the server at this address is not a Ray cluster.")


def _one_dataset(
    batches: Mapping[int, Batch], make: Callable[[], Callable[[Batch], Result]], gpus: bool
) -> Iterator[tuple[int, Result]]:
    """Ends with a RayError as soon as a worker is lost."""
    ray = _import_ray()
    resources = ray.cluster_resources()
    gpus = gpus and resources.get("GPU", 0) >= 1
    workers = min(max(1, int(resources.get("GPU" if gpus else "CPU", 1))), len(batches))
    # Bytes, for Arrow would guess at types, and a file's name need not be UTF-8.
    rows = [{"number": number, "batch": pickle.dumps(batch)} for number, batch in batches.items()]
    ray.data.DataContext.get_current().target_max_block_size = 1  # a batch's result is sent off when it is done
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ray.remote's arguments, such as max_restarts, have other names one day
        results = ray.data.from_items(rows, override_num_blocks=min(len(rows), _BLOCKS_A_WORKER * workers)).map_batches(
            _Worker,
            batch_size=1,
            fn_constructor_args=(make,),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
            max_restarts=0,
            max_task_retries=0,
        )
    for row in results.iter_rows():
        refused, result = pickle.loads(row["result"])
        if refused:
            raise UserError(f"a worker of the Ray cluster: {refused}")
        yield int(row["number"]), result


class _Worker:
    """Lives in a process of the cluster: is made once, and given batch after batch."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]):
        self._refused = ""
        try:
            self._work = make()
        except UserError as error:  # an exception here would be taken for a worker that was lost
            self._refused = str(error)

    def __call__(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        (number,), (batch,) = rows["number"], rows["batch"]
        result = None if self._refused else self._work(pickle.loads(batch))
        return {"number": [number], "result": [pickle.dumps((self._refused, result))]}


def _in_one_line(text: str) -> str:
    return textwrap.shorten(text, 300, placeholder=" ...")


# What workers do


class ClusterCaptioner(PhotoCaptioner):
    """Workers propose captions, which come in the order in which they are done; which is the best is chosen here."""

    def __init__(self, name: str | None, cluster: Cluster, *, device: str = "auto"):
        """name  none: the embedded default"""
        here = load(name, device=device)
        super().__init__(here.model, here.streams, here.device, here.for_clips)
        self._name = name and "+".join(_portable_name(member, EMBEDDED) for member in models.members(name))
        self._cluster, self._wanted_device = cluster, device

    def propose(
        self, sources: Iterable[Source], search: Search, *, samples: int = 0, temperature: float = 1.0
    ) -> Iterator[Proposed]:
        """sources: files"""
        # As many together as one process takes: sums that are made in another order end in other last digits.
        batches = list(batched(map(os.fspath, sources), captioning.BATCH))  # type: ignore[arg-type]
        make = partial(_proposing, self._name, self._wanted_device, self.identity, search, samples, temperature)
        sent = [[str(Path(file).absolute()) for file in batch] for batch in batches]
        for number, proposed in self._cluster.map_batches(sent, make, gpus=self._wanted_device != "cpu"):
            for file, item in zip(batches[number], proposed, strict=True):
                yield replace(item, file=file)

    def propose_by_words(
        self, sources: Iterable[Source], search: Search, scene: Scene, config: RerankConfig
    ) -> Iterator[Proposed]:
        raise UserError("--ray and --contrast words cannot be combined: workers do not know the collection.")


def _proposing(
    name: str | None, device: str, identity: str, search: Search, samples: int, temperature: float
) -> Callable[[list[str]], list[Proposed]]:
    captioner = load(name, device=device)
    _require(identity, captioner.identity, name or DEFAULT)

    def propose(files: list[str]) -> list[Proposed]:
        return list(captioner.propose(files, search, samples=samples, temperature=temperature))

    return propose


def extraction_on(cluster: Cluster, encoder: PhotoEncoder, device: str) -> Extraction:
    """Workers compute features, which come in the order in which they are done.

    encoder  as it is here; workers load their own
    """

    def extraction(examples: Sequence[Example]) -> Iterator[EncodedBatch]:
        batches = list(batched((Example(example.id, example.file) for example in examples), extracted.BATCH))
        make = partial(_load_encoding, config, device, encoder.weights_sha256)
        for _, batch in cluster.map_batches(batches, make, gpus=device != "cpu"):
            yield batch

    part = getattr(encoder, "part", None)  # of a tuned one, whose folder every node must have
    config = replace(encoder.config, name=_portable_name(str(part.folder) if part else encoder.config.name, ENCODERS))
    return extraction


def _load_encoding(config: EncoderConfig, device: str, sha256: str) -> Callable[[list[Example]], EncodedBatch]:
    encoder = load_encoder(config, numerics.choose_device(device))
    _require(sha256, encoder.weights_sha256, config.name)

    def encode(examples: list[Example]) -> EncodedBatch:
        (batch,) = encode_items(encoder, encoder, examples)
        return replace(batch, arrays=[array.half().cpu() for array in batch.arrays])  # as the store keeps them

    return encode


def _require(here: str, theirs: str, name: str) -> None:
    if here != theirs:
        raise UserError(f"the workers' weights of {name} differ from those on this machine.")


def _portable_name(name: str, ours: Container[str]) -> str:
    """A name as every node can read it: a folder's is absolute.  ours: names that come with the package"""
    return str(Path(name).absolute()) if name not in ours and is_folder(Path(name)) else name
