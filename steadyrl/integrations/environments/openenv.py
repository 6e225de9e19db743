"""Servers of OpenEnv whose actions are a field of text, or calls of tools that the server lists.

[task.args]
environment = "openenv"
environment_args = {url = "http://localhost:8000", action = "message", observation = "echoed_message"}
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.types import Message, Problem
from steadyrl.loop.tasks.tools import Tool, make_checked_tool, result_message, result_text


class OpenEnvEnvironment:
    """An episode on a server, by OpenEnv's own client: a session of its own.

    Args:
        url: Of a server that is running, such as "http://localhost:8000".
        action: The field of an action that the policy's turn fills; "" where actions are calls of the server's tools.
        observation: The field of an observation that the policy reads; "" for all of them, as JSON.

    Attributes:
        tools: The server's, where actions are calls.

    Raises:
        MissingExtraError: OpenEnv is not installed.
    """

    def __init__(self, url: str, action: str = "message", observation: str = ""):
        self._client = plugins.require("openenv.core").GenericEnvClient(base_url=url)
        self.tools = server_tools(url, calls=not action)
        self._action, self._observation = action, observation

    async def reset(self, problem: Problem, seed: int) -> str:
        """Return the problem's prompt, and the first observation."""
        result = await self._client.reset(seed=seed % (1 << 32))
        return "\n\n".join(filter(None, (problem.prompt, self._text(result.observation))))

    async def step(self, message: Message) -> tuple[str | list[Message], float | None, bool]:
        """Act, and return what the server says of it. With tools a turn without a call ends the episode."""
        if not self.tools:
            result = await self._client.step({self._action: message["content"]})
            return self._text(result.observation), result.reward, result.done
        requests = message.get("tool_calls", ())
        functions = [request["function"] for request in requests]
        actions = [{"type": "call_tool", "tool_name": f["name"], "arguments": f["arguments"]} for f in functions]
        results = [await self._client.step(action) for action in actions]
        rewards = [result.reward for result in results if result.reward is not None]
        answers = [result_message(r, _result_text(x.observation)) for r, x in zip(requests, results, strict=True)]
        silent = not requests and not message.get("invalid_tool_calls")
        return answers, sum(rewards) if rewards else None, silent or any(result.done for result in results)

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    def _text(self, observation: dict[str, Any]) -> str:
        return result_text(observation[self._observation] if self._observation else observation or None)


@functools.cache
def server_tools(url: str, calls: bool) -> tuple[Tool, ...]:
    """Return the tools that a server lists, none where actions are no calls. A server without an answer fails here."""
    with plugins.require("openenv.core").GenericEnvClient(base_url=url).sync() as client:
        specs = client.step({"type": "list_tools"}).observation["tools"] if calls else ()
    return tuple(make_checked_tool(tool["name"], tool["description"], tool["input_schema"]) for tool in specs)


def _result_text(observation: Mapping[str, Any]) -> str:
    if error := observation.get("error"):
        return f"error: {error['message']}"
    result = observation["result"]
    return result_text(result.get("data", result) if isinstance(result, dict) else result)
