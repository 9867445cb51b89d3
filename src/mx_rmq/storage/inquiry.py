"""Asks servers where a primary is: one after another, from an event loop or by blocking the thread."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.exceptions import RedisError, ResponseError

from mx_rmq.errors import ServerRefused, ServerUnavailable
from mx_rmq.storage.diagnosis import diagnose, is_puzzling
from mx_rmq.storage.opening import connections, no_connection
from mx_rmq.urls import at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mx_rmq.urls import Node

R = TypeVar("R")

_PART: Final = 0.25
"""The part of the time for all questions that one may take, so that one silent server does not use it up."""


class LoopInquiry:
    """Asks from an event loop.

    Args:
        timeout: seconds for all questions together.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._doubts = _Doubts()

    async def ask(self, url: str, settings: Mapping[str, Any], *command: Any) -> Any:
        """The reply to one command, over a connection of its own."""
        maker, connection = _new(AsyncConnectionPool, url, settings, self.timeout)
        try:
            async with asyncio.timeout(self.timeout * _PART):
                await connection.connect()
                await connection.send_command(*command)
                reply = await connection.read_response()
        except (RedisError, OSError) as error:
            found = _explained(error, command)
            if self._doubts.new(url, found):
                call = partial(diagnose, maker.connection_kwargs, tls=url.startswith("rediss:"))
                wrong = await self.do(call)
                found = wrong or found
            raise found from error
        else:
            self._doubts.end()
            return reply
        finally:
            await connection.disconnect(nowait=True)

    async def do(self, call: Callable[[], R]) -> R:
        """The result of a call that blocks."""
        return await asyncio.to_thread(call)


class BlockingInquiry:
    """Asks by blocking the thread, without being suspended.

    Args:
        timeout: seconds for all questions together.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._doubts = _Doubts()

    async def ask(self, url: str, settings: Mapping[str, Any], *command: Any) -> Any:
        """The reply to one command, over a connection of its own."""
        maker, connection = _new(ConnectionPool, url, {**settings, "retry": None}, self.timeout)
        try:
            connection.connect()
            connection.send_command(*command)
            reply = connection.read_response()
        except (RedisError, OSError) as error:
            found = _explained(error, command)
            if self._doubts.new(url, found):
                found = diagnose(maker.connection_kwargs, tls=url.startswith("rediss:")) or found
            raise found from error
        else:
            self._doubts.end()
            return reply
        finally:
            connection.disconnect()

    async def do(self, call: Callable[[], R]) -> R:
        """The result of a call that blocks."""
        return call()


class _Doubts:
    """Which servers may be there and speak otherwise: each is looked at once, until one has answered."""

    def __init__(self) -> None:
        self._seen: set[str] | None = set()

    def new(self, url: str, error: Exception) -> bool:
        """Whether to find out what is wrong with the way to a server."""
        if self._seen is None or url in self._seen or not is_puzzling(error):
            return False
        self._seen.add(url)
        return True

    def end(self) -> None:
        """A server has answered: the URL is right."""
        self._seen = None


class Turn:
    """Servers that are asked one after another. The one that answered is asked first the next time.

    Args:
        nodes: at least one.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._first = self.nodes = tuple(nodes)
        """In the order in which they are asked; replaced, never changed: threads share it."""

    async def ask(self, question: Callable[[Node], Awaitable[R]], within: float) -> R:
        """The first answer to a question; those that did not answer it are asked last from now on.

        Raises:
            ServerUnavailable: there is none within that many seconds.
            ServerRefused: none of those that can be reached will answer.
        """
        end = monotonic() + within
        refused: ServerRefused | None = None
        silent: ServerUnavailable | None = None
        for node in self.nodes:
            if monotonic() > end:
                break
            try:
                answer = await question(node)
            except ServerUnavailable as error:
                silent = error
            except ServerRefused as error:
                refused = error
            else:
                self.nodes = tuple(dict.fromkeys((node, *self.nodes)))
                return answer
            self.put_last(node)
        if refused is not None:
            raise refused
        raise ServerUnavailable(f"none of {', '.join(map(at, self.nodes[:6]))} answers: {silent}")

    def learn(self, nodes: Iterable[Node]) -> None:
        """Ask these too from now on, in place of those learned before."""
        new = dict.fromkeys((*self._first, *nodes))
        self.nodes = tuple(dict.fromkeys((*(each for each in self.nodes if each in new), *new)))

    def put_last(self, node: Node) -> None:
        """Ask this one after the others from now on."""
        self.nodes = (*(each for each in self.nodes if each != node), node)


def _new(maker: type[Any], url: str, settings: Mapping[str, Any], timeout: float) -> tuple[Any, Any]:
    """What makes connections to a server, and one of them for a question."""
    part = timeout * _PART
    pool: Any = connections(maker, url, **settings, socket_connect_timeout=part, socket_timeout=part)
    return pool, pool.make_connection()


def _explained(error: Exception, command: tuple[Any, ...]) -> Exception:
    """The error to raise for one of redis-py; a refusal of the command itself stays as it is."""
    if isinstance(error, TimeoutError) and not isinstance(error, RedisError):
        return ServerUnavailable(f"no answer to {command[0]}")
    if isinstance(error, ResponseError) and error.__cause__ is None and "AUTH" not in str(error):
        return error
    return no_connection(error)
