"""Execute a candidate and say what its calls returned; the last thing that runs before foreign code does.

Lines of JSON on the pipe: ["ready"], then ["compiled"], then per call ["value", plain value] or ["raised", type, text],
or instead of what is left ["failed", "syntax" | "exception" | "entry", type, text]. From the candidate's first
statement on nothing here can be trusted, and nobody does: who reads the pipe takes the lines as claims about values.
"""

from __future__ import annotations

import json
import os
import types
import warnings
from typing import Any

from steadyrl.sandbox import values

READY = b'["ready"]\n'
_TEXT_SHOWN = 200


def run(job: bytes, pipe: int, builtins: types.ModuleType) -> None:
    """Compile, execute, call.

    Args:
        job: JSON with ``code``, ``entry`` and ``calls``, a list of encoded argument lists.
        pipe: Where the lines go.
        builtins: The module that the candidate sees.
    """
    asked = json.loads(job)
    warnings.simplefilter("ignore")
    try:
        code = compile(asked["code"], "<candidate>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return _say(pipe, ["failed", "syntax", type(error).__name__, _text(error)])
    _say(pipe, ["compiled"])
    module = types.ModuleType("candidate")
    module.__dict__["__builtins__"] = builtins
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are answers like any other
        return _say(pipe, ["failed", "exception", type(error).__name__, _text(error)])
    function = module.__dict__.get(asked["entry"])
    if not callable(function):
        return _say(pipe, ["failed", "entry", "NameError", f"there is no function '{asked['entry']}'"])
    for arguments in asked["calls"]:
        _say(pipe, _called(function, arguments))
    return None


def _called(function: Any, arguments: Any) -> list[Any]:
    try:
        return ["value", values.encode(function(*values.decode(arguments)))]
    except BaseException as error:  # as above
        return ["raised", type(error).__name__, _text(error)]


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT_SHOWN]
    except BaseException:  # a candidate's own exception may raise while it is written
        return ""


def _say(pipe: int, line: list[Any]) -> None:
    try:
        data = json.dumps(line).encode() + b"\n"
    except (ValueError, RecursionError, MemoryError) as error:
        data = json.dumps(["raised", type(error).__name__, "while its value was written"]).encode() + b"\n"
    left = memoryview(data)
    while left:
        left = left[os.write(pipe, left) :]
