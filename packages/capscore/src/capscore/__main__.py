"""The command line: `capscore CAPTIONS REFERENCES`."""

from __future__ import annotations

import os
import sys

from capscore.errors import UserError
from capscore.printable import print_message, printable_streams
from capscore.version import __version__


def main(arguments: list[str] | None = None) -> int:
    from capscore import command

    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["-V"], ["--version"]):
        print(f"capscore {__version__}")
        return 0
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a file name need not be UTF-8; print it as it is
        stream.reconfigure(errors="surrogateescape")
    with printable_streams():
        try:
            code = command.main(arguments)
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


if __name__ == "__main__":
    sys.exit(main())
