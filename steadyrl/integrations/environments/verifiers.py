"""Environments of verifiers 0.4: a taskset, with its tools, its scripted user and its rewards.

    [task.args]
    environment = "verifiers"
    environment_args = {id = "glossary"}

To verifiers the policy is a model behind an OpenAI endpoint, which this module serves: a request for a completion waits
for the policy's turn. The conversation is that of verifiers, so a request has to begin with the one before.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, EpisodeError, exception_line
from steadyrl.core.types import Message, Problem
from steadyrl.loop.tasks.tools import make_checked_tool

START_SECONDS = 120.0  # until the first request: verifiers starts the servers of a taskset's tools
_HELD_OUT = 5  # one of so many tasks
_HARNESS = "steadyrl_chat"
_FIELDS = ("role", "content", "tool_call_id", "name")


class VerifiersEnvironment:
    """An episode of a taskset.

    Args:
        id: Of the taskset, an installed package such as "reverse-text".
        most_tasks: Of the taskset, from its first; the last fifth of them are held out.
        settings: Of the taskset, such as ``dataset_split``.

    Raises:
        ConfigError: The taskset cannot be loaded, or its environment has several agents.
        MissingExtraError: verifiers is not installed.
    """

    def __init__(self, id: str, most_tasks: int = 1000, **settings: Any):
        self._endpoint = serve(id, most_tasks, json.dumps(settings, sort_keys=True))
        # verifiers would try a call with wrong arguments for half a minute.
        functions = [tool["function"] for tool in self._endpoint.tools]
        self.tools = [make_checked_tool(f["name"], f.get("description", ""), f["parameters"]) for f in functions]
        self._episode: _Episode | None = None

    def reset(self, problem: Problem) -> Sequence[Message]:
        """Begin the task of the problem's number, and return the messages of its first request."""
        self._episode = _Episode(self._endpoint, self._endpoint.task(problem.columns["seed"]))
        return self._episode.advance()

    def step(self, message: Message) -> tuple[Sequence[Message] | None, float | None, bool]:
        """Answer the request, and return what the next one adds, or the reward of the task."""
        assert self._episode is not None, "reset comes first"
        if message.get("invalid_tool_calls") and not message.get("tool_calls"):
            return None, None, False  # the policy reads what is wrong, and the taskset does not
        turn: dict[str, Any] = {"role": "assistant", "content": message["content"]}
        if calls := message.get("tool_calls"):  # in OpenAI's form, in which arguments are JSON
            functions = [{**call["function"], "arguments": json.dumps(call["function"]["arguments"])} for call in calls]
            turn["tool_calls"] = [{**call, "function": f} for call, f in zip(calls, functions, strict=True)]
        messages = self._episode.advance(turn)
        return (messages, None, False) if messages else (None, self._episode.trace().reward, True)

    def close(self) -> Mapping[str, Any]:
        """Return the metrics of a task that ended, and what ended it."""
        if self._episode is None:
            return {}
        trace = self._episode.trace() if self._episode.done() else None
        self._episode.cancel()
        return {} if trace is None else {**trace.metrics, "stop": trace.stop_condition}


@functools.cache
def serve(id: str, most_tasks: int, settings: str) -> _Endpoint:
    """Load a taskset with settings in JSON, and serve the endpoint that its episodes ask; once per process.

    Raises:
        ConfigError: It cannot be loaded, or its first task makes no request.
        MissingExtraError: verifiers is not installed.
    """
    endpoint = _Endpoint(id, most_tasks, json.loads(settings))
    try:
        episode = _Episode(endpoint, endpoint.tasks[0])
        episode.advance()
        episode.cancel()
        endpoint.tools = list(episode.request.get("tools", ()))
    except EpisodeError as error:
        raise ConfigError(f"the first task of the taskset '{id:.80}' cannot be played: {error}") from error
    return endpoint


