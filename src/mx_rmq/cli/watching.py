"""Which Python files have changed, by looking at them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})


class Watched:
    """The Python files below some directories, without hidden ones and virtual environments.

    Args:
        directories: where to look.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._before = self._seen()

    def changed(self) -> list[str]:
        """The files that were written, added or removed since the last call."""
        before, self._before = self._before, self._seen()
        files = before.keys() | self._before.keys()
        return sorted(file for file in files if before.get(file) != self._before.get(file))

    def _seen(self) -> dict[str, tuple[int, int]]:
        """The time of the last change and the size of every file."""
        return {file: seen for place in self._directories for file, seen in _python_files(str(place))}


def _python_files(directory: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError:  # it is gone, or not for us
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    yield from _python_files(entry.path)
            elif entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, (facts.st_mtime_ns, facts.st_size)
        except OSError:  # gone since
            continue
