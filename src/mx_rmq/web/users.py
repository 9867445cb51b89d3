"""Who uses the dashboard, and what they may do. It needs no web framework: applications import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from mx_rmq.checks import refusal

if TYPE_CHECKING:
    from collections.abc import Collection

Right = Literal["look", "mend", "delete"]
"""``look``: see and export. ``mend``: replay, edit, run now, pause, resume, repair. ``delete``: cancel,
delete, purge."""
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)


@dataclass(frozen=True, slots=True)
class WebUser:
    """A person who uses the dashboard, as the application's ``auth`` function returns it."""

    name: str
    """As the trail shows it."""
    may: Collection[Right] = RIGHTS

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise refusal("name of a WebUser", "a text", self.name)
        if isinstance(self.may, str) or not set(self.may) <= set(RIGHTS):
            raise refusal("may of a WebUser", f"some of {', '.join(RIGHTS)}", self.may)
