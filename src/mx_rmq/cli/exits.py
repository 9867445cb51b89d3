"""How commands end: exit codes, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from mx_rmq.errors import (
    ConfigError,
    InvalidName,
    InvalidPayload,
    MxRmqError,
    ServerRefused,
    ServerUnavailable,
)


class Exit(IntEnum):
    """The exit codes of every command but ``check``."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


class Failure(Exception):
    """A command that ends with a sentence for the person and an exit code for the program."""

    def __init__(self, said: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(said)
        self.code = code


class UsageError(Failure):
    """What was typed cannot be meant."""

    def __init__(self, said: str) -> None:
        super().__init__(said, Exit.USAGE)


class NotFound(Failure):
    """What was asked for does not exist."""

    def __init__(self, said: str) -> None:
        super().__init__(said, Exit.NOT_FOUND)


_BY_KIND: Final[tuple[tuple[type[Exception], Exit], ...]] = (
    (ServerUnavailable, Exit.UNREACHABLE),
    (ServerRefused, Exit.FAILED),  # what was typed may be right
    (ConfigError, Exit.USAGE),
    (InvalidName, Exit.USAGE),
    (InvalidPayload, Exit.USAGE),
    (LookupError, Exit.NOT_FOUND),  # UnknownTopic, NotDead
)


def code_of(error: MxRmqError) -> Exit:
    """The exit code for an error of the library."""
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), Exit.FAILED)
