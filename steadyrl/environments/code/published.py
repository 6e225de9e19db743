"""The published files of HumanEval and MBPP, as they are downloaded.

Source: github.com/openai/human-eval, data/HumanEval.jsonl.gz; google-research, mbpp/mbpp.jsonl.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    with_given,
)
from steadyrl.loop.tasks.jsonl import checked_text, filled_field, read_objects, text_field


def load_problems(path: Path) -> list[CodeProblem]:
    """Read a file in our own, HumanEval's or MBPP's format; the keys of the first line tell which.

    Raises:
        DataError: Naming the first defect by file and line.
    """
    first = next(read_objects(path), None)
    if first is None:
        raise DataError(f"{path} has no problem; expected one JSON object per line")
    keys = first[1].keys()
    if {"test", "entry_point"} <= keys:
        read = _human_eval
    elif "test_list" in keys:
        read = _mbpp
    elif "tests" in keys:
        read = own_problem
    else:
        raise DataError(
            f"{path}, line {first[0]}: has {', '.join(keys) or 'no key'}; expected 'tests' (our format), 'test' and "
            "'entry_point' (HumanEval), or 'test_list' (MBPP)"
        )
    problems: list[CodeProblem] = []
    lines: dict[str, int] = {}
    for number, record in read_objects(path):
        problem = read(record, path, number)
        before = lines.setdefault(problem.id, number)
        if before != number:
            raise DataError(
                f"{path}, line {number}: the id '{problem.id}' is there twice, first in line {before}; remove one of "
                "the lines"
            )
        problems.append(problem)
    return problems


def _human_eval(record: Mapping[str, Any], path: Path, number: int) -> CodeProblem:
    prompt, test = (filled_field(record, key, path, number) for key in ("prompt", "test"))
    entry_point = name_field(record, "entry_point", path, number)
    if not defines(prompt, entry_point):
        raise DataError(
            f"{path}, line {number}: 'prompt' does not define the function '{entry_point}' that 'entry_point' names; "
            "download the file again"
        )
    body = parse_tests(test, path, number).body
    check = next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == "check" and n.args.args), None)
    if check is None:
        raise DataError(f"{path}, line {number}: 'test' has no function check(candidate), as HumanEval's tests do")
    cases = cases_of(check.body, check.args.args[0].arg)
    problem = CodeProblem(
        id=filled_field(record, "task_id", path, number),
        prompt=prompt,
        entry_point=entry_point,
        starter_code=prompt,
        cases=cases or (),
        script="" if cases else f"{test}\ncheck(candidate)\n",
        canonical_solution=text_field(record, "canonical_solution", path, number)
        if "canonical_solution" in record
        else None,
    )
    return with_given(problem, path, number)


def _mbpp(record: Mapping[str, Any], path: Path, number: int) -> CodeProblem:
    text = filled_field(record, "text" if "text" in record else "prompt", path, number)
    tests = record.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise DataError(f"{path}, line {number}: 'test_list' is {tests!r}; expected a list of asserts as text")
    if "task_id" not in record:
        raise DataError(f"{path}, line {number}: 'task_id' is missing; download the file again")
    code = text_field(record, "code", path, number)
    setup = _setup(record, path, number)
    shown, entry_point = _first_call(tests, code, path, number)
    cases, script = from_asserts(tests, entry_point, path, number, setup)
    problem = CodeProblem(
        id=f"MBPP/{record['task_id']}",
        prompt=f'"""\n{text}\n{shown}\n"""\n',
        entry_point=entry_point,
        cases=cases,
        script=script,
        canonical_solution=code.replace("\r\n", "\n"),
    )
    return with_given(problem, path, number)


def _setup(record: Mapping[str, Any], path: Path, number: int) -> str:
    """Return what runs before the tests. Either key may be missing or null."""
    code, imports = record.get("test_setup_code"), record.get("test_imports")
    place = f"{path}, line {number}: 'test_setup_code'"
    if imports is not None and not (isinstance(imports, list) and all(isinstance(line, str) for line in imports)):
        raise DataError(
            f"{path}, line {number}: 'test_imports' is {imports!r:.200}; expected a list of lines as text, as in "
            '["import math"]'
        )
    return "\n".join(["" if code is None else checked_text(code, place), *(imports or [])])


def _first_call(tests: list[str], code: str, path: Path, number: int) -> tuple[str, str]:
    """Return the first test that calls a function which the reference solution defines, and that function's name."""
    if is_python(code):
        defined = {n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)}
        for test in filter(is_python, tests):
            for node in ast.walk(ast.parse(test)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                    return test, node.func.id
    raise DataError(f"{path}, line {number}: no test calls a function that 'code' defines: {tests[0][:200]!r}")
