"""What is said of a server that cannot be used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mx_rmq.errors import ServerUnavailable, WrongKeyType
from mx_rmq.storage.availability import Availability
from tests.words import events

if TYPE_CHECKING:
    import pytest


def test_an_outage_is_told_once_but_every_key_of_the_wrong_type(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mx_rmq")
    server = Availability("localhost:6379", "q")
    for error in (
        *(ServerUnavailable("refused"), ServerUnavailable("no answer")),
        *(WrongKeyType("q:workers is a string"), WrongKeyType("q:seen is a string")),
        WrongKeyType("q:workers is a string"),
    ):
        for user in ("monitor", "scheduler"):
            server.lost(user, error)
    told = [record.error.partition(";")[0] for record in events(caplog, "server.unavailable")]
    assert told == ["refused", "q:workers is a string", "q:seen is a string"]
    server.back("monitor")
    assert not events(caplog, "server.back")
    server.back("scheduler")
    assert len(events(caplog, "server.back")) == 1
    server.lost("monitor", WrongKeyType("q:seen is a string"))
    assert len(events(caplog, "server.unavailable")) == 4
