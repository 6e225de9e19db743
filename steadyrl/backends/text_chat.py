"""Conversations whose calls are ordinary text, for models whose chat template knows no tools, or that have none.

The tools are described at the end of the system message, calls are read from the text of a turn, and results come back
as a user's message. Two forms of calls are read: that of Hermes (JSON in <tool_call>), which many models were trained
on, and Python's (``search("lists")`` on a line), which takes a small model few tokens.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steadyrl.core.protocols import Reply, Tokenizer
from steadyrl.core.types import Message, call_line, until_stop

# As the chat templates of Hermes and Qwen describe tools.
_HERMES = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_HERMES_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_PYTHON = "You may call functions, each call on a line of its own:\n{tools}"
_PYTHON_CALL = re.compile(r"^[ \t]*(\w+)\((.*)\)[ \t]*$", re.MULTILINE)

Tools = Sequence[Mapping[str, Any]]


@dataclass
class TextCalls:
    """The calls in a text."""

    content: str
    """The text without them."""
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    """Name and arguments of each."""
    invalid: list[tuple[str, str]] = field(default_factory=list)
    """What was meant as a call and is none: its text, and why."""


@dataclass(frozen=True)
class CallFormat:
    """A way to write calls as text."""

    describe: Callable[[Tools], str]  # the tools to what the system message says of them
    write: Callable[[str, Mapping[str, Any]], str]  # A call's name and arguments to its text
    result: Callable[[str], str]  # what a tool returned to what the policy reads of it
    find: Callable[[str, Tools], TextCalls]


def _find_hermes(text: str, tools: Tools) -> TextCalls:
    parsed = TextCalls(_HERMES_CALL.sub("", text).strip())
    for body, close in _HERMES_CALL.findall(text):
        try:
            call = json.loads(body)
            if not close:
                raise ValueError("</tool_call> is missing")
            if not isinstance(call, dict) or not isinstance(call.get("name"), str):
                raise ValueError("expected an object with name and arguments")
            if not isinstance(call.get("arguments", {}), dict):
                raise ValueError("the arguments are no object")
        except (ValueError, RecursionError) as error:  # JSON's own error is a ValueError
            parsed.invalid.append((body.strip(), f"it is no JSON object of a call: {error}"))
        else:
            parsed.calls.append((call["name"], call.get("arguments", {})))
    return parsed


def _find_python(text: str, tools: Tools) -> TextCalls:
    parameters = {tool["function"]["name"]: list(_properties(tool)) for tool in tools}
    parsed = TextCalls(_PYTHON_CALL.sub("", text).strip())
    for name, argument_text in _PYTHON_CALL.findall(text):
        try:
            arguments = _python_arguments(argument_text, parameters[name]) if name in parameters else {}
            parsed.calls.append((name, arguments))
        except ValueError as error:
            parsed.invalid.append((f"{name}({argument_text})", str(error)))
    for line in parsed.content.splitlines():
        if (name := line.strip().partition("(")[0]) in parameters and "(" in line:
            parsed.invalid.append((line.strip(), f"the call of {name} is not closed by ')' at the end of the line"))
    return parsed


def _python_arguments(argument_text: str, parameters: Sequence[str]) -> dict[str, Any]:
    """Read arguments: Python's literals, and everything else as the text that it is."""
    if not argument_text.strip():
        return {}
    try:
        call = ast.parse(f"f({argument_text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if len(parameters) == 1:  # words without quotes
            return {parameters[0]: argument_text.strip()}
        raise ValueError("its arguments are no values of Python, such as 3 or 'a text'") from error
    assert isinstance(call, ast.Call)
    if len(call.args) > len(parameters):
        raise ValueError(f"it has {len(call.args)} arguments, expected at most {len(parameters)}")
    values_by_name = [(name, value) for name, value in zip(parameters, call.args, strict=False)]
    values_by_name += [(keyword.arg or "**", keyword.value) for keyword in call.keywords]

    def value_of(node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return ast.get_source_segment(f"f({argument_text})", node)

    return {name: value_of(node) for name, node in values_by_name}


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = tool["function"].get("parameters", {}).get("properties", {})
    return properties


def _signature(tool: Mapping[str, Any]) -> str:
    """Return a tool as a line, such as ``search(query: string)  Find titles``."""
    function = tool["function"]
    parameters = ", ".join(f"{name}: {schema.get('type', 'value')}" for name, schema in _properties(tool).items())
    first_line = function.get("description", "").partition("\n")[0]
    return f"{function['name']}({parameters})  {first_line}".rstrip()


FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(
        lambda tools: _HERMES.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)),
        lambda name, arguments: (
            "<tool_call>\n"
            + json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
            + "\n</tool_call>"
        ),
        lambda result: f"<tool_response>\n{result}\n</tool_response>",
        _find_hermes,
    ),
    "python": CallFormat(
        lambda tools: _PYTHON.format(tools="\n".join(map(_signature, tools))),
        call_line,
        lambda result: result,
        _find_python,
    ),
}


