"""Conversations with tools in the form that a model was trained on, written and read by the package ``renderers``.

A renderer is a chat template in Python that also reads what the policy wrote, and that goes on behind it without
encoding it again. It is chosen by what it does: it has to write the same tokens as the tokenizer's own chat template,
and to go on from turns with calls, results and reasoning. Both are tried before it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.backends.text_chat import FORMATS, assistant_message
from steadyrl.core import plugins
from steadyrl.core.errors import EpisodeError, ModelError, exception_line
from steadyrl.core.protocols import Reply
from steadyrl.core.types import Message, until_stop

log = logging.getLogger(__name__)

Tools = Sequence[Mapping[str, Any]]
_USER: Message = {"role": "user", "content": "How many lists?"}
_TRIAL_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What."}, "count": {"type": "integer"}},
            "required": ["text"],
        },
    },
}
_CALLED = {"name": "look_up", "arguments": {"text": "a b", "count": 3}}
_CALL = {"id": "functions.look_up:0", "type": "function", "function": _CALLED}
_RESULT: Message = {"role": "tool", "content": "two\nlists", "tool_call_id": "functions.look_up:0", "name": "look_up"}
# Renderers assert that their marks are tokens, and raise what templates raise on messages that they do not take.
_REFUSALS = (AssertionError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, ImportError)


class RendererChat:
    """See Chat; ``before`` puts the config's messages before those of a problem."""

    def __init__(self, renderer: Any, tokenizer: Any, tools: Tools, end_ids: Sequence[int], before: Any = list):
        self._renderer, self._hf, self._before = renderer, tokenizer, before
        self._tools = [dict(tool) for tool in tools]
        self._end_ids = tuple(dict.fromkeys([*end_ids, *renderer.get_stop_token_ids()]))

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Return every id that ends a turn, those of the renderer among them."""
        return self._end_ids

    def encode_prompt(self, messages: Sequence[Message]) -> np.ndarray:
        """See Chat.

        Raises:
            ModelError: The model's form of conversations has no place for such messages.
        """
        return np.array(self._render(self._before(messages), goes_on=True), np.int32)

    def encode_reply(self, message: Message, after: str) -> np.ndarray:
        """See Chat."""
        calls = message.get("tool_calls", ())
        answers: list[Message] = [
            {**_RESULT, "tool_call_id": call["id"], "name": call["function"]["name"]} for call in calls
        ] or [_USER]
        start, mark = self._render([_USER], goes_on=True), self._hf.encode("-", add_special_tokens=False)
        # Where the model's turns begin within its reasoning, a turn without any is written with a mark in its place.
        for turn in (message, {**message, "reasoning_content": "-"}):
            # Some models end a turn with the mark of what comes next; others leave the reasoning of earlier turns out.
            for messages in ([_USER, turn, *answers], [_USER, turn]):
                ids = self._render(messages, goes_on=False)
                if ids[: len(start)] != start:
                    continue
                ids = ids[len(start) :]
                end = next((i for i, id in enumerate(ids) if id in self._end_ids), len(ids))
                skipped = len(mark) if turn is not message and ids[: len(mark)] == mark else 0
                return np.array([*ids[skipped:end], *(ids[end : end + 1] or self._end_ids[:1])], np.int32)
        raise ModelError(
            "the model's form of conversations begins a turn otherwise than it writes such a turn afterwards, so that "
            "no answer can be shown to it; leave out algorithms that learn from shown answers"
        )

    def encode_between(self, before: np.ndarray, turn: np.ndarray, messages: Sequence[Message]) -> np.ndarray | None:
        """See Chat."""
        previous, written = before.tolist(), turn.tolist()
        bridge = self._renderer.bridge_to_next_turn(previous, written, _plain(messages), tools=self._tools)
        if bridge is None:
            return None
        ids, count = bridge.token_ids, len(previous) + len(written)
        if ids[:count] != previous + written:
            raise EpisodeError("the package renderers changed tokens that the policy wrote")
        return np.array(ids[count:], np.int32)

    def parse(self, before: np.ndarray, turn: np.ndarray, stop: Sequence[str]) -> Reply:
        """See Chat."""
        ids = turn.tolist()
        parsed = self._renderer.parse_response(ids, tools=self._tools, prompt_ids=before.tolist())
        text: str = self._hf.decode([id for id in ids if id not in self._end_ids], skip_special_tokens=False)
        calls, invalid = [], []
        for call in parsed.tool_calls:
            if call.status == "ok" and call.name and isinstance(call.arguments, dict):
                calls.append((call.name, call.arguments))
            elif call.status == "unknown_tool" and call.name:
                calls.append((call.name, {}))
            else:
                reason = "the arguments are no object" if call.status == "ok" else call.status.replace("_", " ")
                invalid.append((call.raw, reason))
        content = until_stop(parsed.content, stop).strip()
        message = assistant_message(content, calls, invalid, len(before), (parsed.reasoning_content or "").strip())
        return Reply(until_stop(text, stop), message)

    def _render(self, messages: Sequence[Message], goes_on: bool) -> list[int]:
        try:
            ids = self._renderer.render_ids(_plain(messages), tools=self._tools, add_generation_prompt=goes_on)
        except _REFUSALS as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(
                f"the model's form of conversations ({self._renderer.config.name}) takes no messages of the roles "
                f"{roles}: {exception_line(error)}"
            ) from error
        return list(ids)


def choose_renderer(tokenizer: Any, tool_format: str, template_args: Mapping[str, Any], template: Any) -> Any:
    """Return the renderer of a model.

    Args:
        tokenizer: Of transformers.
        tool_format: "auto", or a renderer's name.
        template_args: Arguments of the chat template.
        template: Messages, tools and whether the policy goes on to the ids that the tokenizer's chat template gives;
            None without a chat template.

    Raises:
        ModelError: No renderer writes what the template writes and goes on from all turns.
        MissingExtraError: The package is not installed.
    """
    plugins.require("renderers")
    base = plugins.require("renderers.base")
    if tool_format not in ("auto", *base.MODEL_RENDERER_MAP.values()):
        forms = ", ".join(dict.fromkeys(["auto", *FORMATS, *base.MODEL_RENDERER_MAP.values()]))
        raise ModelError(f"task.args.tool_format = '{tool_format:.60}' is no form of calls; known are {forms}")
    if tool_format != "auto":
        renderer = _create(tokenizer, tool_format, template_args)
        if isinstance(renderer, str):
            raise ModelError(f"task.args.tool_format = '{tool_format}' does not fit the model's tokenizer: {renderer}")
        if problem := _continuation_problem(renderer, tokenizer):
            raise ModelError(f"task.args.tool_format = '{tool_format}' serves no episodes of several turns: {problem}")
        if template and not _writes_template_tokens(renderer, template):
            log.warning(
                "task.args.tool_format = '%s' writes other tokens than the model's own chat template", tool_format
            )
        return renderer
    problems = {}
    by_model = base.MODEL_RENDERER_MAP
    likely_first = [*filter(None, [by_model.get(tokenizer.name_or_path)]), *by_model.values()]
    for name in dict.fromkeys(likely_first):
        renderer = _create(tokenizer, name, template_args)
        if not isinstance(renderer, str) and _writes_template_tokens(renderer, template):
            if not (problem := _continuation_problem(renderer, tokenizer)):
                return renderer
            problems[name] = problem
    failures = "; ".join(f"{name}: {text}" for name, text in problems.items()) or "none writes the template's tokens"
    raise ModelError(
        f"the model's chat template has tools, and no renderer can go on from its turns ({failures}); set "
        f"task.args.tool_format to that of a model alike, or to {' or '.join(map(repr, FORMATS))}, which describe the "
        "tools in the system message"
    )


def _create(tokenizer: Any, name: str, template_args: Mapping[str, Any]) -> Any:
    """Return a renderer, or why the tokenizer cannot have it."""
    renderers = plugins.require("renderers")
    try:
        config = renderers.config_from_name(name)
        # What the policy wrote stays in what it reads, reasoning included: nothing is trained in another context.
        kept_reasoning = type(config)(thinking_retention="all")
        return renderers.create_renderer(tokenizer, kept_reasoning, chat_template_kwargs=template_args or None)
    except _REFUSALS as error:
        return exception_line(error)
    except Exception as error:  # openai_harmony, which gpt-oss needs, raises its own when it cannot load its vocabulary
        if type(error).__name__ != "HarmonyError":
            raise
        return exception_line(error)


def _writes_template_tokens(renderer: Any, template: Any) -> bool:
    """Return whether a renderer writes the template's tokens, for a first turn and for one behind a call."""
    system = {"role": "system", "content": "Be brief."}
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    tools = [dict(_TRIAL_TOOL)]
    try:
        return all(
            list(renderer.render_ids(_plain(messages), tools=tools, add_generation_prompt=True))
            == template(messages, tools)
            for messages in ([_USER], [system, _USER], [system, _USER, called, _RESULT])
        )
    except (*_REFUSALS, ModelError):
        return False


