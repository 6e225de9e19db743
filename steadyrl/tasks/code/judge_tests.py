"""How many tests a program passes, with the expected values kept out of the program's reach."""

from __future__ import annotations

import ast
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


@dataclass(frozen=True)
class Verdict:
    """What the tests say of a program.

    Attributes:
        passed, total: Tests; equal where every one holds wholly. Of test code an assert that is reached more than once
            counts by the share of its rounds, so that ``passed`` need not be whole.
        outcome: How the program's last run ended.
        note: Why it does not pass; "" where it does.
    """

    passed: float
    total: int
    outcome: Outcome
    note: str


def judge(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    """Run a program's function on the tests of a problem.

    Raises:
        JailError: The machine failed; nothing is known of the program.
    """
    verdict = _by_script(sandbox, code, problem) if problem.script else _by_cases(sandbox, code, problem)
    results = verdict.outcome.results
    if 0 < verdict.passed < verdict.total and all(isinstance(r, Returned) and r.value is None for r in results):
        # An empty body meets each "assert not f(x)" and each expected None; that is no part of a solution.
        return replace(verdict, passed=0, note="it returns None whatever it is given")
    return verdict


def _by_cases(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    outcome = sandbox.run(code, problem.entry_point, [case.arguments for case in problem.cases])
    passed, note = 0, outcome.note
    for case, result in zip(problem.cases, outcome.results, strict=False):  # an unfinished run has fewer results
        if isinstance(result, Returned) and values.same(result.value, case.expected):
            passed += 1
        else:
            note = note or _difference(problem.entry_point, case.arguments, result, case.expected)
    return Verdict(passed, len(problem.cases), outcome, note)


def _difference(name: str, arguments: tuple[Any, ...], result: Returned | Raised, expected: Any) -> str:
    call = f"{name}({', '.join(map(_short, arguments))})"
    if isinstance(result, Raised):
        return f"{call} raised {result.type_name}: {result.text}"
    return f"{call} is {_short(result.value)}, expected {_short(expected)}"


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # writing it in decimal may be refused
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _by_script(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    """Alternate between the tests, which say what to call, and the program, until the calls stay the same."""
    known: list[tuple[Any, str, Any]] = []
    outcome: Outcome | None = None
    for _ in range(_PASSES):
        tests = sandbox.run(_replay_source(), "replay", [[problem.script, problem.entry_point, known]])
        answer = tests.results[0] if tests.results else None
        if not isinstance(answer, Returned):
            said = f"the tests did not come to an end: {answer or tests.note}"
            return Verdict(0, _asserts(problem), outcome or tests, said)
        calls, counts, reached_end = answer.value
        if outcome is not None and values.dumps(calls) == values.dumps([arguments for arguments, _, _ in known]):
            return _by_counts(counts, reached_end, outcome)
        outcome = sandbox.run(code, problem.entry_point, calls)
        known = [(args, *_told(result)) for args, result in zip(calls, outcome.results, strict=False)]
        known += [(args, "raised", "RuntimeError") for args in calls[len(known) :]]
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


def _told(result: Returned | Raised) -> tuple[str, Any]:
    return ("value", result.value) if isinstance(result, Returned) else ("raised", result.type_name)


@lru_cache(maxsize=1)
def _replay_source() -> str:
    return Path(__file__).with_name("replay.py").read_text(encoding="utf-8")
