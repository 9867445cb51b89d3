"""The Lua scripts, each with its contract read from its header."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

_KEY = re.compile(r"\d+ (\S+) (hash|zset|list|set|string)\b")


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One script: its text as the server runs it, and the keys that its header declares."""

    name: str
    text: str
    sha: str
    keys: tuple[tuple[str, str], ...]
    """Name and Redis type of each key, in order."""


def _section(header: str, title: str) -> str:
    """The text after ``-- TITLE``, with its continuation lines."""
    found = re.search(rf"^-- {title} +(.*(?:\n--  +.*)*)", header, re.MULTILINE)
    return re.sub(r"\n-- +", " ", found[1]) if found else ""


def load(root: Traversable) -> Mapping[str, Script]:
    """Read every script of a directory, each preceded by the helpers that its ``Uses`` line names."""
    scripts = {}
    for entry in root.iterdir():
        if entry.name.endswith(".lua"):
            name = entry.name.removesuffix(".lua")
            source = entry.read_text(encoding="utf-8")
            helpers = [
                (root / "lib" / f"{helper}.lua").read_text(encoding="utf-8")
                for helper in _section(source, "Uses").split()
            ]
            text = "\n".join([*helpers, source])
            keys = tuple((key, kind) for key, kind in _KEY.findall(_section(source, "KEYS")))
            scripts[name] = Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), keys)
    return scripts


SCRIPTS = load(files(__name__))
