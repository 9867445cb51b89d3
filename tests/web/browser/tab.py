"""A tab of a real browser, and all that must not happen in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin, urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Dialog, Locator, Page, Request

    from mx_rmq import RedisMessageQueue

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
"""The browser may run as root, and asks no other host for anything."""

IN_BROWSER = pytest.mark.asyncio(loop_scope="session")
"""All tests of the browser share its event loop."""

PATIENCE = 15_000
"""Milliseconds; the tests wait for what a page shows, so only a failure takes this long."""

_PROBLEMS = (Path(__file__).parent / "problems.js").read_text(encoding="utf-8")
_CANARY = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


class ServeQueue(Protocol):
    """Serves the dashboard of a queue and gives its address."""

    async def __call__(self, queue: RedisMessageQueue, **options: Any) -> str: ...


class OpenTab(Protocol):
    """Opens a tab at an address."""

    async def __call__(self, url: str, path: str = "", **options: Any) -> Tab: ...


class Tab:
    """A tab that notes in ``wrong`` whatever a page of ours must never do.

    Console errors, uncaught errors, requests to another host or outside of the root, violations of the
    Content-Security-Policy, dialogs, and scripts from strangers that ran and set ``window.__hit``.
    """

    def __init__(self, page: Page, root: str) -> None:
        self.page = page
        self.root = root
        self.wrong: list[str] = []
        self.expected = 200
        """The status that the next page must have."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.wrong.append(f"uncaught {error}"))
        page.on("request", self._on_request)
        page.on("dialog", self._on_dialog)

    @classmethod
    async def open(cls, browser: Browser, url: str, path: str = "", **options: Any) -> Tab:
        """Open a tab in a context of its own at a page; the options are those of the context."""
        given: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}} | options
        context = await browser.new_context(**given)
        context.set_default_timeout(PATIENCE)
        await context.add_init_script(_CANARY)
        tab = cls(await context.new_page(), url)
        await tab.go(path)
        return tab

    async def go(self, path: str, *, status: int = 200) -> None:
        """Open a page by its address, relative to the root of the dashboard."""
        self.expected = status
        answer = await self.page.goto(urljoin(self.root, path), wait_until="load")
        assert answer is not None
        assert answer.status == status, path

    def find(self, selector: str, **options: Any) -> Locator:
        """What a CSS selector finds."""
        return self.page.locator(selector, **options)

    async def press(self, name: str, kind: Any = "button") -> None:
        """Click a button, or what another role says, by its words."""
        await self.page.get_by_role(kind, name=name).first.click()

    async def text(self, selector: str = "main") -> str:
        """The words of an element."""
        return " ".join((await self.find(selector).first.inner_text()).split())

    async def sees(self, text: str, selector: str = "main") -> None:
        """Wait until a text is on the page."""
        await self.find(selector).get_by_text(text).first.wait_for()

    async def problems(self) -> list[str]:
        """What is wrong with the page as it is now: names, landmarks, contrast, focus, width."""
        found: list[str] = await self.page.evaluate(_PROBLEMS)
        return found

    async def check_script_canaries(self) -> None:
        """Note what scripts from strangers would have left on this page."""
        hit, violations = await self.page.evaluate("[window.__hit, window.__violations]")
        self.wrong += [f"a script of a stranger ran: {hit}"] if hit is not None else []
        self.wrong += [f"violates the policy: {each}" for each in violations]

    def _on_console(self, message: ConsoleMessage) -> None:
        # A page that says "404" is what some tests ask for, and the browser notes it as an error.
        if message.type in ("error", "warning") and f"status of {self.expected} (" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.root.rstrip("/")) and urlsplit(request.url).scheme != "blob":
            self.wrong.append(f"asked for {request.url[:200]}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        await dialog.dismiss()
