"""Tools of MCP servers that speak over their standard input and output.

A server is started once per process, however many episodes call it, and closed when the process ends. Its own state is
therefore that of all episodes.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import shlex
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, exception_line, printable
from steadyrl.loop.tasks.tools import Tool, make_checked_tool, result_text

START_SECONDS = 30.0
_STOP_SECONDS = 5.0


class ToolError(Exception):
    """What a server says of a call that failed; the policy reads it."""


@functools.cache
def connect(command: str) -> tuple[Tool, ...]:
    """Start a server by a command as in a shell, of which nothing is expanded, and return its tools.

    Raises:
        ConfigError: It cannot be started, or does not answer within START_SECONDS.
        MissingExtraError: The package mcp is not installed.
    """
    server = _Server(command)
    return tuple(_tool(server, spec) for spec in server.tools)


class _Server:
    """A server that runs, and a thread that speaks with it: what a connection holds belongs to one event loop."""

    def __init__(self, command: str):
        self._mcp, self._words = plugins.require("mcp"), shlex.split(command)
        if not self._words:
            raise ConfigError("task.args.mcp has an empty command; expected such as 'python my_server.py'")
        self.tools: list[Any] = []
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._failure = f"no answer in {START_SECONDS:g} s"
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._run(),), name="MCP server", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)
        self._ready.wait(START_SECONDS)
        if self._failure:
            self.close()
            raise ConfigError(
                f"the MCP server '{command:.200}' cannot be used: {self._failure}; run the command by hand"
            )

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        parameters = self._mcp.StdioServerParameters(command=self._words[0], args=self._words[1:])
        with tempfile.TemporaryFile("w+", errors="replace") as log:  # a server's log is not for the run's terminal
            try:
                async with self._mcp.Client(self._mcp.stdio_client(parameters, errlog=log)) as self._client:
                    page = await self._client.list_tools()
                    self.tools += page.tools
                    while page.next_cursor:
                        page = await self._client.list_tools(cursor=page.next_cursor)
                        self.tools += page.tools
                    self._failure = ""
                    self._ready.set()
                    await asyncio.Event().wait()
            except asyncio.CancelledError:  # by close
                return
            except Exception as error:  # raised by the thread that waits
                log.seek(0)
                lines = [line for line in log.read().splitlines() if line.strip()]
                wrote = f", and it wrote: {printable(lines[-1].strip())[:200]}" if lines else ""
                self._failure = exception_line(error) + wrote
            finally:
                self._ready.set()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text of a tool's result.

        Raises:
            ToolError: The server says that the call failed.
        """
        calling = self._client.call_tool(name, dict(arguments))
        result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling, self._loop))
        texts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
        if result.is_error:
            raise ToolError("\n".join(texts))
        return "\n".join(texts) if texts else result_text(result.structured_content)

    def close(self) -> None:
        """End the server."""
        if self._thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(_STOP_SECONDS)


def _tool(server: _Server, spec: Any) -> Tool:
    async def call(**arguments: Any) -> str:
        return await server.call(spec.name, arguments)

    return replace(make_checked_tool(spec.name, spec.description or "", spec.input_schema), function=call)
