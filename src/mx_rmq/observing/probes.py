"""``/livez`` and ``/readyz``: health as HTTP, for Kubernetes and load balancers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mx_rmq.observing.asgi import AsgiApp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mx_rmq.health import Health
    from mx_rmq.observing.asgi import Answer


def health_app(read: Callable[[], Awaitable[Health]], *, worker: bool) -> AsgiApp:
    """An ASGI application that answers 200 or 503, with the facts as JSON.

    Args:
        read: reads the health.
        worker: whether a worker must run here for the process to be ready.
    """

    async def answer(path: str, _accept: str) -> Answer:
        name = path.rstrip("/").rpartition("/")[2]
        if name not in ("livez", "readyz"):
            return 404, "text/plain", b"there is /livez and /readyz\n"
        health = await read()
        is_ready = health.answers and (bool(health.worker) or not worker)
        is_well = health.is_alive if name == "livez" else is_ready
        body = json.dumps({name.removesuffix("z"): is_well, **health.as_dict()}, indent=1)
        return 200 if is_well else 503, "application/json", body.encode() + b"\n"

    return AsgiApp(answer)
