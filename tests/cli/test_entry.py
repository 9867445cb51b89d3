"""How the program starts: quickly, by both of its names, and with a sentence where the extra is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

import mx_rmq
from tests.project.pages import ROOT

ENTRY = "import sys; sys.argv[0] = 'mx-rmq'; from mx_rmq.cli.entry import main; "


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_script_and_the_module_are_the_same_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"mx-rmq": "mx_rmq.cli.entry:main"}
    for arguments in (["-c", f"{ENTRY}sys.exit(main())", "--version"], ["-m", "mx_rmq", "--version"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{mx_rmq.__version__}\n", "")


def test_help_imports_neither_redis_nor_the_queue() -> None:
    """It is typed more often than any command, and those imports take most of a second."""
    code = f"""
import atexit
{ENTRY}
heavy = ("redis", "msgspec", "mx_rmq.queue", "mx_rmq.storage", "mx_rmq.worker", "mx_rmq.processes")
atexit.register(lambda: print([name for name in heavy if name in sys.modules], file=sys.stderr))
main()
"""
    done = run("-c", code, "--help")
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "Usage: mx-rmq COMMAND" in done.stdout
    for command in ("run", "dev", "serve", "demo", "bench"):
        assert f"│ {command} " in done.stdout


@pytest.mark.parametrize("package", ["cyclopts", "rich"])
def test_without_the_extra_one_sentence_says_what_to_install(package: str) -> None:
    done = run("-c", f"import sys; sys.modules[{package!r}] = None; {ENTRY}main()", "topics")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f'mx-rmq: needs {package}; install it: pip install "mx-rmq[cli]"\n'
