"""An environment of a user's own: a class with the methods reset, step and close, tools alone, or both.

    class Guess:
        def reset(self, problem):
            self.number = problem.columns["number"]
            return "Guess my number from 1 to 9."

        def step(self, message):
            correct = message["content"].strip() == str(self.number)
            return "No.", float(correct), correct

        def close(self):
            pass

``reset`` returns what the policy reads first: a text, messages, or None for the problem's own prompt. ``step`` gets
each turn of the policy as a message, after its calls were made, and returns an observation (a text, messages, or None),
the reward of the turn (or None) and whether the episode is over. Each may be asynchronous. With tools alone an episode
is over at the first turn without a call.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from steadyrl.core import plugins
from steadyrl.core.arguments import takes
from steadyrl.core.errors import ConfigError, SteadyError, raised_line
from steadyrl.core.protocols import Episode, PromptLimit, RewardFn, Task, Turn
from steadyrl.core.sections import PathText
from steadyrl.core.types import Message, Problem, Rollout, Score, ToolCall
from steadyrl.core.words import counted
from steadyrl.loop.rewards.calls import wait_for
from steadyrl.loop.rewards.functions import RAISED
from steadyrl.loop.tasks.prompts import PromptsTask
from steadyrl.loop.tasks.tools import Limits, Tool, Toolbox, make_tool, recordable, result_message, result_text

RETURN = "episode_return"


class EnvironmentTask(Task):
    """See Task and the protocols of environments. Reward: episode_return, what the turns and the episode earned."""

    class Settings(PromptsTask.Settings):
        """Settings of the environment task: those of prompts, which its problems are read by, and these."""

        path: PathText = ""
        """A file or folder of problems, as the task `prompts` reads them. Without it there are train_count and
        heldout_count problems that differ in `problem.columns['seed']` alone."""
        train_count: int = Field(200, ge=1, le=1_000_000, description="Training problems without a path.")
        heldout_count: int = Field(50, ge=0, le=1_000_000, description="Held-out problems without a path.")
        environment: str = ""
        """Import path of the class, such as 'my_module:Guess', or an adapter: 'gymnasium', 'textarena', 'trl',
        'openenv' or 'verifiers'. Empty plays with the tools alone."""
        environment_args: dict[str, Any] = Field(default_factory=dict)
        """Arguments of the class or the adapter, by name."""
        tools: list[str] = Field([])
        """Import paths of functions with type hints and docstrings, or of JSON schemas whose calls the environment
        answers in its method step. They join those in the class's attribute `tools`."""
        mcp: list[str] = Field([])
        """Commands of MCP servers, such as 'python my_server.py', whose tools join the others (extra `mcp`). Each is
        started once and spoken to over its standard input and output."""
        tool_format: str = Field("auto")
        """How tools are described and called. 'auto' takes the form of the model's own chat template (extra `agents`),
        and 'hermes' where the template has no tools. 'hermes' (JSON in <tool_call>) and 'python' (`search('lists')` on
        a line) describe the tools in the system message. Any other name is that of a renderer, such as 'qwen3' or
        'llama-3'."""
        max_turns: int = Field(8, ge=1, le=10_000, description="Turns of the policy per episode, at most.")
        max_calls: int = Field(0, ge=0, description="Calls per episode, at most. 0 means no limit.")
        call_seconds: float = Field(30.0, ge=0, description="Seconds that a call may take. 0 means no limit.")
        result_characters: int = Field(4000, ge=0)
        """Characters per result, at most. A longer one is cut and says so. 0 means no limit."""
        workers: int = Field(8, ge=1, le=1024, description="Episodes that are stepped at the same time.")
        max_open: int = Field(0, ge=0)
        """Episodes that are open at the same time, at most. 0 means no limit."""

        def import_paths(self) -> list[tuple[str, str]]:
            """See Section."""
            adapted = self.environment in plugins.BUILT_IN["environment"]
            of_adapters = [self.environment_args.get(name, "") for name in ("factory", "opponent")] if adapted else []
            paths = [self.environment, *map(str, of_adapters)]
            return [*(("environment", path) for path in paths), *(("tool", path) for path in self.tools)]

    name = "environment"

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        """Read problems and tools; the problems do not depend on the seed.

        Raises:
            SteadyError: The class or a tool lacks what is needed, or a file has a defect.
        """
        self._settings = settings
        self._environment, sample = _environment_class(settings)
        self._tools = _tools_of(sample, settings)
        if not self._tools and not settings.environment:
            raise ConfigError(
                "the task 'environment' has neither an environment nor tools; set task.args.environment = "
                "'my_module:MyClass', task.args.tools = ['my_module:my_function'], or both"
            )
        self.tools: Sequence[Mapping[str, Any]] = [tool.schema for tool in self._tools]
        self.tool_format = settings.tool_format
        self.max_turns, self.workers = settings.max_turns, settings.workers
        self.max_open = settings.max_open or None
        self.metric = settings.metric
        self.prompt_limit = PromptLimit(settings.prompt_tokens, settings.long_prompts)
        self._data = PromptsTask(settings, seed) if settings.path else None
        numbered = "numbered problems of the environment"
        self.sources = self._data.sources if self._data else {"train": numbered, "heldout": numbered}

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """See Task."""
        if self._data:
            return self._data.problems(split)
        # Seeds of held-out problems begin where train_count, which is at most a million, does not reach.
        first, count = (0, self._settings.train_count) if split == "train" else (1 << 20, self._settings.heldout_count)
        return [Problem(f"{split}-{i}", "", {"seed": first + i}) for i in range(count)]

    def rewards(self) -> Mapping[str, RewardFn]:
        """See Task."""
        return {RETURN: _episode_return} if self._settings.environment else {}

    def gold(self, problem: Problem) -> str | None:
        """See Task."""
        return self._data.gold(problem) if self._data else None

    def ask(self, text: str) -> Problem:
        """See Task."""
        return self._data.ask(text) if self._data else Problem("asked", text)

    def episode(self, problem: Problem, seed: int) -> Episode:
        """See Interactive."""
        limits = Limits(self._settings.max_calls, self._settings.call_seconds, self._settings.result_characters)
        environment = self._environment(**self._settings.environment_args)
        bound = {source.__name__: source for source in _declared_tools(environment) if inspect.ismethod(source)}
        tools = [replace(tool, function=bound.get(tool.name, tool.function)) for tool in self._tools]
        return EnvironmentEpisode(environment, problem, seed, Toolbox(tools, environment, limits))