class _Endpoint:
    """An environment of verifiers, and the endpoint; both live in the event loop of a thread."""

    def __init__(self, id: str, most_tasks: int, settings: Mapping[str, Any]):
        self.vf = plugins.require("verifiers.v1")
        self._web = plugins.require("aiohttp.web")
        loaders = plugins.require("verifiers.v1.utils.loaders")
        sys.modules[_HARNESS] = plugins.require("steadyrl.integrations.environments.verifiers_chat")
        try:
            kind = loaders.env_config_type(id)
            fields = kind.model_fields.items()
            agents = [name for name, field in fields if isinstance(field.default, self.vf.AgentConfig)]
            if len(agents) != 1:
                raise ConfigError(f"the taskset '{id:.80}' has the agents {', '.join(agents)}; expected one agent")
            agent = {"harness": {"id": _HARNESS}, "runtime": {"type": "subprocess"}}
            self.env = loaders.load_environment(
                kind.model_validate({"taskset": {"id": id, **settings}, agents[0]: agent})
            )
            self.tasks = list(itertools.islice(self.env.taskset, most_tasks))
        except (ImportError, ValueError, TypeError, OSError) as error:
            raise ConfigError(
                f"the taskset '{id:.80}' of verifiers cannot be loaded: {exception_line(error)}; install its package, "
                "and see task.args.environment_args"
            ) from error
        if not self.tasks:
            raise ConfigError(f"the taskset '{id:.80}' has no tasks; see task.args.environment_args")
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.requests: dict[str, asyncio.Queue[Any]] = {}
        self.url, self._numbers = "", itertools.count()
        self.loop, self._ready = asyncio.new_event_loop(), threading.Event()
        # At the end of the process verifiers itself ends the servers that it started.
        threading.Thread(target=self._run, name="verifiers", daemon=True).start()
        if not self._ready.wait(START_SECONDS) or not self.url:
            raise ConfigError(f"the tools of the taskset '{id:.80}' did not start within {START_SECONDS:g} s")

    def task(self, number: int) -> Any:
        """Return the task of a problem's number: those of held-out problems begin at 1 << 20."""
        held_out = len(self.tasks) // _HELD_OUT
        if number >= 1 << 20 and held_out:
            return self.tasks[len(self.tasks) - held_out + number % held_out]
        return self.tasks[number % (len(self.tasks) - held_out)]

    def begin(self, task: Any) -> tuple[asyncio.Queue[Any], asyncio.Task[Any]]:
        """Begin an episode; in the loop's thread."""
        name, queue = str(next(self._numbers)), asyncio.Queue[Any]()
        self.requests[name] = queue
        client = self.vf.EvalClientConfig(base_url=f"{self.url}/{name}/v1", api_key_var="STEADYRL_POLICY_KEY")
        episode = asyncio.create_task(self.env.run_episode(task, self.vf.ModelContext(model="policy", client=client)))
        episode.add_done_callback(lambda _: self.requests.pop(name))
        return queue, episode

    def _run(self) -> None:
        async def serving() -> None:
            app = self._web.Application(client_max_size=1 << 28)
            app.router.add_post("/{episode}/v1/chat/completions", self._answer)
            runner = self._web.AppRunner(app)
            async with self.env.serving():
                await runner.setup()
                await self._web.TCPSite(runner, "127.0.0.1", 0).start()
                self.url = "http://{}:{}".format(*runner.addresses[0][:2])
                self._ready.set()
                await asyncio.Event().wait()

        try:
            self.loop.run_until_complete(serving())
        finally:
            self._ready.set()

    async def _answer(self, request: Any) -> Any:
        turn: asyncio.Future[Mapping[str, Any]] = self.loop.create_future()
        await self.requests[request.match_info["episode"]].put((await request.json(), turn))
        message = await turn
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        body = {"id": "turn", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        return self._web.json_response(body)


class _Episode:
    """An episode under way, seen from the policy's side."""

    def __init__(self, endpoint: _Endpoint, task: Any):
        self._endpoint, self._task = endpoint, task
        self._queue: asyncio.Queue[Any] | None = None
        self._future: asyncio.Task[Any] | None = None
        self.request: Mapping[str, Any] = {"messages": ()}
        self._turn: asyncio.Future[Any] | None = None

    def advance(self, turn: Message | None = None) -> Sequence[Message]:
        """Give the policy's turn, and return the messages that the next request adds; none where there is no other.

        Raises:
            EpisodeError: The episode failed, or a request does not go on from the one before.
        """
        return asyncio.run_coroutine_threadsafe(self._advance(turn), self._endpoint.loop).result()

    def done(self) -> bool:
        """Return whether it ended by itself."""
        return self._future is not None and self._future.done() and not self._future.cancelled()

    def trace(self) -> Any:
        """Return what verifiers recorded of it.

        Raises:
            EpisodeError: It failed.
        """
        assert self._future is not None, "it has begun"
        episode = self._future.result()
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            reason = f"{errors[0].type}: {errors[0].message:.500}" if errors else "no reason was given"
            raise EpisodeError(f"verifiers: {reason}")
        return episode.traces[-1]

    def cancel(self) -> None:
        """End it, if it is under way."""
        if self._future is not None:
            self._endpoint.loop.call_soon_threadsafe(self._future.cancel)

    async def _advance(self, turn: Message | None) -> Sequence[Message]:
        if self._queue is None or self._future is None:
            self._queue, self._future = self._endpoint.begin(self._task)
        if turn is not None and self._turn is not None and not self._turn.done():
            self._turn.set_result(turn)
        waiting = asyncio.create_task(self._queue.get())
        await asyncio.wait({waiting, self._future}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self.trace()
            return ()
        previous, (self.request, self._turn) = self.request["messages"], waiting.result()
        messages, tools = self.request["messages"], list(self.request.get("tools", ()))
        added = messages[len(previous) + (turn is not None) :]
        continues = list(map(_role_and_content, messages[: len(previous)])) == list(map(_role_and_content, previous))
        if not continues or not added or (self._endpoint.tools and tools != self._endpoint.tools):
            self._future.cancel()
            raise EpisodeError("verifiers asked with messages or tools that do not go on from the turn before")
        return [{name: message[name] for name in _FIELDS if name in message} for message in added]


def _role_and_content(message: Mapping[str, Any]) -> tuple[str, str]:
    return message["role"], message.get("content") or ""
