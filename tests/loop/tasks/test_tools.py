"""Functions as tools: the schema that the policy reads, and calls of which none raises."""

import asyncio
import time
from typing import Literal

import pytest

from steadyrl.core.errors import ConfigError
from steadyrl.loop.tasks.tools import Limits, Toolbox, make_tool, sample_arguments
from tests.needs import package


def search(query: str, count: int = 5, order: Literal["new", "old"] = "new") -> list[str]:
    """Find titles.

    The search is plain.

    Args:
        query: Words that the title holds,
            all of them.
        count (int): How many.
    """
    return [f"{query} {i}" for i in range(count)]


def divide(a: float, b: float) -> float:
    """Divide.

    :param a: What is divided.
    """
    return a / b


async def slow(word: str) -> str:
    """Wait a little."""
    await asyncio.sleep(0.2)
    return word


def sleepy() -> str:
    """Wait too long."""
    time.sleep(5)
    return "late"


def calls(*named):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(named)
        ],
    }


def box(*tools, **limits):
    return Toolbox([make_tool(tool) for tool in tools], None, Limits(**limits))


def test_a_function_s_schema_is_that_of_transformers():
    get_json_schema = package("transformers").utils.get_json_schema

    def find(query: str, count: int = 5, exact: bool = False, words: list[str] | None = None) -> str:
        """
        Find titles.

        Args:
            query: Words that the title holds.
            count: How many.
            exact: Whether they stand together.
            words: Further ones.
        """

    ours, theirs = make_tool(find).schema["function"], get_json_schema(find)["function"]
    assert (ours["name"], ours["description"]) == (theirs["name"], theirs["description"])
    ours, theirs = ours["parameters"], theirs["parameters"]
    assert (ours["type"], ours["required"]) == (theirs["type"], theirs["required"])
    plain = {name: schema for name, schema in theirs["properties"].items() if name != "words"}
    assert {name: ours["properties"][name] for name in plain} == plain
    assert ours["properties"]["words"] == {  # transformers writes OpenAPI's "nullable"
        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
        "description": "Further ones.",
    }


def test_a_function_s_schema_by_hand():
    assert make_tool(search).schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find titles.\n\nThe search is plain.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words that the title holds, all of them."},
                    "count": {"type": "integer", "description": "How many."},
                    "order": {"type": "string", "enum": ["new", "old"]},
                },
                "required": ["query"],
            },
        },
    }
    assert make_tool(divide).schema["function"]["parameters"]["properties"]["a"] == {
        "type": "number",
        "description": "What is divided.",
    }


def without_hint(query) -> str:
    """Find."""


def without_docstring(query: str) -> str:
    return query


def of_anything(*words: str) -> str:
    """Find."""


def of_a_class(thing: Toolbox) -> str:
    """Find."""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (without_hint, "gives its parameter 'query' no type"),
        (without_docstring, "has no docstring"),
        (of_anything, "takes '\\*words: "),
        (of_a_class, "a type that JSON has not"),
        (3, "a tool is 3; expected a function"),
        (max, "the tool 'max' does not say what it takes"),
        ({"name": "two words"}, "has the name 'two words'"),
        ({"name": "f", "parameters": [1]}, "has parameters \\[1\\]; expected an object"),
    ],
)
def test_what_the_policy_could_not_call_is_refused(source, why):
    with pytest.raises(ConfigError, match=why):
        make_tool(source)


def test_calls_of_a_turn_are_answered_in_order():
    messages, made, unanswered, _ = box(search, divide).answer(
        calls(("search", {"query": "list", "count": 2}), ("divide", {"a": 1, "b": 4}))
    )
    assert messages == [
        {"role": "tool", "content": '["list 0", "list 1"]', "tool_call_id": "c0", "name": "search"},
        {"role": "tool", "content": "0.25", "tool_call_id": "c1", "name": "divide"},
    ]
    assert [(call.name, call.arguments, call.end) for call in made] == [
        ("search", {"query": "list", "count": 2}, "ok"),
        ("divide", {"a": 1, "b": 4}, "ok"),
    ]
    assert unanswered == []


@pytest.mark.parametrize(
    ("name", "arguments", "end", "read"),
    [
        ("serch", {}, "unknown", "error: there is no tool 'serch'; there are search, divide"),
        ("search", {}, "arguments", "error: wrong arguments of search: query: Field required"),
        ("search", {"query": ["a"]}, "arguments", "error: wrong arguments of search: query: Input should be"),
        ("search", {"query": "a", "x": 1}, "arguments", "error: wrong arguments of search: x: Extra inputs"),
        ("divide", {"a": 1, "b": 0}, "raised", "error: ZeroDivisionError: float division by zero"),
    ],
)  # fmt: skip
def test_a_call_that_fails_is_an_observation_and_is_counted_by_its_kind(name, arguments, end, read):
    ((message,), (call,), _, _) = box(search, divide).answer(calls((name, arguments)))
    assert call.end == end
    assert message["content"].startswith(read)
    assert (message["role"], message["tool_call_id"]) == ("tool", "c0")


def test_a_call_that_could_not_be_read_is_an_observation():
    turn = {"role": "assistant", "content": "", "invalid_tool_calls": [{"text": "{", "error": "no JSON"}]}
    messages, (call,), _, _ = box(search).answer(turn)
    assert messages == [{"role": "user", "content": "error: a call could not be read: no JSON"}]
    assert (call.name, call.arguments, call.end) == ("", {"text": "{"}, "malformed")


def test_a_long_result_is_cut_and_says_so():
    ((message,), _, _, _) = box(search, characters=10).answer(calls(("search", {"query": "list", "count": 3})))
    assert message["content"] == '["list 0",\n[cut: 10 of 30 characters]'


def test_calls_beyond_the_budget_are_not_made():
    tools = box(divide, calls=2)
    one = ("divide", {"a": 1, "b": 2})
    first = tools.answer(calls(one))[1]
    second = tools.answer(calls(one, one))[1]
    assert [call.end for call in first + second] == ["ok", "ok", "budget"]
    assert second[1].result == "error: no calls are left: 2 are allowed"


def test_asynchronous_calls_of_a_turn_wait_together():
    start = time.monotonic()
    messages, made, _, _ = box(slow).answer(calls(*[("slow", {"word": word}) for word in "abcdef"]))
    assert time.monotonic() - start < 0.8  # one after the other they take 1.2 s
    assert [message["content"] for message in messages] == list("abcdef")
    assert all(call.seconds >= 0.2 for call in made)


@pytest.mark.parametrize(("function", "arguments"), [(sleepy, {}), (slow, {"word": "a"})])
def test_a_call_that_takes_too_long_is_an_observation(function, arguments):
    ((message,), (call,), _, _) = box(function, seconds=0.05).answer(calls((function.__name__, arguments)))
    assert call.end == "timeout"
    assert message["content"] == "error: the call took longer than 0.05 s"


def test_sample_arguments_are_taken_by_the_tool():
    tool = make_tool(search)
    arguments = sample_arguments(tool.schema, "red lists")
    assert arguments == {"query": "red lists"}
    assert box(search).answer(calls(("search", arguments)))[1][0].end == "ok"


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"a", 1j])
def test_arguments_that_json_has_not_are_recorded_as_text(value):
    (_, (call,), _, _) = box(search).answer(calls(("search", {"query": value})))
    assert call.arguments == {"query": repr(value)}
