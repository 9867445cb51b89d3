"""Finding a queue that is named as ``package.module:name``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mx_rmq.errors import ConfigError, MxRmqError
from mx_rmq.message import describe
from mx_rmq.queue import RedisMessageQueue
from mx_rmq.traces import lines_of

if TYPE_CHECKING:
    from types import ModuleType

being_imported: list[str] = []
"""The queues that are being imported now."""


def find_queue(where: str) -> RedisMessageQueue:
    """Import a queue named as ``package.module:name``.

    Raises:
        ConfigError: there is no queue of this name. If the module itself raised, that is the cause.
    """
    path, _, name = where.partition(":")
    if not path or not name:
        raise ConfigError(f"{where!r} does not name a queue; write it as package.module:name")
    if "/" in path or path.startswith("."):
        raise ConfigError(f"{where!r} does not name a queue; did you mean {_dotted(where)!r}?")
    module = _import(path, where)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            file = getattr(module, "__file__", None)
            raise ConfigError(
                f"module {path!r}{f' ({file})' if file else ''} has no {name!r}{_queues_of(module)}"
            ) from None
    if not isinstance(found, RedisMessageQueue):
        raise ConfigError(
            f"{where!r} is a {type(found).__name__}, not a RedisMessageQueue{_queues_of(module)}"
        )
    return found


def _import(path: str, where: str) -> ModuleType:
    being_imported.append(where)
    try:
        return importlib.import_module(path)
    except MxRmqError:  # the module itself was told what is wrong with it
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path != missing and not path.startswith(f"{missing}."):  # the module imports another one
            raise _not_imported(path, error) from error
        hint = f"; did you mean {_dotted(where)!r}?" if path.endswith(".py") else ""
        raise ConfigError(f"there is no module {missing!r}, looked for from {Path.cwd()}{hint}") from None
    except Exception as error:
        raise _not_imported(path, error) from error
    finally:
        being_imported.pop()


def _not_imported(path: str, error: Exception) -> ConfigError:
    lines = lines_of(error)
    return ConfigError(f"importing {path!r} failed: {describe(error)}" + (f"\n{lines}" if lines else ""))


def _dotted(where: str) -> str:
    """A file such as ``shop/queue.py:mq`` as it is imported."""
    path, _, name = where.partition(":")
    return f"{path.removesuffix('.py').strip('./').replace('/', '.')}:{name}"


def _queues_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, RedisMessageQueue)]
    return f"; did you mean {module.__name__}:{names[0]}?" if names else ""
