"""Python functions as tools: the schema that the policy reads, and calls of them whose failures are observations."""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NotRequired, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, exception_line
from steadyrl.core.types import CallEnd, Message, ToolCall
from steadyrl.loop.rewards.calls import is_async, wait_for, within
from steadyrl.loop.rewards.functions import RAISED

_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?):\s*$|^\s*:", re.M)
_ARGUMENTS = re.compile(r"^[ \t]*(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*\n?|[ \t]*\n)+)", re.M)
_ARGUMENT = re.compile(r"^[ \t]*\*{0,2}(\w+)[ \t]*(?:\([^)]*\))?[ \t]*:[ \t]*(.+)$")
_PARAM = re.compile(r"^[ \t]*:param[ \t]+(?:[^:\n]*[ \t])?(\w+):[ \t]*(.+)$", re.M)
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}\Z")
_ERROR = "error: "  # begins every result that is none
_REFUSED = ("unknown", "arguments", "budget")  # ends of calls that were not made


@dataclass(frozen=True)
class Tool:
    """Something that the policy may call."""

    schema: Mapping[str, Any]
    """In OpenAI's form."""
    function: Callable[..., Any] | None = None
    """What is called; None where the environment answers the calls in its method step."""
    arguments: TypeAdapter[Any] | None = None
    """Reads the arguments of a call."""
    method: bool = False
    """Whether the function's first argument is the environment."""

    @property
    def name(self) -> str:
        """Return what the policy calls it."""
        return str(self.schema["function"]["name"])


@dataclass(frozen=True)
class Limits:
    """What calls may take."""

    calls: int = 0
    """In an episode; 0 for no limit."""
    seconds: float = 0.0
    """For one call; 0 for no limit."""
    characters: int = 0
    """Of a result; 0 for no limit."""


def make_tool(source: Any, method: bool = False, location: str = "a tool") -> Tool:
    """Return a tool.

    Args:
        source: A function with type hints and a docstring, a JSON schema, with or without "function" around it, or a
            tool, which is returned as it is.
        method: Whether the function's first argument is the environment.
        location: Where it is named, for an error.

    Raises:
        ConfigError: It lacks what the policy has to know, or is neither.
    """
    if isinstance(source, Tool):
        return source
    if isinstance(source, Mapping):
        return Tool(_checked_schema(source))
    if not callable(source) or inspect.isclass(source):
        raise ConfigError(f"{location} is {source!r:.60}; expected a function, or a JSON schema")
    name = getattr(source, "__name__", type(source).__name__)
    description, documented = _parse_docstring(source)
    if not description:
        raise ConfigError(f"the tool '{name}' has no docstring; write what it does, for the policy reads it")
    fields: dict[str, Any] = {}
    for parameter in _parameters(source, name)[method:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"the tool '{name}' takes '{parameter}'; expected parameters that are called by name")
        hint = _hints(source, name).get(parameter.name)
        if hint is None:
            raise ConfigError(f"the tool '{name}' gives its parameter '{parameter.name}' no type; add one, such as str")
        described = Field(description=documented.get(parameter.name))
        field = Annotated[hint, described]  # type: ignore[valid-type]  # known when it runs
        fields[parameter.name] = field if parameter.default is parameter.empty else NotRequired[field]
    make_class: Any = TypedDict  # a pydantic model refuses some names of parameters
    arguments = make_class("arguments", fields)
    arguments.__pydantic_config__ = {"extra": "forbid"}
    try:
        reader = TypeAdapter(arguments)
        schema = _without_titles(reader.json_schema())
    except (PydanticUserError, TypeError) as error:
        raise ConfigError(
            f"the tool '{name}' has a parameter of a type that JSON has not: {exception_line(error)}; take str, int, "
            "float, bool, lists and dicts of them, Literal or a pydantic model"
        ) from error
    schema.pop("additionalProperties", None)
    parameters = {"type": "object", "properties": {}, **schema}
    described_function = {"name": name, "description": description, "parameters": parameters}
    return Tool({"type": "function", "function": described_function}, source, reader, method)


