"""Programming problems: what is asked, how an answer becomes a program, and the tests that only the judge sees."""

from __future__ import annotations

import ast
import difflib
import keyword
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from steadyrl.core.errors import DataError
from steadyrl.environments.code.names import names_defined, names_lacking
from steadyrl.environments.code.replay import marked
from steadyrl.environments.code.sandbox import values
from steadyrl.loop.tasks.jsonl import Line

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:^```|\Z)", re.MULTILINE | re.DOTALL)
# Where a continued function ends: what HumanEval's authors stop at, since a model may go on with a next function.
_AFTER_FUNCTION = re.compile(r"\n(?=class |def |#|if |print|@|```)")
_INDENTED = re.compile(r"\n*(?:  |\t)")  # a single space at the front is a tokenizer's
# What reading text as Python may raise: it is none, holds what no source may, or is nested beyond reading.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_OPTIONAL = ("starter_code", "canonical_solution", "wrong_solution")
_KEYS = ("id", "prompt", "entry_point", "tests", *_OPTIONAL)


@dataclass(frozen=True)
class Case:
    """One call and the value that it should give."""

    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class CodeProblem:
    """A problem with its tests."""

    id: str
    """Unique."""
    prompt: str
    """What is put in."""
    entry_point: str
    """The function that is called."""
    starter_code: str = ""
    """What an answer continues; "" where an answer is a whole program."""
    cases: tuple[Case, ...] = ()
    """Tests as values; compared outside the jail."""
    script: str = ""
    """Tests as code with ``assert``, for what values cannot say; "" where ``cases`` say it all."""
    preamble: str = ""
    """Code that the script builds on, of the starter or the canonical solution."""
    classes: tuple[str, ...] = ()
    """Names in the script that mean the answer's own classes."""
    canonical_solution: str | None = None
    """An answer known to be right, or None."""
    wrong_solution: str | None = None
    """An answer known to be wrong, or None."""


def program(answer: str, problem: CodeProblem) -> str:
    """Return the program that an answer stands for.

    Of a text with fenced blocks the first one counts that defines the function, else the last. What defines the
    function is a whole program, put behind the starter code for its imports; anything else continues the starter code,
    up to the first line that cannot belong to the function any more. Space around the answer is no part of it, but for
    the indentation of a body that begins on a line of its own.
    """
    text = answer.strip()
    blocks = _FENCE.findall(text)
    name = problem.entry_point
    if blocks:
        answer = next((block for block in blocks if defines(block, name)), blocks[-1])
    elif defines(text, name) or not (problem.starter_code.endswith("\n") and _INDENTED.match(answer)):
        answer = text
    if defines(answer, name):
        starter = problem.starter_code
        return f"{starter}\n{answer}" if starter and is_python(starter) else answer
    if not problem.starter_code:
        return answer
    return _continued(problem.starter_code, _AFTER_FUNCTION.split(answer, maxsplit=1)[0])


def defines(code: str, name: str) -> bool:
    """Return whether code has a function of that name, at the margin."""
    return re.search(rf"^(?:async )?def {re.escape(name)}\b", code, re.MULTILINE) is not None


def _continued(starter: str, continuation: str) -> str:
    """Continue a starter, giving back the space or the indentation that a stripped answer has lost at its front."""
    if not continuation or continuation[0].isspace() or not starter:
        return starter + continuation
    if not starter.endswith("\n"):
        return f"{starter} {continuation}" if not starter[-1].isspace() else starter + continuation
    last = starter.rstrip().rpartition("\n")[2]
    indentation = last[: len(last) - len(last.lstrip())]
    return f"{starter}{indentation}{'    ' if last.endswith(':') else ''}{continuation}"


def is_python(code: str) -> bool:
    """Return whether a text of a problem's author is Python; never to be asked of a model's text."""
    try:
        ast.parse(code)
    except _UNREADABLE:
        return False
    return True


def own_problem(line: Line) -> CodeProblem:
    """Read a line of our own format: see docs/tasks/code.md.

    Raises:
        DataError: Naming the first defect by file and line.
    """
    _refuse_misspelt(line)
    prompt = line.filled("prompt")
    entry_point = name_field(line, "entry_point")
    tests = line.record.get("tests")
    if not isinstance(tests, list) or not tests:
        raise DataError(f"{line}: 'tests' is {tests!r}; expected a list of [arguments, expected] or asserts")
    if all(isinstance(test, str) for test in tests):
        cases, script = from_asserts(tests, entry_point, line)
    else:
        cases, script = tuple(_case(test, line) for test in tests), ""
    optional = {key: line.text(key) if key in line.record else None for key in _OPTIONAL}
    problem = CodeProblem(
        id=line.filled("id"),
        prompt=prompt,
        entry_point=entry_point,
        starter_code=optional["starter_code"] or "",
        cases=cases,
        script=script,
        canonical_solution=optional["canonical_solution"],
        wrong_solution=optional["wrong_solution"],
    )
    return with_preamble(problem, line)


