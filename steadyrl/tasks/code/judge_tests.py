"""How many tests a program passes, with the expected values kept out of the program's reach."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from steadyrl.sandbox import values
from steadyrl.sandbox.outcome import Outcome, Raised, Returned
from steadyrl.sandbox.pool import Sandbox
from steadyrl.tasks.code.problems import CodeProblem

# A call whose arguments follow from an earlier result is only known after that result: one more pass each time.
_PASSES = 6
_SHOWN = 300  # characters of a reason


@dataclass(frozen=True)
class Verdict:
    """What the tests say of a program.

    Attributes:
        passed, total: Tests; equal where every one holds wholly. Of test code an assert that is reached more than once
            counts by the share of its rounds, so that ``passed`` need not be whole.
        outcome: How the program's last run ended.
        note: Why it does not pass; "" where it does.
        refused: What the test code asked for that cannot be judged from outside the program; "" for nothing.
    """

    passed: float
    total: int
    outcome: Outcome
    note: str
    refused: str = ""


def judge(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    """Run a program's function on the tests of a problem.

    Raises:
        JailError: The machine failed; nothing is known of the program.
    """
    verdict = _by_script(sandbox, code, problem) if problem.script else _by_cases(sandbox, code, problem)
    results = verdict.outcome.results
    if 0 < verdict.passed < verdict.total and all(isinstance(r, Returned) and r.wire is None for r in results):
        # An empty body meets each "assert not f(x)" and each expected None; that is no part of a solution.
        return replace(verdict, passed=0, note="it returns None whatever it is given")
    return verdict


def _by_cases(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    outcome = sandbox.run(code, problem.entry_point, [case.arguments for case in problem.cases])
    passed, note = 0, outcome.note
    for case, result in zip(problem.cases, outcome.results, strict=False):  # an unfinished run has fewer results
        if isinstance(result, Returned) and values.same(result.wire, case.expected):
            passed += 1
        else:
            note = note or _difference(problem.entry_point, case.arguments, result, case.expected)
    return Verdict(passed, len(problem.cases), outcome, note)


def _difference(name: str, arguments: tuple[Any, ...], result: Returned | Raised, expected: Any) -> str:
    call = f"{name}({', '.join(values.shown(values.encode(argument)) for argument in arguments)})"
    if isinstance(result, Raised):
        return f"{call} raised {result.type_name}: {result.text}"
    return f"{call} is {values.shown(result.wire)}, expected {values.shown(values.encode(expected))}"


def _by_script(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    """Alternate between the tests, which say what to do, and the program, until the steps stay the same."""
    script = [problem.script, problem.given, problem.entry_point, list(problem.classes)]
    steps, results = "[]", "[]"
    outcome: Outcome | None = None
    for _ in range(_PASSES):
        tests = sandbox.run(_replay_source(), "replay", [[*script, steps, results]])
        answer = tests.results[0] if tests.results else None
        if not isinstance(answer, Returned):
            said = answer.text if answer else tests.note
            return Verdict(0, _asserts(problem), outcome or tests, f"the tests did not come to an end: {said}")
        before = steps
        steps, count, counts, reached_end, refused = answer.value
        if outcome is not None and steps == before:
            return replace(_by_counts(counts, reached_end, outcome), refused=refused[:_SHOWN])
        outcome = sandbox.run_steps(code, problem.entry_point, steps, count)
        results = json.dumps([_told(result) for result in outcome.results])
    assert outcome is not None, "there is at least one pass"
    return Verdict(0, _asserts(problem), outcome, "the calls of the tests depend on too many earlier results")


def _by_counts(counts: Sequence[Sequence[int]], reached_end: bool, outcome: Outcome) -> Verdict:
    """Count every assert statement once, by the share of its rounds that hold; an end not reached is one more."""
    # The sum is rounded once, so that it is whole only where every share is 1.
    passed = math.fsum(held / made for held, made in counts if made)
    failing = sum(held < made or not made for held, made in counts)
    note = outcome.note or (f"{failing} of {len(counts)} asserts do not hold" if failing else "")
    if not reached_end:
        note = note or "the tests do not come to their end"
    return Verdict(passed, len(counts) + (not reached_end), outcome, note)


def _asserts(problem: CodeProblem) -> int:
    return sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(problem.script)))


def _told(result: Returned | Raised) -> list[Any]:
    if isinstance(result, Raised):
        return ["raised", result.type_name, result.text]
    return ["value", result.wire, result.changed or ["list"]]


@lru_cache(maxsize=1)
def _replay_source() -> str:
    return Path(__file__).with_name("replay.py").read_text(encoding="utf-8")
