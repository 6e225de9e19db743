"""Servers of OpenEnv whose actions and observations have a field of text.

[task.args]
environment = "openenv"
environment_args = {url = "http://localhost:8000", action = "message", observation = "echoed_message"}
"""

from __future__ import annotations

from typing import Any

from steadyrl.core import plugins
from steadyrl.core.types import Message, Problem
from steadyrl.loop.tasks.tools import result_text


class OpenEnvEnvironment:
    """An episode on a server, by OpenEnv's own client: a session of its own.

    Args:
        url: Of a server that is running, such as "http://localhost:8000".
        action: The field of an action that the policy's turn fills.
        observation: The field of an observation that the policy reads; "" for all of them, as JSON.

    Raises:
        MissingExtraError: OpenEnv is not installed.
    """

    def __init__(self, url: str, action: str = "message", observation: str = ""):
        self._client = plugins.require("openenv.core").GenericEnvClient(base_url=url)
        self._action, self._observation = action, observation

    async def reset(self, problem: Problem, seed: int) -> str:
        """Return the problem's prompt, and the first observation."""
        result = await self._client.reset(seed=seed % (1 << 32))
        return "\n\n".join(filter(None, (problem.prompt, self._text(result.observation))))

    async def step(self, message: Message) -> tuple[str, float | None, bool]:
        """Act, and return what the server says of it."""
        result = await self._client.step({self._action: message["content"]})
        return self._text(result.observation), result.reward, result.done

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    def _text(self, observation: dict[str, Any]) -> str:
        return result_text(observation[self._observation] if self._observation else observation)
