from __future__ import annotations

import pytest


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitors look twenty times a second."""
    monkeypatch.setattr("mx_rmq.worker.monitor._INTERVAL", 0.05)
