"""Games of TextArena: the policy plays one of the players.

[task.args]
environment = "textarena"
environment_args = {id = "GuessTheNumber-v0"}
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Message, Problem

_ONE_AT_A_TIME = threading.Lock()


class TextArenaEnvironment:
    """An episode of a game.

    TextArena's games draw from Python's global generator. Each episode has a state of that generator to itself, so
    that episodes that are played at the same time do not change each other.

    Args:
        id: As ``textarena.make`` takes it, such as "GuessTheNumber-v0". The history that such a name repeats at
            each turn is left out, for the conversation holds it.
        players: How many play.
        player: Which of them is the policy, from 0.
        opponent: Import path of a function that plays the others: it gets an observation and returns an action.
        settings: Further arguments of the game.

    Raises:
        ConfigError: There are several players, and nothing plays the others.
        MissingExtraError: TextArena is not installed.
    """

    def __init__(self, id: str, players: int = 1, player: int = 0, opponent: str = "", **settings: Any):
        arena = plugins.require("textarena")
        if players > 1 and not opponent:
            raise ConfigError(
                f"'{id:.80}' is to be played by {players}, and the policy is one of them; give environment_args an "
                "'opponent', the import path of a function that gets an observation and returns an action"
            )
        if not 0 <= player < players:
            raise ConfigError(f"player = {player} with {players} players; expected 0 to {players - 1}")
        self._opponent: Callable[[str], str] = plugins.load("environment", opponent) if opponent else str
        self._players, self._player = players, player
        self._random, self._done = random.Random(), False
        with self._generator():
            self._game = _without_history(arena.make(id, **settings))
        self._own_action = arena.core.ObservationType.PLAYER_ACTION

    def reset(self, problem: Problem, seed: int) -> str:
        """Return the problem's prompt, and what the player reads first."""
        self._random.seed(seed)
        with self._generator():
            self._game.reset(num_players=self._players, seed=seed)
        return "\n\n".join(filter(None, (problem.prompt, self._until_the_policy_s_turn())))

    def step(self, message: Message) -> tuple[str, None, bool]:
        """Act, and let the others act."""
        self._act(message["content"])
        return self._until_the_policy_s_turn(), None, self._done

    def close(self) -> Mapping[str, Any]:
        """Return the player's reward (not for a game that did not end), and what the game says of the player."""
        rewards, info = self._game.close()
        fields = {name: value for name, value in info[self._player].items() if isinstance(value, str | int | float)}
        return fields | ({"reward": float(rewards[self._player])} if rewards else {})

    def _until_the_policy_s_turn(self) -> str:
        while not self._done:
            with self._generator():
                player, observation = self._game.get_observation()
            if player == self._player:
                return self._text(observation)
            self._act(self._opponent(self._text(observation)))
        return ""

    def _act(self, action: str) -> None:
        with self._generator():
            self._done, _ = self._game.step(action=action)

    def _text(self, observation: Any) -> str:
        """Return an observation as a text: that of a wrapper, or what happened since the player's last."""
        if isinstance(observation, str):
            return observation
        return "\n".join(
            text for by, text, kind in observation if kind != self._own_action or by != self._player
        ).strip()

    @contextmanager
    def _generator(self) -> Iterator[None]:
        with _ONE_AT_A_TIME:
            outer = random.getstate()
            random.setstate(self._random.getstate())
            try:
                yield
            finally:
                self._random.setstate(random.getstate())
                random.setstate(outer)


def _without_history(game: Any) -> Any:
    # The wrapper that goes repeats at each turn all that was said, which the conversation holds already.
    arena = plugins.require("textarena")
    if isinstance(game, arena.wrappers.LLMObservationWrapper):
        return game.env
    if isinstance(game, arena.Wrapper):
        game.env = _without_history(game.env)
    return game
