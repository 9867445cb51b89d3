"""Where in the user's code an error came from: files, lines and functions, never values."""

from __future__ import annotations

import site
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Final

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
        if not code.co_filename.startswith(_OWN):
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARIES)]
    shown = [f"{_short(file)}:{line} in {name}" for file, line, name in (own or frames)[-_FRAMES:]]
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
