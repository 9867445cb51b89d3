"""The rooms of the package and the direction of its imports; see docs/internals.md.

Every import counts, also those under ``TYPE_CHECKING`` and inside functions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mx_rmq"

LAYERS: Final[tuple[frozenset[str], ...]] = tuple(
    frozenset(layer.split())
    for layer in (
        "errors limits version",
        "checks events fingerprint health message payloads raised receipt retry config produce_options "
        "tables traces urls",
        "storage",
        "producing worker operating observing",
        "web",
        "lifecycle override signals",
        "queue",
        "finding supervisor",
        "processes",
        "__init__",
        "demo otel testing",
        "cli",
        "__main__",
    )
)
"""From the bottom to the top. A module imports from its own room and from lower layers only."""

Arrows = set[tuple[str, str]]
"""Who imports whom, both as ``room.module`` or as the name of a module at the root."""


def modules_of(package: Path) -> dict[str, Path]:
    """Every module by its name inside the package; a room's ``__init__`` by the name of the room."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(tree: ast.AST, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module names in any import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            if module != "mx_rmq" and not module.startswith("mx_rmq."):
                continue
            inside = module.removeprefix("mx_rmq").removeprefix(".")
            joined = f"{inside}.{name}".strip(".")
            yield joined if joined in modules else inside or "__init__"


def arrows_of(package: Path) -> Arrows:
    modules = modules_of(package)
    return {
        (module, other)
        for module, path in modules.items()
        for other in imported_by(ast.parse(path.read_text()), modules)
        if other != module
    }


def room(module: str) -> str:
    return module.partition(".")[0]


def layer(module: str) -> int:
    (found,) = [n for n, names in enumerate(LAYERS) if room(module) in names]
    return found


def backwards(arrows: Arrows) -> Arrows:
    """Arrows that point up, or from one room to another of the same layer."""
    return {
        (one, other)
        for one, other in arrows
        if room(one) != room(other)
        and (layer(one) < layer(other) or (layer(one) == layer(other) and "." in one + other))
    }


def cycles(arrows: Arrows) -> list[list[str]]:
    """Modules that import each other, over however many others."""
    reaches: dict[str, set[str]] = {}
    for module in {module for arrow in arrows for module in arrow}:
        seen: set[str] = set()
        line = [module]
        while line:
            here = line.pop()
            for one, other in arrows:
                if one == here and other not in seen:
                    seen.add(other)
                    line.append(other)
        reaches[module] = seen
    rings = {
        tuple(sorted(other for other in reaches[module] if module in reaches[other]))
        for module in reaches
        if module in reaches[module]
    }
    return sorted(map(list, rings))


def test_no_import_points_back() -> None:
    assert backwards(arrows_of(PACKAGE)) == set()


def test_no_modules_import_each_other() -> None:
    assert cycles(arrows_of(PACKAGE)) == []


def test_every_module_has_its_layer() -> None:
    for module in modules_of(PACKAGE):
        assert layer(module) >= 0


def test_every_import_is_seen(tmp_path: Path) -> None:
    """Under TYPE_CHECKING, inside a function, of a module or of a name in it."""
    (tmp_path / "storage").mkdir()
    (tmp_path / "worker").mkdir()
    (tmp_path / "errors.py").write_text("")
    (tmp_path / "worker" / "job.py").write_text("import mx_rmq.errors")
    (tmp_path / "storage" / "shard.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from mx_rmq.worker.job import Job\n"
        "def late() -> None:\n"
        "    from mx_rmq.worker import job\n"
        "    from mx_rmq import errors\n"
    )
    arrows = arrows_of(tmp_path)
    assert arrows == {
        ("worker.job", "errors"),
        ("storage.shard", "worker.job"),
        ("storage.shard", "errors"),
    }
    assert backwards(arrows) == {("storage.shard", "worker.job")}


@pytest.mark.parametrize(
    ("arrow", "back"),
    [
        (("storage.shard", "worker.settler"), True),
        (("worker.runner", "producing.producer"), True),
        (("worker.runner", "worker.settler"), False),
        (("errors", "checks"), True),
        (("checks", "events"), False),
        (("queue", "worker.handlers"), False),
        (("worker.handlers", "queue"), True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_arrows_are_judged_by_their_rooms(arrow: tuple[str, str], back: bool) -> None:
    assert bool(backwards({arrow})) is back


def test_a_ring_of_three_is_a_cycle() -> None:
    ring = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")}
    assert cycles(ring) == [["a", "b", "c"]]
    assert cycles(ring - {("c", "a")}) == []


PRODUCER = """
import asyncio, sys
from mx_rmq import RedisMessageQueue

async def produce():
    async with RedisMessageQueue("embedded://") as queue:
        await queue.produce("orders", 1)
        await queue.produce_many("orders", [2, 3])
        await asyncio.to_thread(queue.sync.produce, "orders", 4)
        assert (await queue.counts()).pending == 4

asyncio.run(produce())
print(sorted(name for name in sys.modules if name.startswith("mx_rmq.worker")))
"""


def test_a_pure_producer_imports_nothing_of_the_worker() -> None:
    done = subprocess.run([sys.executable, "-c", PRODUCER], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
