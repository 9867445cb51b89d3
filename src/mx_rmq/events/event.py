"""What an event is, who hears of it, and how to listen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import msgspec

from mx_rmq.errors import ConfigError

Listener = Callable[["Event", BaseException | None], None]
"""Is told what happened, and the error that caused it, if there is one."""

E = TypeVar("E", bound="type[Event]")

KINDS: list[type[Event]] = []
"""Every kind of event."""

_listeners: dict[type[Event], tuple[tuple[object, Listener], ...]] = {}
"""Who hears of a kind, each with a mark of its own: a listener may be registered twice."""


_NO_QUEUE = ("queue", "")


class Event(msgspec.Struct, kw_only=True, tag_field="event"):
    """Something that happened; the tag is the event's name."""

    level: ClassVar[int] = logging.INFO
    says: ClassVar[str] = ""
    """What happened, as a template over the fields and properties."""
    is_frequent: ClassVar[bool] = False
    """Whether it happens for every message or call. It is then made only while something listens, and the
    logs do not."""
    queue: str = ""
    """The name of the queue; empty for what belongs to no queue."""

    @property
    def name(self) -> str:
        """The event's name in logs."""
        return str(self.__struct_config__.tag)

    @property
    def text(self) -> str:
        """What happened, with the facts in the text."""
        return self.says.format_map(_Facts(self))

    @property
    def fields(self) -> dict[str, object]:
        """The event's fields by name, without those that are not known."""
        known = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value for name, value in known.items() if value is not None and (name, value) != _NO_QUEUE
        }


class _Facts(dict[str, object]):
    """The fields and properties of an event by name, as ``format_map`` wants them."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self._event = event

    def __missing__(self, name: str) -> object:
        return _Fact(getattr(self._event, name))


class _Fact:
    """A value in a template: ``{seconds:time}`` writes a duration as a person would."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return repr(self._value)

    def __format__(self, how: str) -> str:
        value = self._value
        if how != "time":
            return format(value, how)
        if value >= 0.1:
            return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s"
        return f"{value * 1000:.0f} ms" if value >= 0.001 else "<1 ms"


def emit(event: Event, exception: BaseException | None = None) -> None:
    """Call every listener of this kind; *exception* is the cause, for its traceback.

    An error of a listener is logged and changes nothing: the message goes on.
    """
    for _, listener in _listeners.get(type(event), ()):
        try:
            listener(event, exception)
        except Exception:
            logging.getLogger("mx_rmq").exception("listener.failed: a listener of %s raised", event.name)


def heard(kind: type[Event]) -> bool:
    """Whether this kind has a listener; events that occur for every message are emitted only then."""
    return kind in _listeners


def listen(listener: Listener, *kinds: type[Event]) -> Callable[[], None]:
    """Call *listener* with each event of these kinds; returns a function that ends this.

    The listener is called in the thread in which the event happens, and must not block. It hears the events
    of all queues of the process; ``event.queue`` tells them apart. What it raises is logged and changes
    nothing.

    Raises:
        ConfigError: no kinds are given, or something that is no kind of event.
    """
    for kind in kinds or (None,):
        if kind not in KINDS:
            raise ConfigError(
                f"listen needs kinds of events, such as events.MessageDead, got {kind!r}; "
                "events.KINDS has all of them"
            )

    own = (object(), listener)
    for kind in kinds:
        _listeners[kind] = (*_listeners.get(kind, ()), own)

    def end() -> None:
        for kind in kinds:
            left = tuple(each for each in _listeners.get(kind, ()) if each is not own)
            if left:
                _listeners[kind] = left
            else:
                _listeners.pop(kind, None)

    return end


def listed(kind: E) -> E:
    """Put a class of events among the kinds."""
    KINDS.append(kind)
    return kind
