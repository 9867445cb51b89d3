"""The commands by name, and what happens around each: parsing, errors, exit codes."""

from __future__ import annotations

import difflib
import os
import sys
from typing import TYPE_CHECKING, Final

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError

from mx_rmq import __version__
from mx_rmq.cli.exits import Exit, Failure, code_of
from mx_rmq.errors import MxRmqError
from mx_rmq.tables import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final = {
    "Run": {
        "run": ("running:run_worker", "Run a queue's worker."),
        "dev": ("dev:dev", "Develop: a server, a worker that reloads, a live table."),
        "serve": ("serving:serve", "Run the bundled server in the foreground."),
        "demo": ("trial:demo", "See ten thousand messages go through a queue."),
        "bench": ("trial:bench", "Measure a server with a small load."),
    },
    "Look": {
        "topics": ("topics:show_topics", "How every topic stands."),
        "messages": ("messages:messages", "The messages of a topic in one state."),
        "show": ("messages:show", "All that is known about a message."),
        "explain": ("messages:explain", "Why a message has not run."),
        "workers": ("workers:show_workers", "The live workers."),
        "shards": ("shards:show_shards", "The shards of the queue, and what each has."),
        "stats": ("stats:stats", "What was produced, completed, retried and dead, by topic."),
        "check": ("check:check", "Is all well? For Kubernetes, cron and Nagios."),
        "doctor": ("doctor:doctor", "What is wrong with server, rights, topics and workers."),
        "top": ("top:show_top", "A live view, full screen."),
        "web": ("web:web", "The queue in a browser."),
        "tail": ("tail:show_tail", "What happens in all workers, live."),
    },
    "Mend": {
        "topic": ("topics:topic", "Pause, resume or purge a topic."),
        "dlq": ("dlq:dlq", "Look at dead messages; replay, edit, delete, export or import them."),
        "produce": ("produce:produce", "Store a message, or many from JSON lines."),
        "run-now": ("messages:run_now", "Let a delayed message run now."),
        "cancel": ("messages:cancel", "Withdraw a message that has not started."),
        "reshard": ("shards:reshard", "Spread the queue over another number of shards."),
        "audit": ("doctor:audit", "Is every message in exactly one place?"),
    },
    "More": {
        "completion": ("completion:completion", "Print a script that completes commands and topics."),
    },
}
"""The modules are imported when a command is used, so that ``--help`` is quick."""

app = App(
    name="mx-rmq",
    help="Operate a queue: see what is wrong, and put it right.",
    version=__version__,
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=(), show_default=False),
)
for _group, _commands in _COMMANDS.items():
    for _name, (_path, _summary) in _commands.items():
        app.command(f"mx_rmq.cli.{_path}", name=_name, help=_summary, group=_group)


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; returns the exit code.

    Whatever a user can cause is said in one sentence on stderr; anything else is a bug and shows its
    traceback.
    """
    try:
        code = app(list(arguments), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return Exit.INTERRUPTED
    except CycloptsError as error:
        return _refuse(error)
    except Failure as failure:
        _say(str(failure))
        return failure.code
    except MxRmqError as error:
        _say(str(error))
        return code_of(error)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return code if isinstance(code, int) else Exit.DONE


def _refuse(error: CycloptsError) -> int:
    """Say why the arguments were not understood."""
    said = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, UnknownCommandError):
        names = [name for commands in _COMMANDS.values() for name in commands]
        token = error.unused_tokens[0] if error.unused_tokens else ""
        close = difflib.get_close_matches(token, names, 1)
        said = f"there is no command {token!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    command = " ".join(["mx-rmq", *(error.command_chain or ())])
    _say(f"{said}; see {command} --help")
    return Exit.UNREACHABLE if command == "mx-rmq check" else Exit.USAGE  # for monitors 2 is critical


def _say(line: str) -> None:
    print(f"mx-rmq: {printable(line)}", file=sys.stderr)