class TextChat:
    """See Chat.

    Args:
        tokenizer: The model's.
        tools: What may be called; none for conversations of text alone.
        call_format: How calls are written.
        encode: Makes the first prompt's ids of its messages and of what the system message says of the tools. Without
            tools ``tokenizer.encode_prompt`` does.
        decode: Makes the text of ids, with all marks in it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Tools = (),
        call_format: CallFormat = FORMATS["hermes"],
        encode: Callable[[Sequence[Message], str], np.ndarray] | None = None,
        decode: Callable[[np.ndarray], str] | None = None,
    ):
        self._tokenizer, self._tools, self._format = tokenizer, tools, call_format
        self._encode, self._decode = encode, decode or tokenizer.decode

    def encode_prompt(self, messages: Sequence[Message]) -> np.ndarray:
        """See Chat."""
        plain_messages = [self._with_calls_as_text(message) for message in messages]
        if self._encode is None or not self._tools:
            return self._tokenizer.encode_prompt(plain_messages)
        return self._encode(plain_messages, self._format.describe(self._tools))

    def encode_reply(self, message: Message, after: str) -> np.ndarray:
        """See Chat."""
        return self._tokenizer.encode_answer(self._with_calls_as_text(message)["content"], after)

    def encode_between(self, before: np.ndarray, turn: np.ndarray, messages: Sequence[Message]) -> np.ndarray | None:
        """See Chat. All messages become one of the user's, for templates of texts want roles in turns."""
        text = "\n".join(self._with_calls_as_text(message)["content"] for message in messages)
        return self._tokenizer.encode_turn(text, bool(np.isin(turn[-1:], self._tokenizer.end_ids).any()))

    def parse(self, before: np.ndarray, turn: np.ndarray, stop: Sequence[str]) -> Reply:
        """See Chat."""
        text = until_stop(self._decode(turn), stop)
        if not self._tools:
            return Reply(text, {"role": "assistant", "content": text})
        parsed = self._format.find(text, self._tools)
        return Reply(text, assistant_message(parsed.content, parsed.calls, parsed.invalid, len(before)))

    def _with_calls_as_text(self, message: Message) -> Message:
        """Return a message whose calls, or whose result of a call, are text."""
        if message["role"] == "tool":
            return {"role": "user", "content": self._format.result(message["content"])}
        if not message.get("tool_calls"):
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [self._format.write(function["name"], function["arguments"]) for function in functions]
        return {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}


def assistant_message(
    content: str,
    calls: Sequence[tuple[str, Mapping[str, Any]]],
    invalid: Sequence[tuple[str, str]],
    position: int,
    reasoning: str = "",
) -> Message:
    """Return an assistant's message.

    Args:
        content: What it says beside calls and reasoning.
        calls: Name and arguments of each.
        invalid: Text of what was meant as a call, and what is wrong with it.
        position: Number of tokens before the turn, which tells the ids of its calls from those of other turns.
        reasoning: What stands in the marks of reasoning.
    """
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"functions.{name}:{position + number}",  # the form of Kimi, which reads the name out of it
                "type": "function",
                "function": {"name": name, "arguments": dict(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
    if invalid:
        message["invalid_tool_calls"] = [{"text": text, "error": error} for text, error in invalid]
    return message
