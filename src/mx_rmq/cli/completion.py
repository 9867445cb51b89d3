"""``mx-rmq completion``, and the names of topics while one is typed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from mx_rmq.cli.settings import Common

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

_PATIENCE: Final = 1.0
"""Seconds after which nothing is completed: a person waits."""


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script for a shell that completes commands, options and the names of topics.

    For bash: source <(mx-rmq completion bash), for example in ~/.bashrc.

    Args:
        shell: bash, zsh or fish.
    """
    from mx_rmq.cli.app import app

    print(app.generate_completion(prog_name="mx-rmq", shell=shell))


def topics_like(context: CompletionContext) -> list[str]:
    """The names of topics that begin like what was typed; none if the server does not answer at once."""
    url, queue = (value.raw if (value := context.get(name)) else None for name in ("--url", "--queue"))
    try:
        names = asyncio.run(_topics(Common(url=url, queue=queue)))
    except Exception:  # whatever it is, there is no place to say it
        return []
    return [name for name in names if name.startswith(context.incomplete)]


async def _topics(common: Common) -> list[str]:
    from mx_rmq.cli.connecting import opened

    async with asyncio.timeout(_PATIENCE), opened(common, must_exist=False) as queue:
        return await queue.topics()


Topic = Annotated[str, Parameter(completer=topics_like)]
"""A topic as an argument of a command."""
