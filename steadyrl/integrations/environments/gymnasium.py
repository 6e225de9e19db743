"""Gymnasium's text environments: observations that are texts, or that can be written as one.

    [task.args]
    environment = "gymnasium"
    environment_args = {id = "FrozenLake-v1", render_mode = "ansi", is_slippery = false}

An action is the whole turn where the action space is ``Text``, and a name or a number in it where it is ``Discrete``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Message, Problem

_COLOURED = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0m", re.DOTALL)  # how a terminal shows where the player stands


class GymnasiumEnvironment:
    """An episode of an environment of Gymnasium.

    Args:
        id: As ``gymnasium.make`` takes it, such as "FrozenLake-v1" or "my_module:MyEnv-v0".
        factory: Import path of a class or a function that makes the environment, in the place of an id.
        instruction: What the policy reads before the first observation. The problem's own prompt, where there is one,
            takes its place.
        actions: Names of the actions of a ``Discrete`` space, in their order.
        settings: Further arguments of the environment. With ``render_mode = "ansi"`` its pictures in text are the
            observations, with brackets around what a terminal would colour.

    Raises:
        ConfigError: It has neither id nor factory, or its actions are neither texts nor numbers.
        MissingExtraError: Gymnasium is not installed.
    """

    def __init__(
        self, id: str = "", factory: str = "", instruction: str = "", actions: Sequence[str] = (), **settings: Any
    ):
        gym = plugins.require("gymnasium")
        if bool(id) == bool(factory):
            raise ConfigError(
                "task.args.environment_args needs either 'id', as gymnasium.make takes it, or 'factory', the import "
                "path of a class"
            )
        self._env = gym.make(id, **settings) if id else plugins.load("environment", factory)(**settings)
        self._rendered = settings.get("render_mode") == "ansi"
        self._instruction = instruction
        space = self._env.action_space
        if not isinstance(space, gym.spaces.Text | gym.spaces.Discrete):
            raise ConfigError(
                f"the actions of '{id or factory:.80}' are {space!r:.80}; expected spaces.Text or Discrete"
            )
        self._actions: dict[str, int] = {}
        if isinstance(space, gym.spaces.Discrete):
            numbers = range(int(space.start), int(space.start + space.n))
            names = [str(name).lower() for name in actions or numbers]
            if len(names) != len(numbers):
                raise ConfigError(f"the environment has {len(numbers)} actions and {len(names)} names; name each")
            self._actions = dict(zip(names, numbers, strict=True))
        self._ends: dict[str, bool] = {}

    def reset(self, problem: Problem, seed: int) -> str:
        """Return the instruction and the first observation."""
        observation, _ = self._env.reset(seed=seed % (1 << 32))
        prompt = problem.prompt or self._instruction or (f"Each turn is {self._expected()}." if self._actions else "")
        return "\n\n".join(filter(None, (prompt, self._text(observation))))

    def step(self, message: Message) -> tuple[str, float, bool]:
        """Act; a turn that is no action changes nothing, and its observation says what is expected."""
        action: str | int = message["content"]
        if self._actions:  # the last one counts where there are several
            any_name = "|".join(re.escape(name) for name in sorted(self._actions, key=len, reverse=True))
            mentions = re.findall(rf"(?<![\w-])(?:{any_name})(?!\w)", message["content"].lower())
            if not mentions:
                return f"There is no action in that; expected {self._expected()}.", 0.0, False
            action = self._actions[mentions[-1]]
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        return self._text(observation), float(reward), bool(terminated or truncated)

    def close(self) -> Mapping[str, bool]:
        """Return how the episode ended: terminated, truncated."""
        self._env.close()
        return self._ends

    def _expected(self) -> str:
        return f"one of {', '.join(self._actions)}"

    def _text(self, observation: Any) -> str:
        text = self._env.render() if self._rendered else observation
        return _COLOURED.sub(r"[\1]", text if isinstance(text, str) else str(text))