def _episode_return(problem: Problem, rollout: Rollout) -> Score:
    total = sum(reward for _, reward in rollout.turn_rewards) + (rollout.outcome.get("reward") or 0.0)
    return Score(float(total), turn_rewards=rollout.turn_rewards)


class ToolsAlone:
    """The environment where there are only tools: an episode is over at the first turn without a call."""

    def reset(self, problem: Problem) -> None:
        """Return the problem as it is."""

    def step(self, message: Message) -> tuple[None, None, bool]:
        """Go on while tools are called."""
        return None, None, not message.get("tool_calls") and not message.get("invalid_tool_calls")


def _environment_class(settings: EnvironmentTask.Settings) -> tuple[Any, Any]:
    """Return the class, and an object of it that was looked at."""
    if not settings.environment:
        return ToolsAlone, ToolsAlone()
    factory = plugins.load("environment", settings.environment)
    name = f"the environment '{settings.environment:.120}'"
    if not callable(factory):
        raise ConfigError(f"{name} is {reprlib.repr(factory)}; expected a class with the methods reset, step and close")
    try:
        environment = factory(**settings.environment_args)
    except SteadyError:
        raise
    except RAISED as error:
        raise ConfigError(
            f"{name} cannot be made with task.args.environment_args = {settings.environment_args}: {raised_line(error)}"
        ) from error
    for method, argument in (("reset", "problem"), ("step", "message")):
        function = getattr(environment, method, None)
        if not callable(function):
            raise ConfigError(f"{name} has no method {method}({argument}); expected reset and step")
        seeded = method == "reset" and _takes_seed(function)
        if not takes(partial(function, seed=0) if seeded else function, 1):
            raise ConfigError(f"{name}: its method {method} cannot be called with {argument} alone; give it that one")
    return factory, environment


def _takes_seed(reset: Any) -> bool:
    return "seed" in inspect.signature(reset).parameters


