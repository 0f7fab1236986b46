"""tellapart features: compute a data set's features once and keep them."""

from __future__ import annotations

import sys
from pathlib import Path

from tellapart.commands.arguments import Parser, positive
from tellapart.encoders import ENCODERS, EncoderConfig
from tellapart.errors import UserError


def parser() -> Parser:
    defaults = EncoderConfig()
    parser = Parser(
        "features",
        "Compute the features of a data set's photos once and keep them for training.\n"
        "A run that was stopped goes on where it was; photos that have not changed cost nothing.",
        "tellapart features coco.json --encoder efficientnet_lite2 --out features",
    )
    parser.add_argument("data", metavar="DATA", help="a data file, or a folder of photos")
    parser.add_argument("--encoder", default=defaults.name, choices=ENCODERS, help=f"default: {defaults.name}")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("features"), help="default: features")
    parser.add_argument(
        "--image-size",
        type=positive,
        default=defaults.image_size,
        help=f"pixels a side (default: {defaults.image_size})",
    )
    parser.add_argument(
        "--grid",
        type=positive,
        default=defaults.grid,
        help=f"cells a side of the feature map (default: {defaults.grid})",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda ... (default: a GPU if there is one)")
    return parser


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart import files, numerics
    from tellapart.data import examples
    from tellapart.data.features import extract, store_folder
    from tellapart.data.readers import folder
    from tellapart.encoders.encoder import Encoder

    source = Path(request.data)
    dataset = folder.read(source) if files.is_folder(source) else examples.read(source)
    if dataset.kind != "images":
        raise UserError(f"{source}: has {dataset.kind}; features are made of photos.")
    config = EncoderConfig(request.encoder, request.image_size, request.grid)
    encoder = Encoder(config, numerics.choose_device(request.device))
    store = store_folder(request.out, dataset.name, encoder)
    result = extract(dataset.examples, encoder, store)
    for problem in dataset.problems:
        print(problem, file=sys.stderr)
    before = len(dataset.examples) - len(result.failed) - result.computed
    failed = f", {len(result.failed)} could not be used" if result.failed else ""
    print(f"{store}: {result.computed} photos added, {before} were there{failed}")
    return 1 if result.failed or dataset.problems else 0
