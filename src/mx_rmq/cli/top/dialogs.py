"""Small windows over the live view: a question, an answer, a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from mx_rmq.tables import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

_BOX = """
{name} {{ align: center middle; }}
{name} > * {{
    width: 90%; max-width: 110; height: auto; max-height: 90%;
    padding: 1 2; border: round $primary; background: $surface;
}}
"""


class Confirm(ModalScreen[bool]):
    """Asks before something that cannot be undone; anything but y is no."""

    CSS = _BOX.format(name="Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "yes"),
        ("n,escape,enter,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical():
            yield Static(Text(printable(self.question)), id="question")
            yield Static(Text("\ny  yes     n  no", style="bold"))

    def action_answer(self, yes: bool) -> None:
        """Give the answer."""
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """Asks for a line of text; None if it is left with escape."""

    CSS = _BOX.format(name="Ask")
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "back")]

    def __init__(self, question: str, given: str = "") -> None:
        super().__init__()
        self._question = question
        self._given = given

    def compose(self) -> ComposeResult:
        """The question and a field."""
        with Vertical():
            yield Static(Text(self._question))
            yield Input(self._given)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter gives the answer."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Leave without an answer."""
        self.dismiss(None)


class Show(ModalScreen[None]):
    """Shows a text until a key is pressed."""

    CSS = _BOX.format(name="Show")
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter,space,question_mark", "leave", "back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shown = text

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll():
            yield Static(Text(printable(self.shown)), id="shown")

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss(None)
