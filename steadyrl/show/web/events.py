"""Server-sent events: a page is notified when a file of a run has changed, and asks for what is new.

An event carries no content. So a page that was away for an hour needs one request and not all that it missed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

LOOK_S = 0.4  # between looks at the files of a run
LOOK_ALL_S = 2.0  # between looks at all runs
ALIVE_S = 15.0  # a comment that keeps proxies and browsers from giving up
MOST_FOLLOWERS = 64


class Followers:
    """Counts the open streams, so that forgotten pages cannot use up the server."""

    def __init__(self, ending: Callable[[], bool]):
        """Begin without any.

        Args:
            ending: Whether the server is about to end; a stream would keep it waiting.
        """
        self.count, self._ending = 0, ending

    def follow(self, request: Request, state: Callable[[], Any], every_s: float) -> Response:
        """Return a stream with an event whenever the state is another one.

        Args:
            request: Who asks.
            state: Returns something that can be compared and written as JSON, quickly.
            every_s: How often it is looked at.
        """
        if self.count >= MOST_FOLLOWERS:
            return PlainTextResponse(f"{MOST_FOLLOWERS} pages follow runs already; close some\n", 503)
        return _Stream(self, self._events(request, state, every_s))

    async def _events(self, request: Request, state: Callable[[], Any], every_s: float) -> AsyncIterator[str]:
        last, silent = await run_in_threadpool(state), 0.0
        yield f"retry: 2000\nevent: begin\ndata: {json.dumps(last)}\n\n"
        while not self._ending() and not await request.is_disconnected():
            await self._pause(every_s)
            silent += every_s
            now = await run_in_threadpool(state)
            if now != last:
                last, silent = now, 0.0
                yield f"event: changed\ndata: {json.dumps(now)}\n\n"
            elif silent >= ALIVE_S:
                silent = 0.0
                yield ": alive\n\n"

    async def _pause(self, seconds: float) -> None:
        passed = 0.0
        while passed < seconds and not self._ending():
            await asyncio.sleep(LOOK_S)
            passed += LOOK_S


class _Stream(StreamingResponse):
    """A stream that is counted from the moment in which it is decided on, whether or not it gets to its first event."""

    def __init__(self, followers: Followers, events: AsyncIterator[str]):
        super().__init__(events, media_type="text/event-stream")
        self._followers = followers
        followers.count += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.count -= 1
