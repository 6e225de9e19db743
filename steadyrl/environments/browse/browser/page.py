"""One page of Chromium: looking at it, acting on it with mouse and keyboard, and keeping it where it belongs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from steadyrl.environments.browse.browser.actions import Back, Click, Select, Type
from steadyrl.environments.browse.browser.snapshot import Element, Piece, Snapshot

_LOOKS = 5  # a page that is replaced while it is looked at is looked at again, at most so often


class Page:
    """Playwright's page with what an episode needs of it; all coroutines run on one loop.

    Attributes:
        context: Playwright's context, which holds cookies and storage.
    """

    def __init__(self, page: Any, session: Any, error: type[Exception]):
        """Listen to a page.

        Args:
            page: Playwright's.
            session: Of Chromium's own protocol, to this page.
            error: What Playwright raises.
        """
        self._page, self._session, self._error = page, session, error
        self.context = page.context
        self._loaded = asyncio.Event()
        page.on("domcontentloaded", lambda _: self._loaded.set())
        page.on("dialog", self._dismiss)
        page.on("requestfailed", self._stay)
        page.on("filechooser", lambda _: None)  # listening keeps Chromium from opening one

    async def forget(self, origin: str) -> None:
        """Clear cookies and storage; the page itself is replaced by the next ``go``."""
        await self._page.evaluate("() => { try { sessionStorage.clear() } catch {} window.name = '' }")
        await self._session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        await self._session.send("Network.clearBrowserCookies")

    async def go(self, url: str) -> None:
        """Show the first page of an episode, which has none before it."""
        await self._page.goto(url, wait_until="domcontentloaded")
        await self._session.send("Page.resetNavigationHistory")

    async def look(self) -> Snapshot:
        """Return what is shown, waiting for a page under way."""
        for _ in range(_LOOKS):
            try:
                state = await self._page.evaluate("() => window.__steadyrl.look()")
            except self._error as error:
                if "navigation" not in str(error) and "context was destroyed" not in str(error):
                    raise
                state = {"leaving": True}
            if not state["leaving"]:
                return Snapshot(tuple(tuple(map(_piece, line)) for line in state["lines"]), state["fresh"])
            await self._loaded.wait()
            self._loaded.clear()  # it may have told of the page before; then this one is waited for in the next round
        raise TimeoutError("the page is replaced again and again")

    async def act(self, action: Click | Type | Select | Back) -> str:
        """Act with mouse and keyboard; return why it is impossible, or ""."""
        self._loaded.clear()
        match action:
            case Click(number):
                spot = await self._page.evaluate("n => window.__steadyrl.aim(n)", number)
                if "why" in spot:
                    return f"element {number} {spot['why']}"
                await self._page.mouse.click(spot["x"], spot["y"])
            case Type(number, text):
                outcome = await self._page.evaluate("n => window.__steadyrl.focus(n)", number)
                if "why" in outcome:
                    return f"element {number} {outcome['why']}"
                if outcome["old"]:
                    await self._page.keyboard.press("Delete")
                await self._page.keyboard.type(text)
            case Select(number, option):
                outcome = await self._page.evaluate("([n, o]) => window.__steadyrl.choose(n, o)", [number, option])
                return f"element {number} {outcome['why']}" if "why" in outcome else ""
            case Back():
                history = await self._session.send("Page.getNavigationHistory")
                if history["currentIndex"] == 0:
                    return "there is no page before"
                await self._page.go_back(wait_until="domcontentloaded")
        return ""

    async def evaluate(self, script: str, argument: object) -> Any:
        """Return what a script gives in the page."""
        return await self._page.evaluate(script, argument)

    async def screenshot(self) -> bytes:
        """Return a picture, PNG."""
        picture: bytes = await self._page.screenshot()
        return picture

    async def refuse(self, route: Any) -> None:
        """Abort a request to anywhere else."""
        await route.abort("aborted")  # any other error shows a page that says so in place of this one

    async def refuse_popup(self, page: Any) -> None:
        """Close any other page of this context."""
        if page is not self._page:
            with contextlib.suppress(self._error):  # it may have closed itself
                await page.close()

    async def _stay(self, request: Any) -> None:
        """Note that the page which was being left is still there: what it asked for is refused, a file, or nothing."""
        if not request.is_navigation_request():
            return
        with contextlib.suppress(self._error):  # where it was left after all, there is nothing to note
            await self._page.evaluate("() => { window.__steadyrl.state.leaving = false }")
        self._loaded.set()

    async def _dismiss(self, dialog: Any) -> None:
        with contextlib.suppress(self._error):  # it may have closed with its page
            await dialog.dismiss()


def _piece(piece: Any) -> Piece:
    if isinstance(piece, str):
        return piece
    return Element(piece["kind"], piece["name"], piece["value"], tuple(piece["options"]))
