"""``./mx bench --against COMMIT``: this tree and another commit, measured in turns in one run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import redis

from benchmarks.bench import steady_cores
from benchmarks.comparison import Compared, Figure, percentile, rise
from mx_rmq.storage.embedded import EmbeddedServer

ROOT = Path(__file__).parents[1]

_LONGER = 3
"""How many times the rounds may be gone through on a machine that does other things too."""


class CannotCompare(Exception):
    """There is no such commit, or one of the versions cannot be measured."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a subject is asked to do, how many messages it takes, and the figures that come of it."""

    count: int
    figures: list[Figure]
    steady: bool = False
    """Whether the cores are kept awake for it."""
    rounds: float = inf
    """At most so many: memory hardly differs from one round to the next."""


_IDLE = "idle latency, produce to handler"
MEASURES: dict[str, dict[str, Measure]] = {
    "throughput": {
        "drain": Measure(15_000, [Figure("drain, no-op async handlers", "msg/s", max)], steady=True),
        "batch drain": Measure(15_000, [Figure("drain, batch handler of 100", "msg/s", max)], steady=True),
        "100 producers": Measure(15_000, [Figure("100 producers awaiting each", "msg/s", max)], steady=True),
        "produce_many": Measure(20_000, [Figure("produce_many", "msg/s", max)], steady=True),
        "one producer": Measure(1_500, [Figure("one producer awaiting each", "msg/s", max)], steady=True),
    },
    "latency": {
        "idle": Measure(
            150,
            [
                Figure(f"{_IDLE}, p50", "ms", percentile(50)),
                Figure(f"{_IDLE}, p99", "ms", percentile(99), judged=False),
            ],
        ),
        "delay": Measure(
            150,
            [
                Figure("delay lateness, p50", "ms", percentile(50)),
                Figure("delay lateness, p99", "ms", percentile(99), judged=False),
            ],
        ),
    },
    "weight": {
        "weight": Measure(50_000, [Figure("server memory per pending message", "bytes")], rounds=3),
        "alone": Measure(2_000, [Figure("server time for a message produced alone", "µs", min)], steady=True),
    },
    "growth": {
        "growth": Measure(
            50_000,
            [
                Figure("worker memory after 50,000 messages", "MB", max),
                Figure("worker memory growth from 10,000 on", "MB", rise, judged=False),
            ],
            rounds=3,
        ),
    },
}
"""By the words that choose them on the command line."""


class Subject:
    """A process that measures one version."""

    def __init__(self, name: str, src: Path, log: Path) -> None:
        self.name = name
        self._src = src
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.subject"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                # The same hashes for both: the order of a set is no difference between versions.
                env={**os.environ, "PYTHONPATH": str(src), "PYTHONHASHSEED": "0"},
            )

    def __enter__(self) -> Subject:
        try:
            package = Path(self._hear()["package"])
            if not package.is_relative_to(self._src):
                raise CannotCompare(f"{self.name}: measured would be {package}, not what is in {self._src}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def ask(self, measure: str, url: str, count: int) -> list[float]:
        assert self._process.stdin is not None
        request = {"measure": measure, "url": url, "count": count}
        with suppress(BrokenPipeError):  # it ended; the next line says why
            print(json.dumps(request), file=self._process.stdin, flush=True)
        samples: list[float] = self._hear()["samples"]
        return samples

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(errors="replace").splitlines()[-8:]
            raise CannotCompare("\n    ".join([f"{self.name} cannot be measured; its process ended:", *said]))
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Ground:
    """The one server that both versions use in turn, and where each version's source is."""

    server: EmbeddedServer
    redis: redis.Redis
    sources: dict[str, Path]
    log: Path

    def subject(self, name: str) -> Subject:
        return Subject(name, self.sources[name], self.log)

    def memory(self) -> int:
        return int(self.redis.info("memory")["used_memory"])

    def measure(self, what: str, subject: Subject, count: int) -> list[float]:
        """One turn of one version, on an empty server."""
        self.redis.execute_command("FLUSHALL", "SYNC")
        url = self.server.url
        if what == "weight":
            before = self.memory()
            subject.ask("produce_many", url, count)
            return [(self.memory() - before) / count]
        if what == "alone":
            self.redis.config_resetstat()
            subject.ask("one producer", url, count)
            return [float(self.redis.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])]
        if what == "growth":  # another process has produced, so that only handling takes memory
            subject.ask("produce_many", url, count)
            with self.subject(subject.name) as worker:
                return worker.ask("growth", url, count)
        return subject.ask(what, url, count)


