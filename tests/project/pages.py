"""The pages that people read, and the code on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text_of(page: str) -> str:
    """A page by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """The part of a page under a heading, up to the next heading of the same level."""
    (found,) = re.findall(
        rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", text_of(page), re.MULTILINE | re.DOTALL
    )
    return str(found[1])


def blocks(text: str, language: str = "") -> list[str]:
    """The code blocks in a language; without one, those that name none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for name, code in fenced if name == language]


def files(text: str) -> dict[str, str]:
    """The Python files on a page, by name: a block whose first line is ``# name.py``, or begins so."""
    named = [(re.match(r"# ([\w/]+\.py)\b", code), code) for code in blocks(text, "python")]
    return {match[1]: code for match, code in named if match is not None}
