"""tellapart features: compute a data set's features once and keep them, or import those of other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from capscore.errors import UserError
from capscore.printable import counted, print_message, print_row
from tellapart import detectors
from tellapart.commands.arguments import RAY, RAY_HELP, Parser, between, check, is_set, option
from tellapart.encoders import ENCODERS
from tellapart.recipe import EncoderConfig, Pooling

if TYPE_CHECKING:
    from tellapart.data.examples import DataSet

_SHOWN = 3  # photos that a sentence names
_DETECTED = 36  # boxes of a photo
_FROM: dict[str, Any] = {"from": {"dest": "sources", "type": Path}}


_NEEDS = (  # an option, the one that it needs, and why
    ("threshold", "attributes", "the words that it is about"),
    ("attributes", "encoder", "a tagger's run, a retriever, or a detector"),
    ("detected", "detector", "which finds the boxes"),
)


def parser() -> Parser:
    defaults = EncoderConfig()
    parser = Parser(
        "features",
        "Compute the features of a data set's photos and cache them for training.\n"
        "Run it again to resume; photos that have not changed are skipped.\n"
        "\n"
        "With --from, import region features that another program computed: a folder with a .npz, .npy\n"
        "or .safetensors file for each photo, one such file for all, or the .tsv archives of bottom-up attention.\n"
        "Recipes use them by name: encoder: {name: NAME}.",
        "tellapart features coco.json --encoder resnet101 --image-size 448 --grid 14\n"
        "  tellapart features coco.json --from trainval_36.tsv test2014_36.tsv --name bottom_up_36 --cap 36",
        """
        DATA                a data file, or a folder of photos or clips
        --out DIR=features  cache folder
        """,
    )
    parser.options(
        f"""
        --encoder E       {", ".join(ENCODERS)}, or a vision backbone of transformers by folder or hub id (default:
                          {defaults.name})
        --image-size N    input size of the encoder in pixels (default: {defaults.image_size})
        --grid N          pool the feature map to N x N cells (default: {defaults.grid})
        --coarse N        add the N x N cells of a second grid (default: no second grid)
        --frames N        frames of a clip, evenly in time (default: the middle frame alone)
        --detector FILE   add the boxes that it finds to the cells: {detectors.KINDS}; --grid 1: only the whole photo
                          and the boxes
        --detected N      at most N boxes of the detector, most confident first (default: {_DETECTED})
        --pooling {"|".join(get_args(Pooling))}  how the feature map is pooled (default: {defaults.pooling})
        --attributes N    cache the N most probable words of each photo instead: E is a tagger's run, a retriever, or
                          a detector (FILE.onnx)
        --threshold P     leave out words that are less probable (default: 0)
        --device DEVICE   cpu, cuda ... (default: a GPU if there is one)
        --ray ADDRESS     {RAY_HELP}
        """,
        "compute features with an encoder",
        threshold=between(0, 1),
        ray=RAY,
    )
    return parser.options(
        """
        --from SOURCE...  archives or folders to import
        --name NAME       name for recipes, such as bottom_up_36
        --cap N           maximum number of regions per photo (default: 100)
        """,
        "import features",
        **_FROM,
    )


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)
    _check(request)

    from capscore import files
    from tellapart.data import examples
    from tellapart.data.readers import folder

    source = Path(request.data)
    dataset = folder.read(source) if files.is_folder(source) else examples.read(source, needs_files=not request.sources)
    failed = _import(request, dataset) if request.sources else _compute(request, dataset)
    for problem in dataset.problems:
        print_message(problem)
    return 1 if failed or dataset.problems else 0


def _check(request: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    if request.sources and not request.name:
        raise UserError("--from needs --name, the name of these features in recipes.")
    encoding = ("image_size", "grid", "coarse", "frames", "detector", "detected", "pooling", "ray")
    computing, importing = ("encoder", *encoding, "device", "attributes", "threshold"), ("name", "cap")
    check(request, _NEEDS, [("detector", "ray", "workers have no detector")])
    for name in encoding if request.attributes else ():
        if is_set(request, name):
            raise UserError(f"{option(name)} is for features; --attributes are computed as in training.")
    for name in computing if request.sources else importing:
        if is_set(request, name):
            why = "is for an encoder; --from imports features without one" if request.sources else "needs --from"
            raise UserError(f"{option(name)} {why}.")


def _compute(request: argparse.Namespace, dataset: DataSet) -> bool:
    """True where some photos have no features now."""
    from tellapart import numerics
    from tellapart.data.items import KIND_OF
    from tellapart.features.sources import Detected, Encoded
    from tellapart.models.parts import load_encoder
    from tellapart.models.sources import attributes

    examples, name, device = dataset.examples, request.encoder, numerics.choose_device(request.device or "auto")
    if request.attributes:
        words = attributes(EncoderConfig(name, most=request.attributes, threshold=request.threshold or 0.0), device)
        result, folder = words.extract(examples, request.out, dataset.name), words.folder(request.out, dataset.name)
    else:
        fields = ("image_size", "grid", "pooling", "coarse", "frames")
        settings = {"name": name, **{field: getattr(request, field) for field in fields}}
        settings["detected"] = (request.detected or _DETECTED) if request.detector else None
        config = EncoderConfig(**{field: value for field, value in settings.items() if value is not None})
        if request.ray:
            from tellapart.captioning.cluster import Cluster, extraction_on

            cluster = Cluster(request.ray)
        encoder = load_encoder(config, device)
        source = Detected(encoder, detectors.load(request.detector)) if request.detector else Encoded(encoder)
        extraction = extraction_on(cluster, encoder, request.device or "auto") if request.ray else None
        result = source.extract(examples, request.out, dataset.name, extraction)
        folder = source.folder(request.out, dataset.name)
    there = len(examples) - len(result.failed) - result.computed
    failed = f", {len(result.failed)} could not be used" if result.failed else ""
    print_row(f"{folder}: {result.computed} {KIND_OF[dataset.kind]} added, {there} were there{failed}")
    return bool(result.failed)


def _import(request: argparse.Namespace, dataset: DataSet) -> bool:
    """True where some photos have no features now."""
    from tellapart.features.importing import CAP, bring_in
    from tellapart.features.sources import import_folder

    store = import_folder(request.out, dataset.name, request.name)
    result = bring_in(dataset.examples, request.sources, store, request.name, request.cap or CAP)
    for note in result.notes:
        print_message(note)
    if missing := result.missing:
        shown = ", ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
        print_message(f"{len(missing)} of {len(dataset.examples)} photos have no features there: {shown}")
    without = f", {len(missing)} have none" if missing else ""
    print_row(f"{store}: {counted(result.added, 'photo')} added, {result.existing} were there{without}")
    return bool(missing or result.failed)
