"""Tables of what is known by name, to which code of the user's own adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from capscore.errors import UserError

_importing: list[str] = []  # the plugin that is being imported

Line = TypeVar("Line")


class Table(MutableMapping[str, Line]):
    """Lines by name, to which plugins add theirs.  A name that another has is refused: recipes may mean that one.

    what   one of its lines is, for messages
    kinds  of its lines
    """

    def __init__(self, what: str, lines: Mapping[str, Line], *kinds: type):
        self.what, self._lines, self._kinds = what, dict(lines), kinds
        self.added: dict[str, str] = {}  # lines that are not ours: name -> the plugin

    def __getitem__(self, name: str) -> Line:
        return self._lines[name]

    def __setitem__(self, name: str, line: Line) -> None:
        plugin = _importing[-1] if _importing else ""
        where = f"{plugin}: " if plugin else ""
        if name in self and self.added.get(name) != plugin:
            raise UserError(f"{where}there is a {self.what} {name!r} already; give yours another name.")
        if self._kinds and not isinstance(line, self._kinds):
            wanted = " or ".join(kind.__name__ for kind in self._kinds)
            raise UserError(f"{where}the {self.what} {name!r} must be a {wanted}, not a {type(line).__name__}.")
        self._lines[name], self.added[name] = line, plugin

    def __delitem__(self, name: str) -> None:
        del self._lines[name]
        self.added.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def named(self, name: str) -> str:
        """A line in messages, with the plugin that it is from."""
        plugin = self.added.get(name)
        return f"{plugin}: the {self.what} {name!r}" if plugin else f"the {self.what} {name!r}"


@contextmanager
def importing_now(name: str) -> Iterator[None]:
    """What is added to a table meanwhile is of this plugin."""
    _importing.append(Path(name).name)
    try:
        yield
    finally:
        _importing.pop()
