from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings

from tests.model.histories import histories
from tests.model.machine import Bench

if TYPE_CHECKING:
    from mx_rmq.embedded import EmbeddedServer


def test_no_history_breaks_a_promise(server: EmbeddedServer) -> None:
    """Whatever producers, workers, schedulers, monitors and operators do, in any order, with replies lost, calls sent
    again and clocks running on: no message is lost, run by two at once or stuck."""
    with Bench(server.socket) as bench:

        @settings(
            max_examples=150,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(histories())
        def no_history_breaks_a_promise(history: list[Any]) -> None:
            bench(history)

        no_history_breaks_a_promise()
