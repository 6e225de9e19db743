"""Runs inside a jail: test code with ``assert``, without the candidate.

Every ``assert`` statement is one test, however often it is reached: were each round of a loop a test of its own, a
candidate could make many that hold, by returning much to loop over, and hide those that fail among them.

The candidate is another process. What its calls returned comes in as plain values, in the order of the calls; the
test code is run against them. So no expected value ever meets the candidate, and no object of the candidate ever takes
part in a comparison. Its source is read as text and sent into the jail; nothing but the standard library.
"""

from __future__ import annotations

import ast
import builtins
import copy
import random
from collections.abc import Callable
from typing import Any


class Marks(ast.NodeTransformer):
    """Turns every assert into a mark with its number, so that one that fails does not hide the others."""

    def __init__(self) -> None:
        self.asserts = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        """Return ``__mark__(number, lambda: test)``."""
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        number = ast.Constant(self.asserts)
        call = ast.Call(ast.Name("__mark__", ast.Load()), [number, ast.Lambda(empty, node.test)], [])
        self.asserts += 1
        return ast.copy_location(ast.Expr(call), node)


def marked(script: str) -> tuple[ast.Module, int]:
    """Return test code with a mark for every assert, and how many asserts there are.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: It is no Python, or nested beyond reading.
    """
    marks = Marks()
    tree: ast.Module = ast.fix_missing_locations(marks.visit(ast.parse(script)))
    return tree, marks.asserts


def replay(script: str, name: str, known: list[Any]) -> tuple[list[Any], list[list[int]], bool]:
    """Run test code against known results.

    Args:
        script: Test code; calls the function as ``candidate`` or by its name.
        name: The function's name.
        known: (arguments, "value", value) or (arguments, "raised", type name) per call, in order.

    Returns:
        The arguments of all calls that the tests made; for every assert statement, in the order of the source, how
        often it held and how often it was reached; whether the end was reached.
    """
    calls: list[Any] = []
    lost: list[int] = []

    def candidate(*arguments: Any) -> Any:
        index = len(calls)
        calls.append(copy.deepcopy(list(arguments)))
        if lost or index >= len(known) or known[index][0] != calls[index]:
            lost.append(index)  # from here on the results belong to other calls
            return None
        _, kind, value = known[index]
        if kind == "raised":
            error = getattr(builtins, value, Exception)
            raise error() if isinstance(error, type) and issubclass(error, Exception) else Exception(value)
        return copy.deepcopy(value)

    def mark(number: int, test: Callable[[], Any]) -> None:
        counts[number][1] += 1
        try:
            counts[number][0] += bool(test())
        except Exception:  # a test that raises is a test that fails
            return

    random.seed(0)
    tree, asserts = marked(script)
    counts = [[0, 0] for _ in range(asserts)]
    # The prompt may define the function too, with an empty body; the test code calls the candidate under both names.
    namespace = {"__name__": "tests", "candidate": candidate, "__mark__": mark}
    try:
        for statement in tree.body:
            exec(compile(ast.Module([statement], []), "<tests>", "exec"), namespace)
            namespace[name] = candidate
    except Exception:  # the tests were led astray by what the candidate returned
        return calls, counts, False
    return calls, counts, True
