"""Scorers that evaluate an answer as Python, and which answers they may be given.

Some of reasoning-gym's scorers call ``eval`` or sympy's ``parse_expr``, which evaluates too, on what a policy wrote. A
policy that writes ``__import__('os').system(...)`` would be obeyed, and ``9**9**9**9`` would never end.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

_EVALUATE = ("eval", "exec", "parse_expr", "sympify")
_LONGEST = 400  # characters
# Numbers, signs, brackets, quotes, single letters, rows of the letters A to E, and functions of one number. None of
# these names is a function that acts; `N` and `S` of sympy are.
_WORDS = r"(?:a?(?:sin|cos|tan)h?|exp|log|sqrt|Integral|[A-E]+|[A-EQX-Z_a-z])(?!\w)"
_POWER = r"\*\*\s*(?:-?\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?!\d|\s*\*\*)"
_EXPRESSION = re.compile(rf"(?:\d{{1,9}}(?:\.\d{{0,9}})?|{_WORDS}|{_POWER}|\*(?!\*)|[-+/(),\[\]\s'\"|])*")
_POWER_OF_BRACKETS = re.compile(r"\)\s*\*\*")
_REPEATED = re.compile(r"['\"\[].*\*|\*.*['\"\[]", re.DOTALL)  # 'a' * 999999999


def evaluates(dataset: Any) -> bool:
    """Return whether a data set's score_answer evaluates the answer."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(type(dataset).score_answer)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    evaluated = [a for call in calls if ast.unparse(call.func).rpartition(".")[2] in _EVALUATE for a in call.args]
    names = [node for argument in evaluated for node in ast.walk(argument) if isinstance(node, ast.Name)]
    return any(name.id == "answer" for name in names)


def is_expression(answer: str) -> bool:
    """Return whether evaluating an answer can do nothing but compute, and not for long."""
    return (
        len(answer) <= _LONGEST
        and _EXPRESSION.fullmatch(answer) is not None
        and len(_POWER_OF_BRACKETS.findall(answer)) <= 2
        and not _REPEATED.search(answer)
    )
