"""What the dashboard needs of a queue: the public methods of ``RedisMessageQueue`` that it calls.

The queue makes its dashboard (``mq.dashboard()``), so the dashboard is below the queue and does not import
it. A page that needs another method adds it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mx_rmq.checks import Duration
    from mx_rmq.config import Config
    from mx_rmq.health import Health
    from mx_rmq.operating.audit_report import AuditReport
    from mx_rmq.operating.dead_letters import DeadLetters
    from mx_rmq.operating.doctor import Checkup
    from mx_rmq.operating.history import History, Rates
    from mx_rmq.operating.messages import Asked, MessageFacts, MessagePage
    from mx_rmq.operating.schedule import Schedule
    from mx_rmq.operating.trail import Trail
    from mx_rmq.operating.vanished import Vanished
    from mx_rmq.storage.facts import Counts, Workers

    Names = list[str]  # inside the class, ``list`` is a method
    Reports = list[AuditReport]


class Queue(Protocol):
    """A queue, as the dashboard calls it; the docstrings are those of ``RedisMessageQueue``."""

    config: Config

    async def open(self) -> Any: ...
    async def close(self) -> None: ...

    # -- looking

    async def counts(self) -> Counts: ...
    async def rates(self) -> Rates: ...
    async def workers(self) -> Workers: ...
    async def topics(self) -> Names: ...
    async def health(self) -> Health: ...
    async def history(
        self, topic: str | None = None, *, minutes: int = 60, step: int | None = None
    ) -> History: ...
    async def find(self, id_: str) -> MessageFacts: ...
    async def explain(self, id_: str) -> str: ...
    async def list(
        self,
        topic: str,
        *,
        state: Asked = "pending",
        limit: int = 50,
        after: str | None = None,
        reverse: bool = False,
    ) -> MessagePage: ...
    async def schedule(self, *, hours: int = 24, limit: int = 50, after: str | None = None) -> Schedule: ...
    async def doctor(self, *, audit_for: Duration = 5.0) -> Checkup: ...
    async def vanished(self) -> Vanished: ...
    async def trail(self, limit: int = 100) -> Trail: ...

    # -- acting

    @property
    def dlq(self) -> DeadLetters: ...
    async def cancel(self, id_: str) -> bool: ...
    async def run_now(self, id_: str) -> bool: ...
    async def cancel_many(self, ids: Iterable[str]) -> int: ...
    async def pause(self, topic: str) -> None: ...
    async def resume(self, topic: str) -> None: ...
    async def purge(self, topic: str, *, progress: Callable[[int], None] | None = None) -> int: ...
    async def audit(
        self, *, repair: bool = False, progress: Callable[[int], None] | None = None
    ) -> Reports: ...
    async def note_act(
        self, who: str, what: str, target: str = "", *, count: int = 0, said: str = ""
    ) -> None: ...
