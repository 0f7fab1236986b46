"""What the argument parsers of commands share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from capscore.errors import UserError


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
