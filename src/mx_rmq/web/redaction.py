"""Hiding fields of payloads and headers from view and from exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mx_rmq.checks import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN: Final = "••• (hidden)"
"""What stands in place of a hidden value. In an edited payload it means: as it was."""


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
        return {name: HIDDEN if self._hides((name.lower(),)) else text for name, text in headers.items()}

    def keep(self, edited: Any, original: Any) -> Any:
        """An edited payload with the original values where it still has ``HIDDEN``."""
        return self._keep(edited, original, ()) if self._paths else edited

    def _hides(self, path: tuple[str, ...]) -> bool:
        return any(path[-n:] in self._paths for n in range(1, len(path) + 1))

    def _hide(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {
                name: HIDDEN if self._hides(inner := (*path, str(name).lower())) else self._hide(item, inner)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._hide(item, path) for item in value]
        return value

    def _keep(self, edited: Any, original: Any, path: tuple[str, ...]) -> Any:
        if isinstance(edited, dict) and isinstance(original, dict):
            kept = {}
            for name, item in edited.items():
                inner = (*path, str(name).lower())
                was_hidden = item == HIDDEN and name in original and self._hides(inner)
                kept[name] = original[name] if was_hidden else self._keep(item, original.get(name), inner)
            return kept
        if isinstance(edited, list) and isinstance(original, list) and len(edited) == len(original):
            return [self._keep(one, other, path) for one, other in zip(edited, original, strict=True)]
        return edited
