"""One-expression problems from a seed: small enough for a model of two million parameters to learn.

    # add 3 to x
    def f(x):
        return

is continued by `` x + 3``. A problem has one or two steps, over whole numbers, words or lists. Tests are computed from
the expression; arguments are chosen so that common wrong expressions differ on at least one of them.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from steadyrl.environments.code.problems import Case, CodeProblem

_NUMBERS = (7, -3, 12, 0, 25, -10, 4)
_WORDS = ("python", "abba", "Level", "x y z", "tree", "Hello", "noon")
_LISTS = ([4, 1, 3], [2, 2, 9, -1], [5, 7], [-4, 0, 8, 8, 1], [10, 3, 6])
# What is asked of the steps so far, and the expression for it; {} is the expression so far, n a number.
_NUMBER_STEPS = (
    ("add {n}", "{} + {n}"),
    ("subtract {n}", "{} - {n}"),
    ("multiply by {n}", "{} * {n}"),
    ("divide by {n} and round down", "{} // {n}"),
    ("take the remainder by {n}", "{} % {n}"),
    ("negate", "-{}"),
    ("square", "{} ** 2"),
    ("take the absolute value", "abs({})"),
    ("take the larger of it and {n}", "max({}, {n})"),
    ("take the smaller of it and {n}", "min({}, {n})"),
    ("tell whether it is greater than {n}", "{} > {n}"),
    ("tell whether it equals {n}", "{} == {n}"),
)
_WORD_STEPS = (
    ("reverse", "{}[::-1]"),
    ("make upper case", "{}.upper()"),
    ("make lower case", "{}.lower()"),
    ("repeat {n} times", "{} * {n}"),
    ("take the first {n} characters", "{}[:{n}]"),
    ("take the last {n} characters", "{}[-{n}:]"),
    ("drop the first {n} characters", "{}[{n}:]"),
    ("count the characters", "len({})"),
    ("count the letter e", "{}.count('e')"),
    ("list the characters in order", "sorted({})"),
)
_LIST_STEPS = (
    ("sort", "sorted({})"),
    ("reverse", "{}[::-1]"),
    ("take the first {n}", "{}[:{n}]"),
    ("take the last {n}", "{}[-{n}:]"),
    ("drop the first {n}", "{}[{n}:]"),
    ("append {n}", "{} + [{n}]"),
    ("sum", "sum({})"),
    ("count", "len({})"),
    ("find the largest", "max({}, default=0)"),
    ("find the smallest", "min({}, default=0)"),
    ("add {n} to each", "[a + {n} for a in {}]"),
    ("multiply each by {n}", "[a * {n} for a in {}]"),
    ("keep those greater than {n}", "[a for a in {} if a > {n}]"),
)
_KINDS: tuple[tuple[str, tuple[tuple[str, str], ...], tuple[object, ...], int], ...] = (
    ("x", _NUMBER_STEPS, _NUMBERS, 20),
    ("s", _WORD_STEPS, _WORDS, 4),
    ("xs", _LIST_STEPS, _LISTS, 4),
)
_ENDS = frozenset({"tell", "count", "list", "sum", "find"})  # first words of steps whose result is of another kind
_STEPS = {"one": (1,), "two": (2,), "mixed": (1, 1, 2)}  # of a problem, to be drawn from
_TRIES = 50  # draws per wanted problem before the supply counts as used up


def generated_problems(
    count: int, seed: int = 0, steps: Literal["one", "two", "mixed"] = "mixed", half: Literal["a", "b", "both"] = "both"
) -> list[CodeProblem]:
    """Return distinct problems; fewer than asked for where so many do not exist.

    Args:
        count: How many.
        seed: Another one gives others.
        steps: Of every problem; "mixed" has one step twice as often as two. There are some 200 problems of one step.
        half: Of all problems that there are, whatever the seed: none is in both "a" and "b".
    """
    rng = random.Random(f"one-expression problems {seed}")
    problems: list[CodeProblem] = []
    seen_texts: set[str] = set()
    for _ in range(count * _TRIES):
        if len(problems) == count:
            break
        draft = _draw(rng, _STEPS[steps])
        if draft is None or draft.text in seen_texts:
            continue
        seen_texts.add(draft.text)
        half_of_id = "ab"[hashlib.sha256(draft.id.encode()).digest()[0] % 2]
        if half in ("both", half_of_id) and (problem := _problem(draft)) is not None:
            problems.append(problem)
    return problems


class _Draft(NamedTuple):
    """What a problem is made of: the name of its argument, what is asked of it, and the expression for that."""

    name: str
    text: str
    expression: str
    arguments: tuple[object, ...]

    @property
    def id(self) -> str:
        return f"one-expression/{self.text}"


def _draw(rng: random.Random, lengths: tuple[int, ...]) -> _Draft | None:
    """Draw the steps of one problem; None where they do not fit together."""
    name, steps, arguments, largest_n = rng.choice(_KINDS)
    instructions: list[str] = []
    expression = name
    for i in range(rng.choice(lengths)):
        instruction, template = rng.choice(steps)
        # None may follow a step whose result is of another kind, nor one without a number itself: to reverse twice is
        # to do nothing.
        if i and (instructions[-1].split()[0] in _ENDS or instructions[-1] == instruction):
            return None
        n = str(rng.randint(2, largest_n))
        instructions.append(instruction.replace("{n}", n))
        # Else "add 3, then square" would become x + 3 ** 2.
        outermost = ast.parse(expression, mode="eval").body
        binds_weakly = isinstance(outermost, ast.BinOp | ast.UnaryOp | ast.Compare)
        inner = f"({expression})" if binds_weakly and template.startswith(("{}", "-")) else expression
        expression = template.replace("{n}", n).replace("{}", inner)
    return _Draft(name, f"{', then '.join(instructions)}: {name}", expression, arguments)


def _problem(draft: _Draft) -> CodeProblem | None:
    """Return the problem with its tests, or None where it says nothing."""
    name, text, expression, arguments = draft
    function = _function(name, expression)
    cases = tuple(Case((argument,), function(argument)) for argument in arguments)
    if all(repr(case.expected) == repr(case.arguments[0]) for case in cases):
        return None  # returning the argument would do
    wrong = next((w for w in (name, f"{name} * 2", f"{name}[1:]") if _differs(name, w, cases)), None)
    starter = f"# {text}\ndef f({name}):\n    return"
    return CodeProblem(
        id=draft.id,
        prompt=starter,
        entry_point="f",
        starter_code=starter,
        cases=cases,
        canonical_solution=f" {expression}",
        wrong_solution=f" {wrong}",
    )


def _function(name: str, expression: str) -> Callable[[object], object]:
    # The text is made from the tables above, never from anything that is read.
    function: Callable[[object], object] = eval(f"lambda {name}: {expression}", {})
    return function


def _differs(name: str, expression: str, cases: tuple[Case, ...]) -> bool:
    try:
        function = _function(name, expression)
        return any(function(case.arguments[0]) != case.expected for case in cases)
    except TypeError:
        return True