@contextmanager
def ground(commit: str) -> Iterator[Ground]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mx-bench-"))).resolve()
        sha = resolve(commit)
        unpack(sha, home)
        server = stack.enter_context(EmbeddedServer.open())
        client = stack.enter_context(redis.Redis.from_url(server.url))
        yield Ground(server, client, {"this tree": ROOT / "src", sha[:10]: home / "src"}, home / "log")


def resolve(commit: str) -> str:
    """The full name of a commit."""
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        reason = f"--against wants a commit of this repository, got {commit!r}"
        raise CannotCompare(f"{reason}: {said}" if said else reason)
    return done.stdout.decode().strip()


def unpack(sha: str, home: Path) -> None:
    """Put the sources of a commit below *home*."""
    done = _git("archive", "--format=zip", sha, "src/mx_rmq")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise CannotCompare(f"commit {sha[:10]} cannot be unpacked: {said}")
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(home)


def _git(*args: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, check=False)
    except FileNotFoundError:
        raise CannotCompare("--against needs git, which is not installed") from None


def compare(
    commit: str,
    groups: Sequence[str],
    *,
    rounds: int,
    scale: float,
    reach: float,
    tell: Callable[[str], None],
) -> tuple[str, list[Compared]]:
    """The other version's short name, and every figure of both.

    What differs too much from round to round is measured for up to ``_LONGER`` times the rounds.
    """
    chosen = {what: measure for group in groups for what, measure in MEASURES[group].items()}
    rows = {what: [Compared(figure, reach) for figure in measure.figures] for what, measure in chosen.items()}
    with ground(commit) as field:
        this, other = field.sources
        for n in range(_LONGER * rounds):
            wanted = [what for what in chosen if is_wanted(n, rounds, chosen[what], rows[what])]
            if not wanted:
                break
            # New processes in every round: how the memory of one lies makes it faster or slower for good.
            with field.subject(this) as ours, field.subject(other) as theirs:
                for subject in (ours, theirs):
                    field.measure("drain", subject, 1_000)  # a warm-up
                for what in wanted:
                    tell(f"round {n + 1} of {rounds}, {_LONGER * rounds} at most: {what}")
                    pair = (ours, theirs) if n % 2 == 0 else (theirs, ours)
                    samples = in_turns(field, what, chosen[what], scale, pair)
                    for row in rows[what]:
                        row.add(samples[ours], samples[theirs])
    return other, [row for what in chosen for row in rows[what]]


def is_wanted(n: int, rounds: int, measure: Measure, rows: Sequence[Compared]) -> bool:
    """Whether something is measured in round *n*, counted from 0."""
    return n < measure.rounds and (n < rounds or not all(row.settled for row in rows))


def in_turns(
    field: Ground, what: str, measure: Measure, scale: float, pair: tuple[Subject, Subject]
) -> dict[Subject, list[float]]:
    """What both measured in turns, A B B A B A A B: a machine that gets slower or faster meets both alike."""
    samples: dict[Subject, list[float]] = {subject: [] for subject in pair}
    count = max(100, round(measure.count * scale))
    there_and_back = (*pair, *reversed(pair))
    with steady_cores() if measure.steady else nullcontext():
        for subject in (*there_and_back, *reversed(there_and_back)):
            samples[subject] += field.measure(what, subject, count)
    return samples
