"""Where in the user's code an error came from: files, lines and functions, never values."""

from __future__ import annotations

import site
import sysconfig
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

_OWN: Final = f"{Path(__file__).parent}/"
_LIBRARIES: Final = tuple(
    f"{path}/"
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *site.getsitepackages()}
)
_FRAMES: Final = 12
_BYTES: Final = 2000
"""The most that is kept of a trace."""


def trace_of(error: BaseException) -> str:
    """The last frames of the user's code, the innermost last.

    They read like ``shop.py:12 in on_order > shop.py:31 in deep``.
    Frames of mx-rmq are left out, and those of libraries too if there are others.
    """
    frames: list[tuple[str, int, str]] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    frames = [frame for frame in frames if not frame[0].startswith(_OWN)]
    return _shown(_of_the_user(frames) or frames)


def lines_of(error: BaseException) -> str:
    """The frames of the user's code with their lines, as Python prints them; for errors at an import.

    The place of a syntax error is among them. The error itself is not.
    """
    found = traceback.TracebackException.from_exception(error)
    frames = [
        frame for frame in found.stack if not frame.filename.startswith((_OWN, *_LIBRARIES, "<frozen "))
    ]
    lines = traceback.format_list(frames[-_FRAMES:])
    if isinstance(error, SyntaxError):
        lines += list(found.format_exception_only())[:-1]
    return "".join(lines).rstrip("\n")


def trace_of_stack(frame: FrameType | None, outermost: FrameType | None) -> str:
    """The frames of the user's code in what a thread executes now, empty if there are none.

    Args:
        frame: the thread's innermost frame.
        outermost: the frame to stop at.
    """
    frames: list[tuple[str, int, str]] = []
    while frame is not None:
        frames.insert(0, (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = None if frame is outermost else frame.f_back
    return _shown(_of_the_user(frames))


def _of_the_user(frames: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    return [frame for frame in frames if not frame[0].startswith((_OWN, *_LIBRARIES))]


def _shown(frames: list[tuple[str, int, str]]) -> str:
    shown = [f"{_short(file)}:{line} in {name}" for file, line, name in frames[-_FRAMES:]]
    while len(shown) > 1 and len(" > ".join(shown).encode(errors="replace")) > _BYTES:
        del shown[0]
    return " > ".join(shown).encode(errors="replace")[:_BYTES].decode(errors="replace")


def place_of(trace: str) -> str:
    """The innermost frame of a trace."""
    return trace.rpartition(" > ")[2]


@lru_cache(maxsize=1024)
def _short(file: str) -> str:
    """A file as its owner knows it: relative to the current directory, or its last two parts."""
    here = f"{Path.cwd()}/"
    return file.removeprefix(here) if file.startswith(here) else "/".join(Path(file).parts[-2:])
