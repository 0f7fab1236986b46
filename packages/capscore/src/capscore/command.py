"""The command line: `capscore CAPTIONS REFERENCES`, which is `tellapart score` too."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, NoReturn

from capscore import __version__
from capscore.errors import UserError
from capscore.measures import MEASURES, Score
from capscore.printable import print_message, printable_streams

if TYPE_CHECKING:
    from capscore.scoring import Scores


class Parser(argparse.ArgumentParser):
    """One sentence for a wrong argument, and help that ends with an example."""

    def __init__(self, program: str, description: str, example: str):
        super().__init__(
            prog=program,
            description=description,
            epilog=f"for example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help.")


TRAINING = "training captions of the model, for measures that need them (of a data file, its split train)"


def parser(program: str = "capscore") -> Parser:
    parser = Parser(
        program,
        "Score captions against people's captions (references) of the same photos.\n"
        "\n"
        "  CAPTIONS    {id: caption}, COCO results [{image_id, caption}], or a file of `tellapart caption --out`;\n"
        "              {id: [captions]} for several per photo: the first is scored; diversity measures use all\n"
        "  REFERENCES  {id: [captions]}, COCO annotations, or a data file; plain or gzipped\n"
        "\n"
        "Photos go by their ids; with a data file also by their files, or in a copy of the folder by their names.\n"
        'A caption may be {"caption": text} in place of text, as in the gts and res of pycocoevalcap.\n'
        "\n"
        "Prints JSON: scores of the corpus with 95 % intervals (1,000 bootstrap samples of the photos) and a\n"
        "signature each.  Scores are fractions: a CIDEr-D of 1.21 is what papers print as 121.\n"
        "\n"
        f"Measures:\n{_explained()}",
        f"{program} captions.json references.json --metrics BLEU,METEOR,ROUGE-L,CIDEr-D",
    )
    parser.add_argument("captions", metavar="CAPTIONS", help="the captions to score")
    parser.add_argument("references", metavar="REFERENCES", help="the references")
    parser.add_argument(
        "--metrics",
        metavar="A,B",
        help="names of measures, or all; BLEU, SPICE, SGF and mBLEU stand for all their variants "
        "(default: all that need no Java)",
    )
    parser.add_argument("--per-image", action="store_true", help="also give the scores of each photo")
    parser.add_argument("--allow-missing", action="store_true", help="skip photos that are in one file only")
    parser.add_argument(
        "--against", metavar="OTHER", help="captions to compare with: a paired bootstrap test of each score"
    )
    parser.add_argument("--split", metavar="NAME", help="split of a data file to score, such as test (default: all)")
    parser.add_argument(
        "--df",
        default="self",
        metavar="D",
        help="document frequencies of CIDEr: self (from the references, the default), coco (bundled; for few photos, "
        "or to compare data sets), or a file of references or .npz",
    )
    parser.add_argument("--training", metavar="DATA", nargs="+", help=TRAINING)
    parser.add_argument("--out", metavar="F.json", type=Path, help="write the JSON to a file and print a table instead")
    return parser


def _explained() -> str:
    """Each measure and what it says."""
    wrap = TextWrapper(width=110, subsequent_indent=" " * 20)
    lines = []
    for info in (score for measure in MEASURES.values() for score in measure.scores):
        better = f" ({info.direction})" if info.higher_is_better is False else ""
        lines.append(wrap.fill(f"  {info.name:<18}{info.description.removesuffix('.')}{better}"))
    return "\n".join(lines)


def main(arguments: list[str], program: str = "capscore") -> int:
    request = parser(program).parse_args(arguments)

    from capscore import files
    from capscore.scoring import compare

    inputs = [request.captions, request.references, request.against, *(request.training or [])]
    if request.out and files.real(request.out) in [files.real(Path(path)) for path in inputs if path]:
        raise UserError(f"--out {request.out}: this is an input file; choose another name.")
    ours, *others = compare(
        [request.captions, *([request.against] if request.against else [])],
        request.references,
        metrics=request.metrics,
        df=request.df,
        training=request.training,
        split=request.split,
        allow_missing=request.allow_missing,
    )
    for line in dict.fromkeys(line for scores in (ours, *others) for line in scores.warnings):
        print_message(line)
    result = _result(ours, others, per_image=request.per_image)
    text = json.dumps(result, indent=1, allow_nan=False)
    if request.out is None:
        print(text)
    else:
        files.replace(request.out, (text + "\n").encode(), by_user=True)
        print(_table(result))
    return 0


def _result(ours: Scores, others: list[Scores], *, per_image: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "photos": len(ours.ids),
        "corpus": ours.corpus,
        "interval": {name: list(ends) for name, ends in ours.intervals().items()},
    }
    for other in others:
        scores = other.corpus
        result["against"] = {
            name: {
                "other": scores[name],
                "difference": difference.value,
                "interval": [difference.low, difference.high],
                "p": difference.p,
            }
            for name, difference in ours.against(other).items()
        }
    if per_image:
        result["per_image"] = ours.per_photo()
    result["signature"] = ours.signature
    if ours.skipped:
        result["skipped"] = ours.skipped
    return result


def _table(result: dict[str, Any]) -> str:
    """For people: fractions times 100."""
    from capscore.statistics import LEAST_P

    lines = [f"{result['photos']} photos; shares and scores times 100, with 95 % intervals"]
    for name, score in result["corpus"].items():
        shown = (MEASURES.score(name) or Score(name, "")).shown

        def ends(interval: list[float], shown: Any = shown) -> str:
            return f"[{shown(interval[0])}, {shown(interval[1])}]"

        line = f"{name:<16} {shown(score):>7}  {ends(result['interval'][name])}"
        if compared := result.get("against", {}).get(name):
            sign, p = "+" if compared["difference"] >= 0 else "", compared["p"]
            # samples can show a p no smaller than about two in their number
            chance = f"p {p:.3f}" if p > LEAST_P else f"p < {LEAST_P + 5e-4:.3f}"
            difference = f"{sign}{shown(compared['difference'])} {ends(compared['interval'])}"
            line = f"{line:<42} other {shown(compared['other'])}, difference {difference}, {chance}"
        lines.append(line)
    return "\n".join(lines)


def run(arguments: list[str] | None = None) -> int:
    """The program `capscore`: the command with its errors as exit codes."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["-V"], ["--version"]):
        print(f"capscore {__version__}")
        return 0
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a file name need not be UTF-8; print it as it is
        stream.reconfigure(errors="surrogateescape")
    with printable_streams():
        try:
            code = main(arguments)
            sys.stdout.flush()
            return code
        except UserError as error:
            print_message(f"capscore: {error}")
            return 2
        except KeyboardInterrupt:
            print("\ncapscore: stopped", file=sys.stderr)
            return 130
        except BrokenPipeError:  # `capscore ... | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
