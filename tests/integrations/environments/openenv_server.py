"""A server of OpenEnv, made with the package itself: the word of the observation earns 1, another turn costs 0.5."""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Said(Action):
    message: str


class Asked(Observation):
    word: str


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state, self._word = State(), ""

    def reset(self, seed=None, **kwargs):
        self._word = random.Random(seed).choice("abc")
        return Asked(word=f"say {self._word}")

    def step(self, action, **kwargs):
        right = action.message == self._word
        return Asked(word=f"you said {action.message}", reward=1.0 if right else -0.5, done=right)

    @property
    def state(self):
        return self._state


uvicorn.run(create_fastapi_app(Echo, Said, Asked, max_concurrent_envs=64), port=int(sys.argv[1]), log_level="error")