def with_preamble(problem: CodeProblem, line: Line) -> CodeProblem:
    """Return a problem with the code that its test code builds on and does not define itself.

    Raises:
        DataError: Test code uses a name that nothing defines.
    """
    if not problem.script:
        return problem
    lacking = names_lacking(problem.script) - {"candidate", problem.entry_point}
    if not lacking:
        return problem
    solution = program(problem.canonical_solution, problem) if problem.canonical_solution is not None else ""
    for source in (problem.starter_code, solution):
        if is_python(source) and lacking <= (names := names_defined(source)).keys():
            return replace(problem, preamble=source, classes=tuple(sorted(name for name in lacking if names[name])))
    raise DataError(
        f"{line}: the tests use '{min(lacking)}', which neither they nor the solution define; define or "
        "import it in the tests, or remove the line"
    )


def _refuse_misspelt(line: Line) -> None:
    # Only keys that look like one the line lacks; others, such as a level, are the author's own.
    lacking = [key for key in _KEYS if key not in line.record]
    for key in line.record:
        if key not in _KEYS and (close := difflib.get_close_matches(key, lacking)):
            meant = " or ".join(f"'{name}'" for name in close)
            raise DataError(f"{line}: unknown key '{key}'; did you mean {meant}?")


def name_field(line: Line, key: str) -> str:
    """Return a field that names a function.

    Raises:
        DataError: It is missing, or no name that a function can have.
    """
    name = line.filled(key)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise DataError(f"{line}: '{key}' is {name!r}; expected the name of a function, such as 'add'")
    return name


def _case(test: Any, line: Line) -> Case:
    if not (isinstance(test, list) and len(test) == 2 and isinstance(test[0], list)):
        raise DataError(
            f"{line}: the test {test!r} is not [[arguments], expected]; or give all tests as text, 'assert f(1) == 2'"
        )
    try:
        values.encode(test)
    except ValueError as error:
        raise DataError(f"{line}: a test cannot be used ({error}); change or remove the line") from error
    return Case(tuple(test[0]), test[1])


def from_asserts(tests: Sequence[str], entry_point: str, line: Line, setup: str = "") -> tuple[tuple[Case, ...], str]:
    """Return texts of ``assert`` as cases if each of them can be one, else as a script.

    Raises:
        DataError: They are no Python, or there is no assert.
    """
    text = "\n".join(tests)
    cases = cases_of(parse_tests(text, line).body, entry_point)
    if cases is not None and not setup.strip():
        return cases, ""
    script = f"{setup}\n{text}"
    parse_tests(script, line)
    return (), script


def parse_tests(text: str, line: Line) -> ast.Module:
    """Return the tree of test code that can be run, and that tests something.

    Raises:
        DataError: It is no Python, or there is no assert.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # a test's style is its author's
            tree, asserts = marked(text)
            compile(tree, "<tests>", "exec", dont_inherit=True)
            plain = ast.parse(text)
    except _UNREADABLE as error:
        raise DataError(
            f"{line}: the tests are not valid Python ({type(error).__name__}): {text[:200]!r}; change "
            "or remove the line"
        ) from error
    if not asserts:
        raise DataError(
            f"{line}: the tests have no assert, so that nothing could fail them: {text[:200]!r}; add "
            "one, as in 'assert f(1) == 2', or remove the line"
        )
    return plain


def cases_of(body: Sequence[ast.stmt], function: str) -> tuple[Case, ...] | None:
    """Return statements ``assert function(literals) == literal`` as cases, None if one of them is anything else.

    ``assert True`` and the like, which say nothing, are passed over.
    """
    cases = []
    for statement in body:
        if isinstance(statement, ast.Pass):
            continue
        if not isinstance(statement, ast.Assert):
            return None
        if isinstance(statement.test, ast.Constant) and statement.test.value:
            continue
        case = _as_case(statement.test, function)
        if case is None:
            return None
        cases.append(case)
    return tuple(cases) or None


def _as_case(test: ast.expr, function: str) -> Case | None:
    match test:
        case ast.Compare(
            left=ast.Call(func=ast.Name(id=name), args=args, keywords=[]), ops=[ast.Eq()], comparators=[right]
        ):
            if name != function:
                return None
        case _:
            return None
    try:
        arguments, expected = tuple(ast.literal_eval(arg) for arg in args), ast.literal_eval(right)
        return Case(arguments, values.decode(values.encode(expected)))
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
