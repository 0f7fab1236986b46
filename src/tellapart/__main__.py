"""The command line: a table of commands, each imported only when it is asked for, so that --help stays quick."""

from __future__ import annotations

import codecs
import difflib
import errno
import os
import sys
import traceback
from importlib import import_module

from capscore.errors import UserError
from capscore.printable import print_message, printable_streams
from tellapart import plugins
from tellapart.version import __version__, commit

COMMANDS = {  # name: what it does; commands/NAME.py has `main(arguments) -> exit code`
    "demo": "caption the embedded album and write a page with photos and captions",
    "caption": "caption photos, folders of photos or a data file",
    "train": "train a captioner or a retriever with a recipe",
    "adapt": "fine-tune a captioner on photos without captions",
    "score": "score captions against references: BLEU, METEOR, CIDEr-D and others",
    "evaluate": "measure the accuracy and the distinctiveness of captions",
    "compare": "compare training runs: tables, curves, captions that changed",
    "lookalikes": "find photos that look alike, near-duplicates and copies",
    "write": "write captions into XMP sidecars, text files or the photos",
    "alt": "write alt texts into the HTML and Markdown pages of a site",
    "lint": "find captions that accessibility checkers would flag",
    "serve": "caption a folder and review the captions on a web page; a JSON API",
    "prepare": "convert a data set to the format of the other commands",
    "study": "run the human studies of the papers: new, serve, results, simulate, size",
    "features": "compute or import the features of a data set and cache them",
    "pool": "prepare rewards of captions for other trainers, and serve them",
    "check": "check the captioners, rewards, measures, readers and encoders of a plugin",
    "models": "list captioners, retrievers, encoders and recipes",
    "doctor": "check this machine and the installation",
}

RESUMABLE = {  # what the same command needs to continue
    "train": " with --resume",
    **dict.fromkeys(("caption", "features", "evaluate", "adapt", "write", "serve"), ""),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, line in COMMANDS.items()]
    return "\n".join(
        [
            "usage: tellapart COMMAND ... [--help]",
            "",
            "Captions that tell photos apart.",
            "",
            *lines,
            "",
            "Every command takes --plugin FILE_OR_MODULE: your own captioners, rewards, measures and readers.",
            "tellapart COMMAND --help shows all options.  Example:  tellapart caption holiday/ --out captions.jsonl",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    codecs.register_error("tellapart", _written)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="tellapart")
    with printable_streams():
        try:
            return _run(arguments)
        except Exception:  # a fault of ours; Python itself would print it, but with all characters of a file's name
            traceback.print_exc()
            return 1


def _written(error: UnicodeError) -> tuple[str | bytes, int]:
    """A file name need not be UTF-8, and is printed as it is; what the output's encoding lacks, as \\xfc or \\u732b."""
    if not isinstance(error, UnicodeEncodeError):  # whoever stands in for the terminal reads it again
        return codecs.lookup_error("surrogateescape")(error)
    written = b""
    for character in error.object[error.start : error.end]:
        is_byte = "\udc80" <= character <= "\udcff"
        written += character.encode("ascii", "surrogateescape" if is_byte else "backslashreplace")
    return written, error.end


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    command, rest = arguments[0], arguments[1:]
    if command in ("-V", "--version"):
        built_from = commit()
        print(f"tellapart {__version__}" + (f" (commit {built_from})" if built_from else ""))
        return 0
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(COMMANDS)}."
        print_message(f"tellapart: there is no command {command!r}; {hint}")
        return 2
    try:
        run = import_module(f"tellapart.commands.{command}").main
        code: int = run(plugins.take(rest))
        if sys.stdout:
            sys.stdout.flush()
        return code
    except UserError as error:
        print_message(f"tellapart {command}: {error}")
        return 2
    except KeyboardInterrupt:
        resumable = f"; the same command{RESUMABLE[command]} continues from here" if command in RESUMABLE else ""
        print(f"\ntellapart {command}: stopped{resumable}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `tellapart ... | head`: the reader has seen enough
        _discard_output()
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard_output()
        print_message(f"tellapart {command}: the output cannot be written ({error.strerror}).")
        return 2


def _discard_output() -> None:
    """Send the rest nowhere: it cannot be printed, and Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
