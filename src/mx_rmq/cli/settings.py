"""Which server and queue a command works on, from options, the environment and pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from mx_rmq.checks import refuse_unknown
from mx_rmq.cli.exits import UsageError
from mx_rmq.errors import ConfigError

_GROUP: Final = Group("Common options", sort_key=100)
_TABLE: Final = "tool.mx-rmq"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that every command has."""

    url: Annotated[str | None, Parameter(group=_GROUP)] = None
    """The server; else MX_RMQ_URL, else url in [tool.mx-rmq] of pyproject.toml."""
    queue: Annotated[str | None, Parameter(group=_GROUP)] = None
    """The queue's name; else MX_RMQ_QUEUE, else queue in [tool.mx-rmq], else default."""
    json: Annotated[bool, Parameter(group=_GROUP)] = False
    """Print JSON and nothing else."""
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), group=_GROUP)] = False
    """Print no remarks."""

    def options(self) -> dict[str, Any]:
        """The url and name of the queue, as ``RedisMessageQueue`` takes them."""
        table = from_pyproject(Path.cwd())
        found = {
            "url": self.url or os.environ.get("MX_RMQ_URL") or table.get("url"),
            "name": self.queue or os.environ.get("MX_RMQ_QUEUE") or table.get("queue"),
        }
        return {name: value for name, value in found.items() if value}


def from_pyproject(directory: Path) -> dict[str, str]:
    """``[tool.mx-rmq]`` in the nearest pyproject.toml of a directory and those above it."""
    for place in (directory, *directory.parents):
        path = place / "pyproject.toml"
        if path.is_file():
            return _table_in(path)
    return {}


def _table_in(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("tool", {}).get("mx-rmq", {})
        refuse_unknown("setting", table, ["url", "queue"])
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise UsageError(f"[{_TABLE}] in {path}: {error}") from None
        raise UsageError(f"{path} cannot be read: {error}") from None
    for name, value in table.items():
        if not isinstance(value, str):
            raise UsageError(f"[{_TABLE}] in {path}: {name} must be a text, got {value!r}")
    return dict(table)