def _tools_of(environment: Any, settings: EnvironmentTask.Settings) -> list[Tool]:
    tools = []
    for i, source in enumerate(_declared_tools(environment)):
        member = inspect.getattr_static(environment, getattr(source, "__name__", ""), None)
        method = inspect.isfunction(source) and member is source
        tools.append(make_tool(source, method, f"the environment's attribute tools[{i}]"))
    tools += [make_tool(plugins.load("tool", path), location=f"'{path}' of task.args.tools") for path in settings.tools]
    tools += [tool for command in settings.mcp for tool in plugins.load("tool", "mcp")(command)]
    names = [tool.name for tool in tools]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"there are {names.count(duplicates[0])} tools called '{duplicates[0]}'; expected names of their own"
        )
    return tools


def _declared_tools(environment: Any) -> Sequence[Any]:
    listed = getattr(environment, "tools", ())
    if not isinstance(listed, list | tuple):
        raise ConfigError(f"the environment's attribute 'tools' is {listed!r:.60}; expected a list of functions")
    return listed


class EnvironmentEpisode:
    """See Episode: a user's environment, and the tools of an episode."""

    def __init__(self, environment: Any, problem: Problem, seed: int, toolbox: Toolbox):
        self._environment, self._problem, self._seed, self._toolbox = environment, problem, seed, toolbox

    def open(self) -> str | Sequence[Message]:
        """See Episode."""
        reset = self._environment.reset
        seeded = {"seed": self._seed} if _takes_seed(reset) else {}
        opening = _awaited(reset(self._problem, **seeded))
        if opening is None:
            opening = self._problem.messages or self._problem.prompt
        if isinstance(opening, str):
            return [{"role": "user", "content": opening}]
        if not isinstance(opening, list | tuple) or not all(isinstance(m, Mapping) and "role" in m for m in opening):
            raise TypeError(f"reset returned {reprlib.repr(opening)}; expected a text, messages, or None")
        return opening

    def step(self, turn: Message) -> Turn:
        """See Episode: make the calls, and ask the environment what comes of the turn."""
        results, calls, unanswered, message = self._toolbox.answer(turn)
        returned = _awaited(self._environment.step(message))
        if not isinstance(returned, tuple | list) or len(returned) != 3:
            raise TypeError(f"step returned {reprlib.repr(returned)}; expected three: observation, reward, done")
        observation, reward, done = returned
        if done not in (True, False):  # the text "false" would end the episode, and None never would
            raise TypeError(f"step returned {reprlib.repr(done)} as to whether the episode is over; expected a bool")
        answers, answered = self._answers(observation, unanswered)
        messages = [*results, *answers]
        if not messages and not done:
            messages = [{"role": "user", "content": ""}]
        return Turn(messages if not done else "", bool(done), reward, [*calls, *answered])

    def _answers(
        self, observation: Any, unanswered: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Message], list[ToolCall]]:
        """Return the observation as messages, and the calls that it answers."""
        listed = observation if isinstance(observation, list | tuple) else [observation]
        if listed and all(isinstance(item, Mapping) and "role" in item for item in listed):
            by_id = {message.get("tool_call_id"): message["content"] for message in listed}
            texts = [by_id.get(request["id"], "") for request in unanswered]
            messages = list(listed)
        else:
            texts = [self._toolbox.limited(result_text(item)) for item in listed]
            if unanswered and len(texts) not in (1, len(unanswered)):
                raise TypeError(f"step returned {len(texts)} observations for {counted(len(unanswered), 'call')}")
            texts += [""] * (len(unanswered) - len(texts))  # a text answers the first of several calls
            messages = [result_message(r, text) for r, text in zip(unanswered, texts, strict=bool(unanswered))]
            if not unanswered:
                messages = [{"role": "user", "content": text} for text in texts if text]
        functions = [request["function"] for request in unanswered]
        calls = [
            ToolCall(f["name"], recordable(f["arguments"]), t, "ok") for f, t in zip(functions, texts, strict=False)
        ]
        return messages, calls

    def expert(self) -> str | Message | None:
        """See Episode: what the environment's own method expert says, where it has one."""
        expert = getattr(self._environment, "expert", None)
        return None if expert is None else _awaited(expert())

    def close(self) -> Mapping[str, Any]:
        """See Episode: what the environment's method close returns, where it has one."""
        close = getattr(self._environment, "close", None)
        outcome = None if close is None else _awaited(close())
        return {} if outcome is None else outcome


def _awaited(value: Any) -> Any:
    if not inspect.iscoroutine(value):
        return value
    (outcome,) = wait_for([value])
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
