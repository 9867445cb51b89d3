"""Editing a payload: in an editor, or given as JSON; and what has changed."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from mx_rmq.cli.asking import answer, interruptible
from mx_rmq.cli.exits import Failure, UsageError

_EDITORS: Final = ("VISUAL", "EDITOR")


def pretty(payload: Any) -> str:
    """A payload as people read and edit it."""
    return json.dumps(payload, indent=2, ensure_ascii=False)


def payload_of(option: str, text: str) -> Any:
    """A payload as JSON, ``-`` for what stdin has.

    Raises:
        UsageError: it is not JSON; says where.
    """
    if text == "-":
        with interruptible():
            text = sys.stdin.read()
    try:
        return _decoded(text)
    except ValueError as error:
        raise UsageError(f"{option} must be JSON: {error}") from None


def edited(payload: Any) -> Any:
    """What a person makes of a payload in their editor; asks again as long as that is not JSON.

    Raises:
        UsageError: there is no terminal, or no editor.
        Failure: the editor failed, or the person gave up.
    """
    editor = next((os.environ[name] for name in _EDITORS if os.environ.get(name)), "vi")
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError("there is no terminal for an editor; give the new payload: --payload JSON")
    with tempfile.TemporaryDirectory(prefix="mx-rmq-") as directory:  # only its owner may look into it
        path = Path(directory, "payload.json")
        path.write_text(pretty(payload) + "\n", encoding="utf-8")
        while True:
            _open_editor(editor, path)
            try:
                return _decoded(path.read_text(encoding="utf-8"))
            except ValueError as error:
                if answer(f"This is not JSON: {error}. Edit it again? [Y/n] ") not in ("", "y", "yes"):
                    raise Failure("nothing was done") from None


def difference(before: Any, after: Any) -> str:
    """What has changed, line by line; empty if nothing has."""
    old, new = (pretty(each).splitlines() for each in (before, after))
    return "\n".join(difflib.unified_diff(old, new, "payload", "new payload", lineterm=""))


def _open_editor(editor: str, path: Path) -> None:
    # Ctrl-C belongs to the editor while it runs. A handler that does nothing is reset in the child; a signal
    # that is ignored would stay so.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        raise UsageError(f"the editor {editor!r} cannot be started ({error}); set EDITOR") from None
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise Failure(f"the editor {editor!r} failed with exit code {code}; nothing was done")


def _decoded(text: str) -> Any:
    """JSON as Python values; unlike ``json.loads``, it takes no NaN."""

    def refuse(constant: str) -> None:
        raise ValueError(f"JSON has no {constant}")

    return json.loads(text, parse_constant=refuse)
