"""A server of OpenEnv, made with the package itself: the word of the observation earns 1, another turn costs 0.5.

Under /tools is one whose actions are calls of tools.
"""

import random
import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


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


class Adder(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("adder")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            if a + b == 13:
                raise ValueError("not 13")
            return a + b

        super().__init__(server)
        self._state = State()

    def reset(self, seed=None, **kwargs):
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action, **kwargs):
        raise AssertionError("there are calls alone")

    def step(self, action, **kwargs):
        return self._paid(super().step(action, **kwargs))

    async def step_async(self, action, **kwargs):
        return self._paid(await super().step_async(action, **kwargs))

    def _paid(self, observation):
        result = getattr(observation, "result", None)
        return observation.model_copy(update={"reward": 0.25, "done": result is not None and result.data == 5})

    @property
    def state(self):
        return self._state


app = create_fastapi_app(Echo, Said, Asked, max_concurrent_envs=64)
app.mount("/tools", create_fastapi_app(Adder, CallToolAction, CallToolObservation, max_concurrent_envs=64))
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
