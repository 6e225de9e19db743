"""Chromium, driven headless: a browser process for every page in use, all of them served by one event-loop thread.

Every page has a browser of its own, so that one that crashes or hangs takes nothing with it but its own episode; a
shared browser was no faster (bench/browser_speed.py). A page is emptied of cookies, storage and history before it is
used again, and replaced after an error or after CONTEXT_USES episodes.

Pages reach the origin that they are opened for and nothing else, other ports of 127.0.0.1 included. The server of that
origin is the only proxy of the browser and admits requests for itself alone (see ``loopback``), which also holds for
WebSockets, workers, redirects, speculative loads and what is sent as a page is left. What could pass by a proxy is
closed: UDP, and names and addresses of anything else are never resolved.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from steadyrl.core.errors import EpisodeError, SteadyError
from steadyrl.core.scratch import Folder, sweep
from steadyrl.environments.browse.browser.actions import Back, Click, Select, Type
from steadyrl.environments.browse.browser.find import find_chromium, playwright_api, runs_without_sandbox
from steadyrl.environments.browse.browser.page import Page
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.browse.browser.snapshot import Snapshot

log = logging.getLogger(__name__)

CONTEXT_USES = 50  # episodes; whatever a page may gather in a context does not grow beyond them
_CLOSE_S = 5.0  # a browser that has not closed by then is killed
_EXIT_S, _EXIT_LOOKS = 2.0, 40  # how long the end of a process is waited for, and in how many steps

Result = TypeVar("Result")


class Slot:
    """A browser process and the one page in it.

    Attributes:
        browser: Playwright's.
        pid: Of the browser process.
        folder: For its temporary files.
        page: The page; None before the first episode and after its context was used up.
        uses: Episodes in this context.
    """

    def __init__(self, browser: Any, pid: int, folder: Folder):
        self.browser, self.pid, self.folder = browser, pid, folder
        self.page: Page | None = None
        self.uses = 0


class Chromium:
    """Pages of one origin for any number of threads; browsers start when they are first needed."""

    def __init__(self, settings: BrowserSettings, origin: str, hidden: str = ""):
        """Find the browser; nothing is started yet.

        Args:
            settings: See BrowserSettings.
            origin: Such as "http://127.0.0.1:8000"; nothing else can be reached.
            hidden: CSS selector of what no snapshot shows; "" for nothing.

        Raises:
            ConfigError: Chromium is not installed.
            MissingExtraError: Playwright is not installed.
        """
        self._settings, self._origin, self._hidden = settings, origin, hidden
        self._executable = find_chromium(settings)
        self._api = playwright_api()
        self._without_sandbox = runs_without_sandbox(settings)
        self._lock = threading.Lock()
        self._idle: list[Slot] = []
        self._slots: set[Slot] = set()
        self._driver: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._driver_lock: asyncio.Lock | None = None

    def open(self, url: str, leave: Callable[[], None]) -> PageTab:
        """Show a page in a browser without any memory of what was shown before.

        Args:
            url: Of this origin.
            leave: Called when the tab is closed, or does not come up.

        Raises:
            EpisodeError: It does not come up.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(leave)
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            slot = idle or self._start()
            was_used = slot.page is not None
            try:
                self._show(slot, url)
            except EpisodeError as error:
                if not was_used:
                    raise
                # The page before it may not let itself be left; that must not cost an episode which is not its own.
                log.info("a browser that was used before does not show a page (%s); starting another", error)
                slot = self._start()
                self._show(slot, url)
            undo.pop_all()
        return PageTab(self, slot, leave)

    def call(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop's thread and wait for it, as long as a page may take where nothing else is said.

        Raises:
            EpisodeError: It takes too long, or the browser fails at it.
        """
        loop = self._running_loop()
        timeout_s = timeout_s or self._settings.page_timeout_s
        try:
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout_s), loop).result()
        except TimeoutError as error:
            raise EpisodeError(f"the page did not answer within {timeout_s:g} s") from error
        except SteadyError:
            raise
        except Exception as error:  # Playwright raises plain exceptions too where its connection breaks
            raise EpisodeError(f"the browser failed: {_first_line(error)}") from error

    def give_back(self, slot: Slot) -> None:
        """Take back a page that works."""
        with self._lock:
            self._idle.append(slot)

    def discard(self, slot: Slot) -> None:
        """End a browser that does not work any more, by force where it does not end by itself."""
        with self._lock:
            self._slots.discard(slot)
        with contextlib.suppress(EpisodeError):
            self.call(_end(slot), 2 * _CLOSE_S)

    def pids(self) -> list[int]:
        """Return the process ids of the browsers that run."""
        with self._lock:
            return sorted(slot.pid for slot in self._slots)

    def close(self) -> None:
        """End all browsers and the thread; using it again starts anew."""
        with self._lock:
            loop, thread, slots = self._loop, self._thread, list(self._slots)
            self._loop = self._thread = None
            self._idle, self._slots = [], set()
        if loop is None or thread is None:
            return
        atexit.unregister(self.close)
        with contextlib.suppress(Exception):  # nothing that fails now can be answered; the loop ends in any case
            asyncio.run_coroutine_threadsafe(self._end_all(slots), loop).result(3 * _CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_S)
        if not thread.is_alive():
            loop.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                sweep()
                self._loop, self._driver, self._driver_lock = asyncio.new_event_loop(), None, asyncio.Lock()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="chromium", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    def _start(self) -> Slot:
        slot = self.call(self._launch(), self._settings.launch_timeout_s + _CLOSE_S)
        with self._lock:
            self._slots.add(slot)
        return slot

    def _show(self, slot: Slot, url: str) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.discard, slot)
            self.call(self._begin(slot, url))
            undo.pop_all()

    async def _launch(self) -> Slot:
        driver = await self._living_driver()
        folder = Folder()
        with contextlib.ExitStack() as undo:
            undo.callback(folder.remove)
            try:
                browser = await driver.chromium.launch(
                    executable_path=self._executable,
                    args=_origin_arguments(self._origin),
                    chromium_sandbox=not self._without_sandbox,
                    timeout=self._settings.launch_timeout_s * 1000,
                    # What Chromium leaves in the folder for temporary files when it is killed goes with the folder.
                    env={**os.environ, "TMPDIR": str(folder.path)},
                    artifacts_dir=folder.path,
                )
                session = await browser.new_browser_cdp_session()
                processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
                command = (await session.send("SystemInfo.getInfo"))["commandLine"]
                await session.detach()
            except self._api.Error as error:
                raise EpisodeError(f"Chromium does not start: {_first_line(error)}") from error
            if profile := re.search(r"--user-data-dir=(\S+)", command):
                folder.note_profile(profile[1])
            undo.pop_all()
        return Slot(browser, next(int(p["id"]) for p in processes if p["type"] == "browser"), folder)

    async def _living_driver(self) -> Any:
        """Return the driver process that all browsers share; a new one where the last one died."""
        assert self._driver_lock is not None, "the loop is running"
        async with self._driver_lock:
            if self._driver is not None:
                try:
                    await (await self._driver.request.new_context()).dispose()  # the least that it answers to
                except Exception as error:  # whatever it raises, a driver that does not answer is dead
                    log.warning("the browsers' driver died (%s); starting another", _first_line(error))
                    self._driver = None
            if self._driver is None:
                self._driver = await self._api.async_playwright().start()
            return self._driver

    async def _begin(self, slot: Slot, url: str) -> None:
        if slot.page is not None and slot.uses >= CONTEXT_USES:
            await slot.page.context.close()
            slot.page = None
        if slot.page is None:
            slot.page = await self._fresh_page(slot.browser)
            slot.uses = 0
        else:
            await slot.page.forget(self._origin)
        slot.uses += 1
        await slot.page.go(url)

    async def _fresh_page(self, browser: Any) -> Page:
        context = await browser.new_context(accept_downloads=False, service_workers="block", locale="en-US")
        context.set_default_timeout(self._settings.page_timeout_s * 1000)
        await context.add_init_script(path=Path(__file__).with_name("page.js"))
        if self._hidden:
            await context.add_init_script(f"__steadyrl.state.hidden = {self._hidden!r}")
        raw = await context.new_page()
        page = Page(raw, await context.new_cdp_session(raw), self._api.Error)
        # The pattern is matched in the driver, so that requests of the origin do not pass through Python.
        await context.route(re.compile(f"^(?!{re.escape(self._origin)}/)"), page.refuse)
        context.on("page", page.refuse_popup)
        return page

    async def _end_all(self, slots: list[Slot]) -> None:
        await asyncio.gather(*(_end(slot) for slot in slots))
        if self._driver is not None:
            with contextlib.suppress(Exception):  # a driver that died has nothing left to stop
                await asyncio.wait_for(self._driver.stop(), _CLOSE_S)
            self._driver = None


class PageTab:
    """See Tab: a page of Chromium on loan. After an error its browser is ended and it can only be closed."""

    def __init__(self, chromium: Chromium, slot: Slot, leave: Callable[[], None]):
        self._chromium, self._leave = chromium, leave
        self._slot: Slot | None = slot
        self.pid = slot.pid

    def look(self) -> Snapshot:
        """See Tab."""
        return self.do(self._page().look())

    def act(self, action: Click | Type | Select | Back) -> str:
        """See Tab."""
        return self.do(self._page().act(action))

    def evaluate(self, script: str, argument: object = None) -> Any:
        """Return what a script gives in the page, JSON-serialisable."""
        return self.do(self._page().evaluate(script, argument))

    def screenshot(self) -> bytes:
        """Return a picture of the page, PNG."""
        return self.do(self._page().screenshot())

    def close(self) -> None:
        """See Tab."""
        if self._slot is not None:
            self._chromium.give_back(self._slot)
            self._slot = None
        self._leave()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of the page; a browser in which one failed is ended, for nothing is known of its state."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_up)  # an interrupted action leaves a page in any state as well
            result = self._chromium.call(work)
            undo.pop_all()
        return result

    def _give_up(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._chromium.discard(slot)

    def _page(self) -> Page:
        if self._slot is None or self._slot.page is None:
            raise EpisodeError("the page was closed before")
        return self._slot.page


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.set_exception_handler(_report)
    loop.run_forever()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Nobody waits for these: the ends of calls to a browser that died meanwhile.
    log.debug("%s: %s", context.get("message"), context.get("exception"))


async def _end(slot: Slot) -> None:
    try:
        await asyncio.wait_for(slot.browser.close(), _CLOSE_S)
    except Exception as error:  # it hangs or is dead; both end in the same way
        log.debug("closing a browser: %s", error)
        if slot.browser.is_connected():
            _kill(slot.pid)
    # Where the driver died, closing says nothing of the process, which ends by itself.
    if not await _has_exited(slot.pid):
        _kill(slot.pid)  # it was there all the time, so that the number is still its own
        await _has_exited(slot.pid)
    slot.folder.remove()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def _has_exited(pid: int) -> bool:
    """Wait a little for a process to end: until then it may write into its folders; return whether it did."""
    for _ in range(_EXIT_LOOKS):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, PermissionError):  # it is gone, or its number is another user's by now
            return True
        await asyncio.sleep(_EXIT_S / _EXIT_LOOKS)
    return False


def _origin_arguments(origin: str) -> list[str]:
    server = origin.removeprefix("http://")
    return [
        f"--proxy-server={server}",
        "--proxy-bypass-list=<-loopback>",  # addresses of this machine, which are not proxied by default, are too
        f"--host-resolver-rules=MAP {server} {server} , MAP * ~NOTFOUND",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--disable-gpu",
    ]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
