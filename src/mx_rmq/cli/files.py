"""Files of JSON lines: written whole or not at all, read line by line."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mx_rmq.cli.asking import interruptible
from mx_rmq.cli.exits import Failure, NotFound, UsageError
from mx_rmq.errors import MxRmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def new_file(name: str) -> Iterator[Callable[[Any], None]]:
    """Write records into a file that does not exist yet; yields what takes one record.

    At the end of the block the file is complete and on the disk. If the block fails, the file is removed.
    Only its owner may read it, since payloads are in it.

    Raises:
        UsageError: the file exists.
        Failure: it cannot be written.
    """
    path = Path(name)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{name} exists already and is not overwritten; name another file") from None
    except OSError as error:
        raise Failure(f"{name} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:

            def write(record: Any) -> None:
                file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")

            yield write
            file.flush()
            os.fsync(number)
        _sync_directory(path.absolute().parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        if isinstance(error, MxRmqError):  # the server is unavailable, which is an OSError too
            raise
        raise Failure(f"{name} cannot be written: {error.strerror}; it was removed") from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def opened_file(name: str) -> Iterator[BinaryIO]:
    """A file to read, ``-`` for stdin.

    Raises:
        NotFound: there is no such file.
        Failure: it cannot be read.
    """
    if name == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("rb"))
        except FileNotFoundError:
            raise NotFound(f"there is no file {name}") from None
        except OSError as error:
            raise Failure(f"{name} cannot be read: {error.strerror}") from None
        yield file


def _sync_directory(directory: Path) -> None:
    """The name of a new file must survive a crash too."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Records:
    """The records of a file of JSON lines, and which lines were refused.

    Args:
        lines: of the file.
    """

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines
        self._number = 0
        self.refused: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[Any]:
        while line := self._next_line():
            self._number += 1
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                self.refused.append((self._number, f"not JSON: {error}"))
            else:
                yield record

    def _next_line(self) -> bytes:
        with interruptible():
            return self._lines.readline()

    def refuse(self, error: MxRmqError) -> None:
        """The record that was yielded last cannot be put back."""
        self.refused.append((self._number, str(error)))
