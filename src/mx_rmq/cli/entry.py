"""Where ``mx-rmq`` begins: without the extra ``cli`` it says what to install."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    try:
        from mx_rmq.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("cyclopts", "rich"):
            raise
        sys.exit(f'mx-rmq: needs {error.name}; install it: pip install "mx-rmq[cli]"')
    sys.exit(run(sys.argv[1:]))
