"""A producer for code without an event loop: scripts, Django, Flask."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any
from zlib import crc32

from mx_rmq.blocking import run_blocking
from mx_rmq.embedded import EmbeddedServer, open_url
from mx_rmq.errors import ServerUnavailable
from mx_rmq.ids import new_id
from mx_rmq.keys import Keys
from mx_rmq.producer import Receipt, draft
from mx_rmq.resend import Backoff
from mx_rmq.shard import BlockingCommands
from mx_rmq.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.config import Config
    from mx_rmq.records import NewMessage, Stored

_CHUNK = 500


class _Calls(threading.local):
    """Names for calls. Each thread is a producer of its own: it has one call under way at a time."""

    def __init__(self) -> None:
        self._process = 0
        self._producer = ""
        self._number = 0

    def next(self) -> tuple[str, str]:
        """The producer's name and the number of its next call."""
        if self._process != os.getpid():  # a forked child must not go on as its parent
            self._process, self._producer = os.getpid(), new_id()
        self._number += 1
        return self._producer, str(self._number)


class SyncProducer:
    """Produces and waits. One may be shared by all threads of a process, and used after a fork."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._server: EmbeddedServer | None = None
        self._stores: list[tuple[Store, BlockingCommands]] = []
        self._calls = _Calls()

    def produce(self, topic: str, payload: Any, **options: Any) -> Receipt:
        """Store a message and return its id; the options are those of ``RedisMessageQueue.produce``."""
        (receipt,) = self._send(topic, [draft(self._config, topic, payload, **options)])
        return receipt

    def produce_many(self, topic: str, payloads: Iterable[Any], **options: Any) -> list[Receipt]:
        """Store many messages in chunks, each stored whole or not at all."""
        receipts: list[Receipt] = []
        chunk: list[NewMessage] = []
        for payload in payloads:
            chunk.append(draft(self._config, topic, payload, **options))
            if len(chunk) == _CHUNK:
                receipts += self._send(topic, chunk)
                chunk = []
        return receipts + self._send(topic, chunk) if chunk else receipts

    def close(self) -> None:
        """Close the connections; a later call would open them again."""
        with self._lock:
            for _, commands in self._stores:
                commands.close()
            self._stores = []
            if self._server is not None:
                self._server.close()
                self._server = None

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, topic: str, messages: Sequence[NewMessage]) -> list[Receipt]:
        stores = self._open()
        by_store: dict[int, list[NewMessage]] = {}
        for message in messages:
            by_store.setdefault(crc32(message.id.encode()) % len(stores), []).append(message)
        stored: dict[str, Stored] = {}
        for number, own in by_store.items():
            statuses = self._resend(stores[number], topic, own)
            for message, status in zip(own, statuses, strict=True):
                stored.setdefault(message.id, status)
        return [Receipt(message.id, stored[message.id]) for message in messages]

    def _resend(self, store: Store, topic: str, messages: Sequence[NewMessage]) -> list[Stored]:
        """Send one call, named so that sending it again stores nothing twice."""
        produce = store.produce_delayed if messages[0].delay else store.produce
        (producer, call), backoff = self._calls.next(), Backoff()
        deadline = time.monotonic() + self._config.patience
        while True:
            try:
                return run_blocking(produce(topic, messages, producer=producer, call=call))
            except ServerUnavailable as error:
                wait = backoff.wait()
                if time.monotonic() + wait > deadline:
                    raise ServerUnavailable(f"{error}; gave up after {self._config.patience:g} s") from error
                time.sleep(wait)

    def _open(self) -> list[Store]:
        with self._lock:
            if not self._stores:
                url = self._config.url
                if url.startswith("embedded:"):
                    self._server = open_url(url)
                    url = self._server.url
                commands = BlockingCommands(url, self._config.socket_timeout)
                store = Store(commands, Keys(self._config.name), max_bytes=self._config.max_bytes)
                self._stores = [(store, commands)]
            return [store for store, _ in self._stores]
