"""Calls that are ordinary text: what is read as a call, what as a call gone wrong, and what is only text."""

import pytest

from steadyrl.backends.text_chat import FORMATS, TextChat
from steadyrl.backends.toy import CharTokenizer

ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}}}
FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find it.\nAll.",
        "parameters": {"properties": {"q": {"type": "string"}}},
    },
}


def hermes(body, close="</tool_call>"):
    return f"<tool_call>{body}{close}"


@pytest.mark.parametrize(
    ("form", "text", "content", "calls", "invalid"),
    [
        ("hermes", "hm " + hermes('{"name": "find", "arguments": {"q": "a"}}'), "hm", [("find", {"q": "a"})], []),
        ("hermes", hermes('\n{"name": "find"}\n') * 2, "", [("find", {})] * 2, []),
        ("hermes", hermes('{"name": "find", "argu'), "", [], ["Unterminated string"]),
        ("hermes", hermes('{"name": "find"}', ""), "", [], ["</tool_call> is missing"]),
        ("hermes", hermes("[1]"), "", [], ["expected an object with name and arguments"]),
        ("hermes", hermes('{"name": "find", "arguments": "a"}'), "", [], ["the arguments are no object"]),
        ("hermes", hermes("[" * 100_000), "", [], [""]),
        ("hermes", "no call", "no call", [], []),
        ("python", "find('red lists')", "", [("find", {"q": "red lists"})], []),
        ("python", "find(red lists)", "", [("find", {"q": "red lists"})], []),
        ("python", "find(red)", "", [("find", {"q": "red"})], []),
        ("python", "add(1, b=-2.5)\nso add(1, 2) is", "so add(1, 2) is", [("add", {"a": 1, "b": -2.5})], []),
        ("python", "add()\n find(a)", "", [("add", {}), ("find", {"q": "a"})], []),
        ("python", "add(1, 2, 3)", "", [], ["it has 3 arguments, expected at most 2"]),
        ("python", "add(1 2)", "", [], ["its arguments are no values of Python"]),
        ("python", "find('red'", "find('red'", [], ["is not closed by ')'"]),
        ("python", "other(1 2)", "", [("other", {})], []),  # which the tools answer as unknown
    ],
)  # fmt: skip
def test_what_is_read_as_a_call(form, text, content, calls, invalid):
    read = FORMATS[form].find(text, [ADD, FIND])
    assert (read.content, [(name, dict(arguments)) for name, arguments in read.calls]) == (content, calls)
    assert len(read.invalid) == len(invalid)
    assert all(part in error for (_, error), part in zip(read.invalid, invalid, strict=True))


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_call_that_is_written_is_read_again(form):
    arguments = {"q": 'it\'s "red"\nlists, é'}
    read = FORMATS[form].find(FORMATS[form].write("find", arguments), [ADD, FIND])
    assert read.calls == [("find", arguments)]


def test_tools_are_described_in_a_line_of_python():
    assert FORMATS["python"].describe([FIND]) == (
        "You may call functions, each call on a line of its own:\nfind(q: string)  Find it."
    )


def test_a_conversation_of_text_alone_is_what_the_tokenizer_makes_of_it():
    tokenizer = CharTokenizer()
    chat = TextChat(tokenizer)
    ids = tokenizer.encode_answer("add(1)", "")
    reply = chat.parse(ids[:0], ids, ["("])
    assert (reply.text, reply.message) == ("add", {"role": "assistant", "content": "add"})
    messages = [{"role": "user", "content": "no"}, {"role": "user", "content": "why"}]
    assert tokenizer.decode(chat.encode_between(ids[:0], ids, messages)) == "\nno\nwhy\n"
