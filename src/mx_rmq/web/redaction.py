"""Hiding fields of payloads and headers from view and from exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN: Final = "••• (hidden)"
"""What stands in place of a hidden value. In an edited payload it means: as it was."""


class Uncertain(ValueError):
    """An edited payload has ``HIDDEN`` where it is not certain which value it stands for."""


class Redactor:
    """Hides fields by their name, at any depth, or by their path.

    Args:
        fields: names such as ``password``, or paths such as ``customer.mail``; the end of a path is enough.
            Upper and lower case are the same. Elements of a list have the path of the list.
    """

    def __init__(self, fields: Iterable[str] = ()) -> None:
        if isinstance(fields, str):
            raise refusal("redact", 'names of fields, such as ["password", "customer.mail"]', fields)
        names = list(fields)
        for name in names:
            if not isinstance(name, str) or not name.strip("."):
                raise refusal("redact", 'names of fields, such as ["password", "customer.mail"]', name)
        self._paths = {tuple(name.lower().strip(".").split(".")) for name in names}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def hide(self, value: Any) -> Any:
        """A payload, or the plain facts of a message, without the hidden values."""
        return self._hide(value, ()) if self._paths else value

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers without the hidden values."""
        return {name: HIDDEN if self._hides(_steps(name)) else text for name, text in headers.items()}

    def keep(self, edited: Any, original: Any) -> Any:
        """An edited payload with the original values where it still has ``HIDDEN``.

        Raises:
            Uncertain: it has ``HIDDEN`` where no original value belongs for certain.
        """
        return self._keep(edited, original, ()) if self._paths else edited

    def _hides(self, path: tuple[str, ...]) -> bool:
        return any(path[-n:] in self._paths for n in range(1, len(path) + 1))

    def _hide(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {
                name: HIDDEN if self._hides(inner := (*path, *_steps(name))) else self._hide(item, inner)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._hide(item, path) for item in value]
        return value

    def _keep(self, edited: Any, original: Any, path: tuple[str, ...]) -> Any:
        if isinstance(edited, dict):
            was = original if isinstance(original, dict) else {}
            kept = {}
            for name, item in edited.items():
                inner = (*path, *_steps(name))
                was_hidden = item == HIDDEN and name in was and self._hides(inner)
                kept[name] = was[name] if was_hidden else self._keep(item, was.get(name), inner)
            return kept
        if isinstance(edited, list):
            return self._keep_each(edited, original if isinstance(original, list) else [], path)
        if edited == HIDDEN and original != HIDDEN:
            where = ".".join(path) or "the payload"
            raise Uncertain(
                f"at {where} it is not certain which hidden value “{HIDDEN}” stands for: leave the field and "
                "the list that it is in as they were, or type its value"
            )
        return edited

    def _keep_each(self, edited: list[Any], original: list[Any], path: tuple[str, ...]) -> list[Any]:
        """Elements of a list, each with the hidden values of the one that it was, wherever that was."""
        if HIDDEN not in str(edited):
            return edited
        seen = [self._hide(item, path) for item in original]
        kept = []
        for n, item in enumerate(edited):
            if n < len(seen) and item == seen[n] and len(edited) == len(seen):
                was = original[n]
            elif same := [other for other, shown in zip(original, seen, strict=True) if shown == item]:
                # Several that look the same, with different hidden values: none of them for certain.
                was = same[0] if all(other == same[0] for other in same) else None
            else:
                is_its_own = len(edited) == len(seen) and seen[n] not in edited
                was = original[n] if is_its_own else None
            kept.append(self._keep(item, was, path))
        return kept


def _steps(name: object) -> tuple[str, ...]:
    """The part of a path that a field makes; a name with dots makes as many steps as it would as a path."""
    return tuple(str(name).lower().split("."))
