from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.model.histories import histories, random_histories
from tests.model.machine import Bench
from tests.model.mutants import MUTANTS, Mutant, draw_histories, mutated, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mx_rmq.storage.embedded import EmbeddedServer


@pytest.fixture
def _nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """What hypothesis writes even without a database goes away with the test."""
    set_hypothesis_home_dir(tmp_path)
    yield
    set_hypothesis_home_dir(None)


def test_no_history_breaks_a_promise(server: EmbeddedServer) -> None:
    """Whatever producers, workers, schedulers, monitors and operators do, in any order, with replies lost,
    calls sent again much later and clocks stepping: nothing is lost, held by two at once or stuck."""
    with Bench(server.socket) as bench:
        for history in islice(random_histories(seed=1), 220):
            if bench.breaks(history):
                bench(bench.shrunk(history))
                pytest.fail(f"this history broke a promise once, but not again: {history}")


@pytest.mark.usefixtures("_nothing_left_behind")
def test_hypothesis_finds_no_history_that_breaks_a_promise(server: EmbeddedServer) -> None:
    """Its histories are more alike than random ones, and so of another kind; it also shrinks arguments."""
    with Bench(server.socket) as bench:

        @settings(
            max_examples=40,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(histories())
        def keeps_every_promise(history: list[Any]) -> None:
            bench(history)

        keeps_every_promise()


@pytest.mark.parametrize("mutant", MUTANTS[:1], ids=lambda mutant: mutant.name)
def test_a_script_without_a_safeguard_is_noticed(server: EmbeddedServer, mutant: Mutant) -> None:
    """A check that never fails proves nothing; ``python -m tests.model.mutants`` tries all the others."""
    with mutated(mutant) as scripts:
        assert outcome(mutant.name, server.socket, draw_histories(50), scripts).check


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_its_script(mutant: Mutant) -> None:
    """When a script changes, so must what removes its safeguard."""
    with mutated(mutant) as scripts:
        assert scripts
