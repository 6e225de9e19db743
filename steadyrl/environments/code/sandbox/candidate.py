"""Execute a candidate and say what its steps gave; the last thing that runs before foreign code does.

A job is the length of what follows, a line of JSON with ``code`` and ``entry``, and a line of JSON with the steps:
["call", arguments, named] calls the entry point, and "use" instead of "call" asks for the arguments too if the call
changes them; ["global", name], ["apply", n, arguments, named], ["get", n, name] and ["set", n, name, value] are about
other objects, where n is the number of the step whose value is meant. Arguments and values are those of ``values``.

The answer is lines of JSON on a pipe: ["compiled"], then per step ["value", plain value], ["value", plain value,
changed arguments] or ["raised", type, text], or instead of what is left ["failed", "syntax" | "exception" | "entry",
type, text]. From the candidate's first statement on nothing here can be trusted, and nobody does: whoever reads the
pipe takes the lines as claims about values.
"""

from __future__ import annotations

import json
import os
import struct
import types
import warnings
from typing import Any

from steadyrl.environments.code.sandbox import values

LENGTH = struct.Struct("=Q")
_TEXT_SHOWN = 200


def run(job: int, pipe: int, builtins: types.ModuleType) -> None:
    """Read the job, compile, execute, take the steps.

    Args:
        job: Descriptor that the job is read from.
        pipe: Descriptor that the lines are written to.
        builtins: The module that the candidate sees.
    """
    head, steps = _read(job).split(b"\n", 1)
    os.close(job)
    request = json.loads(head)
    warnings.simplefilter("ignore")
    try:
        code = compile(request["code"], "<candidate>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return _say(pipe, ["failed", "syntax", type(error).__name__, _text(error)])
    _say(pipe, ["compiled"])
    module = types.ModuleType("candidate")
    module.__dict__["__builtins__"] = builtins
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are answers like any other
        return _say(pipe, ["failed", "exception", type(error).__name__, _text(error)])
    function = module.__dict__.get(request["entry"])
    if not callable(function):
        return _say(pipe, ["failed", "entry", "NameError", f"there is no function '{request['entry']}'"])
    results: list[Any] = []
    for step in json.loads(steps):
        _say(pipe, _answer(step, function, module.__dict__, results))
    return None


def _read(job: int) -> bytes:
    data, size = bytearray(), LENGTH.size
    while len(data) < size:
        chunk = os.read(job, size - len(data))
        if not chunk:  # the other end is gone, and nobody waits for an answer
            os._exit(0)
        data += chunk
        if len(data) == LENGTH.size:
            size = LENGTH.unpack(data)[0]
    return bytes(data[LENGTH.size :])


def _answer(step: Any, function: Any, names: dict[str, Any], results: list[Any]) -> list[Any]:
    results.append(None)
    used: list[Any] = []
    try:
        results[-1] = _take(step, function, names, results, used)
        line = ["value", values.encode(results[-1])]
        if step[0] == "use" and (changed := values.encode(used)) != step[1]:
            line.append(changed)
        return line
    except BaseException as error:  # as above
        return ["raised", type(error).__name__, _text(error)]


def _take(step: Any, function: Any, names: dict[str, Any], results: list[Any], used: list[Any]) -> Any:
    match step:
        case ["call" | "use", arguments, named]:
            used += values.decode(arguments, results)
            return function(*used, **values.decode(named, results))
        case ["apply", int(number), arguments, named]:
            return results[number](*values.decode(arguments, results), **values.decode(named, results))
        case ["global", str(name)]:
            return names[name]
        case ["get", int(number), str(name)]:
            return getattr(results[number], name)
        case ["set", int(number), str(name), value]:
            return setattr(results[number], name, values.decode(value, results))
    raise AssertionError(f"no step of a known form: {step!r}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT_SHOWN]
    except BaseException:  # a candidate's own exception may raise while it is written
        return ""


def _say(pipe: int, line: list[Any]) -> None:
    try:
        data = values.line(line)
    except (ValueError, RecursionError, MemoryError) as error:
        data = values.line(["raised", type(error).__name__, "while its value was written"])
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(pipe, unwritten) :]
