"""Environments in the forms of other packages, and the runs that train with them."""

import json

from steadyrl.core import config, plugins
from steadyrl.core.types import Problem
from steadyrl.loop import record
from steadyrl.loop.train import open_session, train


def ten_steps(folder, task, rewards, steps=10, **more):
    """Train the toy policy; return its metrics by step."""
    settings = config.resolve(
        {
            "run": {"steps": steps, "folder": str(folder), "checkpoint_every": steps},
            "backend": {"name": "toy"},
            "task": task,
            "rewards": rewards,
            "sampling": {"max_new_tokens": 4},
            "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
            "algorithm": {"name": "grpo"},
            **more,
        }
    )
    session = open_session(settings)
    run = record.begin(settings, "")
    record.add_model(run, session)
    assert train(session, run) == "finished"
    record.close(run, "finished", settings)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == steps
    return lines


def environment(name, arguments=None, **args):
    args |= {"environment": name} if name else {}
    args |= {"environment_args": arguments} if arguments else {}
    return {"name": "environment", "args": args}


def task_of(task, rewards=None):
    settings = config.resolve({"task": task, "rewards": rewards or {"episode_return": 1.0}})
    return plugins.open_task(task["name"], settings.task.args, 0)


def says(text):
    return {"role": "assistant", "content": text}


def calls(**named):
    listed = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(named.items())
    ]
    return {"role": "assistant", "content": "", "tool_calls": listed}


PROBLEM = Problem("p", "", {"seed": 0})


class CounterEnv:
    """As TRL's documentation writes it: a counter that the policy brings to a target."""

    def __init__(self):
        self.counter, self.target = 0, 3

    def reset(self, **kwargs) -> str | None:
        self.counter, self.seen = 0, sorted(kwargs)
        return f" The target is {self.target}."

    def increment(self, step: int = 1) -> int:
        """Increment the counter.

        Args:
            step: By how much.
        """
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        return 1.0 if self.counter == self.target else -abs(self.target - self.counter) / 10

    def _hidden(self):
        raise AssertionError("no tool")


class AsyncCounterEnv(CounterEnv):
    async def reset(self, **kwargs):
        return super().reset(**kwargs)

    async def increment(self, step: int = 1) -> int:
        """Increment the counter."""
        return super().increment(step)

    async def get_reward(self):
        return super().get_reward()


def last_square(observation):
    """Play tic-tac-toe: the last free square."""
    return observation.rpartition("'")[0].rpartition("'")[2]


def nothing():
    """Make an object without reset, as no environment_factory does."""
    return object()