def _continuation_problem(renderer: Any, tokenizer: Any) -> str:
    """Return what a renderer fails at: two turns with calls, results, reasoning and a user's answer; "" for nothing."""
    chat = RendererChat(renderer, tokenizer, [_TRIAL_TOOL], ())
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    exact = False
    try:
        start = chat.encode_prompt([_USER])
        for message in (called, {**called, "reasoning_content": "A thought."}):
            turn, before = chat.encode_reply(message, ""), start
            for _ in range(2):
                read = chat.parse(before, turn, ()).message
                if [call["function"] for call in read.get("tool_calls", ())] != [_CALLED]:
                    return "it does not read its own calls"
                between = chat.encode_between(before, turn, [_RESULT])
                if between is None:
                    return "it does not go on behind a call and its result"
                before = np.concatenate([before, turn, between])
            if chat.encode_between(before, turn, [_USER]) is None:
                return "it does not go on behind a user's message"
            # Models whose turns begin within their reasoning write turns without any otherwise.
            between = chat.encode_between(start, turn, [_RESULT])
            rendered = chat.encode_prompt([_USER, message, _RESULT])
            exact |= between is not None and np.array_equal(rendered, np.concatenate([start, turn, between]))
    except (*_REFUSALS, ModelError, EpisodeError) as error:
        return exception_line(error)
    return "" if exact else "it goes on otherwise than it writes the whole conversation"


def _plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with the fields alone that models read."""
    return [{key: value for key, value in message.items() if key != "invalid_tool_calls"} for message in messages]
