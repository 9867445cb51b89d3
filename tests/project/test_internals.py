"""docs/internals.md names files and functions that exist, and every file of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mx_rmq"
PAGE = (ROOT / "docs" / "internals.md").read_text()

HOPS = sorted(set(re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", PAGE)))
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def names_in(path: Path) -> set[str]:
    """The functions and classes of a module, and the methods of its classes."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


@pytest.mark.parametrize(("file", "name"), HOPS, ids=lambda value: str(value))
def test_every_hop_of_a_walk_exists(file: str, name: str) -> None:
    assert name in names_in(PACKAGE / file)


def test_the_walks_are_there() -> None:
    assert len(HOPS) > 25
    assert SECTIONS["The walks"].count("\n### ") == 4


def files_in_the_tree() -> set[str]:
    """The files that the drawn tree names, with the folder they are drawn in."""
    found, folder = set(), ""
    (tree,) = re.findall(r"```\n(src/mx_rmq/\n.*?)```", SECTIONS["The rooms"], re.DOTALL)
    for line in tree.splitlines()[1:]:
        if room := re.match(r"  (\w+/) ", line):
            folder = room[1]
        elif line.startswith("  ") and not line.startswith("   "):
            folder = ""
        found |= {folder + name for name in re.findall(r"\b[\w/]+\.py\b|__init__\.py", line)}
    return found


def test_the_tree_names_every_file() -> None:
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert files_in_the_tree() == {file for file in files if not file.endswith("/__init__.py")}


def test_ten_changes_have_their_room() -> None:
    rows = re.findall(
        r"^\| (?!change|---)(.+?) \| (.+?) \|$", SECTIONS["Where to put a change"], re.MULTILINE
    )
    assert len(rows) == 10
    for change, room in rows:
        for path in re.findall(r"`([\w/]+(?:\.py|/))`", room):
            assert path == "cli/" or (PACKAGE / path).exists(), change
