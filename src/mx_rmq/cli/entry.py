"""Where ``mx-rmq`` begins: without the extra ``cli`` it says what to install."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    for package in ("cyclopts", "rich"):
        if find_spec(package) is None:
            sys.exit(f'mx-rmq: needs {package}; install it: pip install "mx-rmq[cli]"')
    from mx_rmq.cli.app import run

    sys.exit(run(sys.argv[1:]))
