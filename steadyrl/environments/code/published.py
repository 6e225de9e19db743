"""The published files of HumanEval and MBPP, as they are downloaded.

Source: github.com/openai/human-eval, data/HumanEval.jsonl.gz; google-research, mbpp/mbpp.jsonl.
"""

from __future__ import annotations

import ast
from pathlib import Path

from steadyrl.core.errors import DataError
from steadyrl.environments.code.problems import (
    CodeProblem,
    cases_of,
    defines,
    from_asserts,
    is_python,
    name_field,
    own_problem,
    parse_tests,
    with_preamble,
)
from steadyrl.loop.tasks.jsonl import Line, checked_text, read_objects


def load_problems(path: Path) -> list[CodeProblem]:
    """Read a file in our own, HumanEval's or MBPP's format; the keys of the first line tell which.

    Raises:
        DataError: Naming the first defect by file and line.
    """
    first_line = next(read_objects(path), None)
    if first_line is None:
        raise DataError(f"{path} has no problem; expected one JSON object per line")
    keys = first_line.record.keys()
    if {"test", "entry_point"} <= keys:
        parse = _human_eval
    elif "test_list" in keys:
        parse = _mbpp
    elif "tests" in keys:
        parse = own_problem
    else:
        raise DataError(
            f"{first_line}: has {', '.join(keys) or 'no key'}; expected 'tests' (our format), 'test' and "
            "'entry_point' (HumanEval), or 'test_list' (MBPP)"
        )
    problems: list[CodeProblem] = []
    lines: dict[str, int] = {}
    for line in read_objects(path):
        problem = parse(line)
        earlier_number = lines.setdefault(problem.id, line.number)
        if earlier_number != line.number:
            raise DataError(
                f"{line}: the id '{problem.id}' is there twice, first in line {earlier_number}; remove one of the lines"
            )
        problems.append(problem)
    return problems


def _human_eval(line: Line) -> CodeProblem:
    prompt, test = (line.filled(key) for key in ("prompt", "test"))
    entry_point = name_field(line, "entry_point")
    if not defines(prompt, entry_point):
        raise DataError(
            f"{line}: 'prompt' does not define the function '{entry_point}' that 'entry_point' names; "
            "download the file again"
        )
    body = parse_tests(test, line).body
    check = next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == "check" and n.args.args), None)
    if check is None:
        raise DataError(f"{line}: 'test' has no function check(candidate), as HumanEval's tests do")
    cases = cases_of(check.body, check.args.args[0].arg)
    problem = CodeProblem(
        id=line.filled("task_id"),
        prompt=prompt,
        entry_point=entry_point,
        starter_code=prompt,
        cases=cases or (),
        script="" if cases else f"{test}\ncheck(candidate)\n",
        canonical_solution=line.text("canonical_solution") if "canonical_solution" in line.record else None,
    )
    return with_preamble(problem, line)


def _mbpp(line: Line) -> CodeProblem:
    text = line.filled("text" if "text" in line.record else "prompt")
    tests = line.record.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise DataError(f"{line}: 'test_list' is {tests!r}; expected a list of asserts as text")
    if "task_id" not in line.record:
        raise DataError(f"{line}: 'task_id' is missing; download the file again")
    code = line.text("code")
    setup = _setup(line)
    example, entry_point = _first_call(tests, code, line)
    cases, script = from_asserts(tests, entry_point, line, setup)
    problem = CodeProblem(
        id=f"MBPP/{line.record['task_id']}",
        prompt=f'"""\n{text}\n{example}\n"""\n',
        entry_point=entry_point,
        cases=cases,
        script=script,
        canonical_solution=code.replace("\r\n", "\n"),
    )
    return with_preamble(problem, line)


def _setup(line: Line) -> str:
    """Return what runs before the tests. Either key may be missing or null."""
    code, imports = line.record.get("test_setup_code"), line.record.get("test_imports")
    if imports is not None and not (isinstance(imports, list) and all(isinstance(text, str) for text in imports)):
        raise DataError(
            f"{line}: 'test_imports' is {imports!r:.200}; expected a list of lines as text, as in [\"import math\"]"
        )
    return "\n".join(["" if code is None else checked_text(code, f"{line}: 'test_setup_code'"), *(imports or [])])


def _first_call(tests: list[str], code: str, line: Line) -> tuple[str, str]:
    """Return the first test that calls a function which the reference solution defines, and that function's name."""
    if is_python(code):
        defined = {n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)}
        for test in filter(is_python, tests):
            for node in ast.walk(ast.parse(test)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                    return test, node.func.id
    raise DataError(f"{line}: no test calls a function that 'code' defines: {tests[0][:200]!r}")