def make_checked_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
    """Return a tool whose calls are refused where their arguments do not fit the JSON schema.

    Raises:
        ConfigError: The schema is none.
        MissingExtraError: The package jsonschema is not installed.
    """
    validators = plugins.require("jsonschema").validators
    validator = validators.validator_for(parameters)(parameters)

    def checked(arguments: dict[str, Any]) -> dict[str, Any]:
        for error in validator.iter_errors(arguments):
            raise PydanticCustomError("schema", "{why}", {"why": f"{error.json_path} {error.message}"})
        return arguments

    tool = make_tool({"name": name, "description": description, "parameters": parameters})
    return replace(tool, arguments=TypeAdapter(Annotated[dict[str, Any], AfterValidator(checked)]))


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError as error:  # of some functions in C the parameters are not known
        raise ConfigError(f"the tool '{name}' does not say what it takes; write a function that calls it") from error


def _hints(function: Any, name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"the types of the tool '{name}' cannot be read: {exception_line(error)}") from error


def _checked_schema(source: Mapping[str, Any]) -> Mapping[str, Any]:
    function = source.get("function", source)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfigError(f"a tool's JSON schema has the name {name!r:.60}; expected one of letters, digits and '_'")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or not isinstance(parameters.get("properties", {}), Mapping):
        raise ConfigError(f"the JSON schema of the tool '{name}' has parameters {parameters!r:.60}; expected an object")
    inner = {"name": name, "description": str(function.get("description", "")), "parameters": dict(parameters)}
    return {"type": "function", "function": inner}


def _parse_docstring(function: Any) -> tuple[str, dict[str, str]]:
    text = inspect.getdoc(function) or ""
    section = _SECTION.search(text)
    description = (text[: section.start()] if section else text).strip()
    parameters = {name: " ".join(words.split()) for name, words in _PARAM.findall(text)}
    if block := _ARGUMENTS.search(text):
        lines = inspect.cleandoc("\n" + block[1]).splitlines()
        current = ""
        for line in lines:
            if (match := _ARGUMENT.match(line)) and not line[:1].isspace():
                current = match[1]
                parameters[current] = match[2].strip()
            elif current and line.strip():  # a description of several lines
                parameters[current] += " " + line.strip()
    return description, parameters


