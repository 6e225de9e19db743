"""The objects of TRL's ``environment_factory``: ``reset``, public methods that are tools, ``get_reward``.

    [task.args]
    environment = "trl"
    environment_args = {factory = "my_environment:CounterEnv"}

TRL's ``tools=[...]`` needs no adapter: it is ``task.args.tools``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Problem
from steadyrl.loop.tasks.environment import ToolsAlone


class TrlEnvironment(ToolsAlone):
    """An episode of an environment that was written for TRL; it goes on while tools are called.

    Args:
        factory: Import path of what TRL gets as ``environment_factory``: a class, or a function without arguments.

    Attributes:
        tools: The public methods of its class but for ``reset`` and ``get_reward``, as TRL lists them.

    Raises:
        ConfigError: It has no method reset.
    """

    def __init__(self, factory: str):
        self._environment = plugins.load("environment", factory)()
        methods = [name for name, _ in inspect.getmembers(type(self._environment), inspect.isfunction)]
        if "reset" not in methods:
            raise ConfigError(f"'{factory:.120}' has no method reset, which TRL's environment_factory expects")
        names = [name for name in methods if not name.startswith("_") and name not in ("reset", "get_reward")]
        self.tools = [getattr(self._environment, name) for name in names]
        self._messages: list[dict[str, Any]] = []

    def reset(self, problem: Problem) -> Any:
        """Return the problem, with what the environment's reset returned at the end of its last message.

        The environment gets the row of the data: its columns by name, and the prompt.
        """
        self._messages = [dict(message) for message in problem.messages] or [
            {"role": "user", "content": problem.prompt}
        ]
        prompt = [dict(message) for message in problem.messages] or problem.prompt
        observation = self._environment.reset(**{**problem.columns, "prompt": prompt})
        return _then(observation, self._with_observation)

    def close(self) -> Any:
        """Return the reward of get_reward, where there is one, and the environment's public attributes."""
        get_reward = getattr(type(self._environment), "get_reward", None)
        reward = None if get_reward is None else self._environment.get_reward()
        return _then(reward, self._results)

    def _with_observation(self, observation: str | None) -> list[dict[str, Any]]:
        if observation is not None:
            self._messages[-1]["content"] += observation
        return self._messages

    def _results(self, reward: float | None) -> Mapping[str, Any]:
        public = {
            name: value
            for name, value in vars(self._environment).items()
            if not name.startswith("_") and isinstance(value, str | int | float)
        }
        return public if reward is None else {**public, "reward": float(reward)}


def _then(result: Any, work: Callable[[Any], Any]) -> Any:
    """Return what is made of a result, or of an awaitable one an awaitable."""

    async def later() -> Any:
        return work(await result)

    return later() if inspect.isawaitable(result) else work(result)
