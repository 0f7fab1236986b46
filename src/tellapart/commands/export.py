"""tellapart export: a captioner as ONNX, checked against the original."""

from __future__ import annotations

from pathlib import Path

from tellapart.commands.arguments import Parser
from tellapart.printable import print_row


def parser() -> Parser:
    parser = Parser(
        "export",
        "Export a captioner to ONNX for onnxruntime.  The new folder works with --model like any other.\n"
        "The graphs are compared with the original on random inputs; if they differ, nothing is written.",
        "tellapart export plain --out plain_int8 --int8",
    )
    parser.add_argument("model", metavar="MODEL", help="a name from `tellapart models`, a run folder, or a hub id")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--int8",
        action="store_true",
        help="quantise matrices to 8 bits: smaller and faster, captions may differ slightly (default: fp32)",
    )
    return parser


def main(arguments: list[str]) -> int:
    request = parser().parse_args(arguments)

    from tellapart.models.onnx.export import export

    difference = export(request.model, request.out, int8=request.int8)
    for file in sorted(request.out.glob("*.onnx")):
        print_row(str(file), f"{file.stat().st_size / 1e6:.1f} MB")
    print(
        f"largest difference from {request.model}: {difference.largest:.2g} in numbers up to {difference.scale:.2g}; "
        f"logits {100 * difference.relative:.2g} % off"
    )
    return 0