def _without_titles(schema: Any) -> Any:
    """Return a JSON schema without the titles and empty descriptions that pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: _without_titles(inner) for name, inner in value.items()}
        if key in ("properties", "$defs")
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title" and not (key == "description" and value is None)
    }


class Toolbox:
    """The tools of one episode, and how often they were called; methods get the environment first."""

    def __init__(self, tools: Sequence[Tool], environment: Any, limits: Limits):
        self._tools, self._environment, self._limits = {tool.name: tool for tool in tools}, environment, limits
        self._count = 0

    def answer(self, message: Message) -> tuple[list[Message], list[ToolCall], list[Mapping[str, Any]], Message]:
        """Make the calls of a message.

        Asynchronous functions run at the same time, behind all others, which run in their order.

        Returns:
            What the policy reads of them, the calls, those that the environment has to answer, and the message as the
            environment reads it: where it answers calls, those that were refused are among the invalid ones.
        """
        requests = list(message.get("tool_calls", ()))
        ends = [self._start(request["function"]) for request in requests]
        waiting = [i for i, end in enumerate(ends) if inspect.iscoroutine(end)]
        start = time.monotonic()
        coroutines = [end for end in ends if inspect.iscoroutine(end)]
        for i, value in zip(waiting, wait_for(coroutines, self._limits.seconds) if waiting else (), strict=True):
            ends[i] = self._finished(value, time.monotonic() - start)
        messages: list[Message] = []
        calls: list[ToolCall] = []
        for request, end in zip(requests, ends, strict=True):
            if end is None:
                continue
            function = request["function"]
            calls.append(replace(end, name=function["name"], arguments=recordable(function["arguments"])))
            messages.append(result_message(request, end.result))
        for invalid in message.get("invalid_tool_calls", ()):
            text = f"{_ERROR}a call could not be read: {invalid['error']}"
            calls.append(ToolCall("", {"text": invalid["text"]}, text, "malformed"))
            messages.append({"role": "user", "content": text})
        unanswered = [request for request, end in zip(requests, ends, strict=True) if end is None]
        return messages, calls, unanswered, self._for_environment(message, ends)

    def _for_environment(self, message: Message, ends: Sequence[ToolCall | None]) -> Message:
        if all(tool.function for tool in self._tools.values()):
            return message
        requests, invalid = [], list(message.get("invalid_tool_calls", ()))
        for request, end in zip(message.get("tool_calls", ()), ends, strict=True):
            if end is not None and end.end in _REFUSED:
                invalid.append({"text": request["function"]["name"], "error": end.result.removeprefix(_ERROR)})
            else:
                requests.append(request)
        return {**message, "tool_calls": requests, "invalid_tool_calls": invalid}

    def limited(self, text: str) -> str:
        """Return a result that is cut to the limit, with a note that says so."""
        limit = self._limits.characters
        return f"{text[:limit]}\n[cut: {limit} of {len(text)} characters]" if 0 < limit < len(text) else text

    def _start(self, function: Mapping[str, Any]) -> Any:
        """Return what a call came to, a coroutine that is to be waited for, or None for the environment's to answer."""
        name = function["name"]
        self._count += 1
        if self._limits.calls and self._count > self._limits.calls:
            return _failed("budget", f"no calls are left: {self._limits.calls} are allowed")
        if name not in self._tools:
            return _failed("unknown", f"there is no tool '{name:.60}'; there are {', '.join(self._tools) or 'none'}")
        tool = self._tools[name]
        arguments = function["arguments"]
        try:
            if tool.arguments is not None:
                arguments = tool.arguments.validate_python(arguments)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(map(str, first["loc"])) or "arguments"
            return _failed("arguments", f"wrong arguments of {name}: {location}: {first['msg']}")
        if tool.function is None:
            return None
        positional = [self._environment] if tool.method else []
        if is_async(tool.function):
            return tool.function(*positional, **arguments)
        start = time.monotonic()
        try:
            value = within(self._limits.seconds, lambda: tool.function(*positional, **arguments))  # type: ignore[misc]
        except RAISED as error:  # a tool's failure is the policy's to read
            value = error
        return self._finished(value, time.monotonic() - start)

    def _finished(self, value: Any, seconds: float) -> ToolCall:
        if isinstance(value, BaseException):
            late = isinstance(value, TimeoutError) and 0 < self._limits.seconds <= seconds
            text = f"the call took longer than {self._limits.seconds:g} s" if late else exception_line(value)
            return replace(_failed("timeout" if late else "raised", text), seconds=seconds)
        return ToolCall("", {}, self.limited(result_text(value)), "ok", seconds)


def recordable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that can be written as JSON: a policy may write sets, or numbers that are none."""
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {str(name): repr(value) for name, value in arguments.items()}
    return dict(arguments)


def _failed(end: CallEnd, reason: str) -> ToolCall:
    return ToolCall("", {}, f"{_ERROR}{reason}", end)


def result_text(value: Any) -> str:
    """Return what a tool returned as the policy reads it: text as it is, nothing as "", all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def result_message(request: Mapping[str, Any], text: str) -> Message:
    """Return the answer to a call."""
    return {"role": "tool", "content": text, "tool_call_id": request["id"], "name": request["function"]["name"]}


def sample_arguments(tool: Mapping[str, Any], words: str) -> dict[str, Any]:
    """Return arguments that a tool's schema allows, for scripted policies; ``words`` stands in for a text."""
    parameters = tool["function"]["parameters"]
    properties, required = parameters.get("properties", {}), parameters.get("required", ())
    return {name: _sample(schema, words) for name, schema in properties.items() if name in required}


def _sample(schema: Mapping[str, Any], words: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], words)
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    samples = {"string": words, "integer": low, "number": low, "boolean": True, "array": [], "object": {}}
    return samples.get(schema.get("type", "null"))
