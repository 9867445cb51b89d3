"""``mx-rmq top``: a live view, full screen."""

from __future__ import annotations

import sys

from mx_rmq.checks import check_installed
from mx_rmq.cli.connecting import opened
from mx_rmq.cli.exits import Exit, UsageError
from mx_rmq.cli.settings import Common

_DEFAULT = Common()


async def show_top(*, common: Common = _DEFAULT) -> int:
    """Show topics and workers, full screen, and act on them; ? lists the keys.

    Needs the extra tui.
    """
    check_installed("textual", "tui")
    if common.json or not sys.stdin.isatty() or not sys.stdout.isatty():
        raise UsageError("top needs a terminal; topics and workers print the same figures for programs")
    from mx_rmq.cli.top.app import TopApp  # imported here: it needs the extra, and takes long

    async with opened(common) as queue:
        app = TopApp(queue)
        await app.run_async()
    return app.return_code or Exit.DONE
