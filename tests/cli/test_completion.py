"""``completion``: real completions of a real bash."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli

BASH = shutil.which("bash")

_ASK = """
source <(mx-rmq completion bash)
complete -p mx-rmq
ask() {
    COMP_WORDS=(mx-rmq "$@"); COMP_CWORD=$#; COMPREPLY=()
    _mx_rmq
    printf '%s ' "${COMPREPLY[@]}"; echo
}
ask wor
ask messages ord
ask messages --queue other ord
ask topic pause m
ask messages --url redis://127.0.0.1:1 ord
ask messages orders --state de
"""


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@ONE_SERVER
async def test_bash_completes_commands_options_and_topics(queue: RedisMessageQueue, cli: Cli) -> None:
    assert BASH is not None
    for topic in ("orders", "orders-old", "mails"):
        await queue.produce(topic, 1)
    program = cli.directory / "mx-rmq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mx_rmq "$@"\n')
    program.chmod(0o755)
    done = await asyncio.to_thread(
        subprocess.run,
        [BASH, "--norc", "-c", _ASK],
        env=cli.env | {"PATH": f"{cli.directory}:{cli.env['PATH']}"},
        cwd=cli.directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    registered, command, topics, elsewhere, paused, down, states = done.stdout.splitlines()
    assert registered.startswith("complete")
    assert command.split() == ["workers"]
    assert sorted(topics.split()) == ["orders", "orders-old"]
    assert elsewhere.split() == []
    assert paused.split() == ["mails"]
    assert down.split() == []
    assert sorted(states.split()) == ["dead", "delayed"]


@ONE_SERVER
async def test_completing_while_the_server_does_not_answer_is_silent_and_quick(cli: Cli) -> None:
    began = time.monotonic()
    await cli("--help")
    start = time.monotonic() - began
    began = time.monotonic()
    ran = await cli("__complete", "messages", "--url", "redis://127.0.0.1:1", "ord")
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.split() in ([], ["begin"])
    assert time.monotonic() - began < 2 + 4 * start


@ONE_SERVER
@pytest.mark.parametrize("shell", ["zsh", "fish"])
async def test_there_is_a_script_for_other_shells(cli: Cli, shell: str) -> None:
    ran = await cli("completion", shell)
    assert ran.code == 0
    assert "__complete" in ran.out
