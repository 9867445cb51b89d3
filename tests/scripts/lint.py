"""``python -m tests.scripts.lint``: parse and lint the Lua scripts as the server gets them.

Where Lua or luacheck is not installed, that part is skipped, and the last lines say so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mx_rmq.storage.scripts import SCRIPTS

GIVEN = ("KEYS", "ARGV", "redis", "cjson", "cmsgpack", "struct", "bit")
"""What the server puts at a script's disposal."""


def parser(files: list[str]) -> list[str] | None:
    """What parses Lua without running it. The server's Lua is 5.1; a later luac accepts more."""
    for name in ("luac5.1", "lua5.1", "luajit", "luac"):
        if tool := shutil.which(name):
            if name.startswith("luac"):
                return [tool, "-p", *files]
            return [tool, "-e", "".join(f"assert(loadfile[[{file}]]) " for file in files)]
    return None


def linter(folder: str) -> list[str] | None:
    """What finds unused and misspelt names."""
    tool = shutil.which("luacheck")
    options = ["--quiet", "--no-color", "--std", "lua51", "--read-globals", *GIVEN]
    return None if tool is None else [tool, folder, *options]


def main() -> int:
    worst = 0
    with tempfile.TemporaryDirectory(prefix="mx-lua-") as folder:
        files = []
        for script in SCRIPTS.values():
            file = Path(folder, f"{script.name}.lua")
            file.write_text(script.text)
            files.append(str(file))
        for name, command in {"Lua 5.1": parser(files), "luacheck": linter(folder)}.items():
            if command is None:
                print(f"skipped: {name} is not installed")
            else:
                worst = max(worst, subprocess.run(command, check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
