"""How many tests a program passes, with the expected values kept out of the program's reach."""

from __future__ import annotations

import ast
import json
import marshal
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from steadyrl.environments.code.problems import CodeProblem, program
from steadyrl.environments.code.sandbox import values
from steadyrl.environments.code.sandbox.outcome import Outcome, Raised, Returned
from steadyrl.environments.code.sandbox.pool import Sandbox

# A call whose arguments follow from an earlier result is only known after that result: one more pass each time.
_PASSES = 6
_SHOWN = 300  # characters of a reason


@dataclass(frozen=True)
class Verdict:
    """What the tests say of a program."""

    passed: float
    total: int
    """Tests; equal where every one holds wholly. Of test code an assert that is reached more than once counts by the
    share of its rounds, so that ``passed`` need not be whole."""
    outcome: Outcome
    """How the program's last run ended."""
    note: str
    """Why it does not pass; "" where it does."""
    refused: str = ""
    """What the test code asked for that cannot be judged from outside the program; "" for nothing."""


def judge(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    """Run a program's function on the tests of a problem.

    Raises:
        JailError: The machine failed; nothing is known of the program.
    """
    verdict = _judge_script(sandbox, code, problem) if problem.script else _judge_cases(sandbox, code, problem)
    results = verdict.outcome.results
    if 0 < verdict.passed < verdict.total and all(isinstance(r, Returned) and r.wire is None for r in results):
        # An empty body meets each "assert not f(x)" and each expected None; that is no part of a solution.
        return replace(verdict, passed=0, note="it returns None whatever it is given")
    return verdict


def _judge_cases(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    outcome = sandbox.run(code, problem.entry_point, [case.arguments for case in problem.cases])
    passed, note = 0, outcome.note
    for case, result in zip(problem.cases, outcome.results, strict=False):  # an unfinished run has fewer results
        if isinstance(result, Returned) and values.same(result.wire, case.expected):
            passed += 1
        else:
            note = note or _difference(problem.entry_point, case.arguments, result, case.expected)
    return Verdict(passed, len(problem.cases), outcome, note)


def _difference(name: str, arguments: tuple[Any, ...], result: Returned | Raised, expected: Any) -> str:
    call = f"{name}({', '.join(values.short_repr(values.encode(argument)) for argument in arguments)})"
    if isinstance(result, Raised):
        return f"{call} raised {result.type_name}: {result.text}"
    return f"{call} is {values.short_repr(result.wire)}, expected {values.short_repr(values.encode(expected))}"


@dataclass(frozen=True)
class _Replay:
    """What the tests of a script come to."""

    shares: tuple[float, ...]
    """Of every assert statement, the share of its rounds that hold; 0 where it was not reached."""
    reached_end: bool
    """Whether the tests came to their end."""
    outcome: Outcome
    """How the program's last run ended."""
    note: str = ""
    """Why nothing can be said of the asserts, or ""."""
    refused: str = ""
    """See Verdict."""
    mutation_matters: bool = False
    """Whether arguments that a call has changed beside returning a value matter."""


def _judge_script(sandbox: Sandbox, code: str, problem: CodeProblem) -> Verdict:
    """Count what holds both with the arguments as the program leaves them, and as they should be left.

    A program that empties its argument could pass ``assert f(xs) == sorted(xs)`` by returning nothing. The problem's
    own solution says how a call should leave its arguments. Without one, a call leaves them alone if its value is used.
    """
    replay = _replay_script(sandbox, code, problem)
    shares, reached_end = replay.shares, replay.reached_end
    if replay.mutation_matters and any(shares):
        solution = problem.canonical_solution
        reference = program(solution, problem) if solution is not None else ""
        reference_replay = _replay_script(sandbox, code, problem, reference)
        shares = tuple(map(min, shares, reference_replay.shares))
        reached_end = reached_end and reference_replay.reached_end
    failing = sum(share < 1 for share in shares)
    note = replay.note or replay.outcome.note or (f"{failing} of {len(shares)} asserts do not hold" if failing else "")
    if failing > sum(share < 1 for share in replay.shares):
        note += ", or only as long as the program changes the arguments that it is given"
    if not reached_end:
        note = note or "the tests do not come to their end"
    # The sum is rounded once, so that it is whole only where every share is 1.
    return Verdict(math.fsum(shares), len(shares) + (not reached_end), replay.outcome, note, replay.refused[:_SHOWN])


def _replay_script(sandbox: Sandbox, code: str, problem: CodeProblem, reference: str | None = None) -> _Replay:
    """Alternate between the tests, which say what to do, and the program, until the steps stay the same.

    Args:
        sandbox: Where both run.
        code: The program.
        problem: Whose tests.
        reference: The program that says how calls leave their arguments; "" if calls whose value is looked at leave
            them alone, None if it is the program itself.
    """
    script = [problem.script, problem.preamble, problem.entry_point, list(problem.classes)]
    steps, results = "[]", "[]"
    outcome: Outcome | None = None
    no_shares = (0.0,) * sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(problem.script)))
    for _ in range(_PASSES):
        tests = sandbox.run(jailed("replay.py"), "replay", [[*script, steps, results, reference == ""]])
        answer = tests.results[0] if tests.results else None
        if not isinstance(answer, Returned):
            reason = answer.text if answer else tests.note
            return _Replay(no_shares, True, outcome or tests, f"the tests did not come to an end: {reason}")
        previous = steps
        steps, count, counts, reached_end, refused, mutation_matters = answer.value
        if outcome is not None and steps == previous:
            shares = tuple(successes / rounds if rounds else 0.0 for successes, rounds in counts)
            return _Replay(shares, reached_end, outcome, "", refused, mutation_matters)
        outcome = sandbox.run_steps(code, problem.entry_point, steps, count)
        mutations = sandbox.run_steps(reference, problem.entry_point, steps, count) if reference else outcome
        pairs = zip_longest(outcome.results, mutations.results[: len(outcome.results)])
        results = json.dumps([_replay_result(*pair) for pair in pairs])
    assert outcome is not None, "there is at least one pass"
    return _Replay(no_shares, True, outcome, "the calls of the tests depend on too many earlier results")


def _replay_result(result: Returned | Raised, mutation: Returned | Raised | None) -> list[Any]:
    if isinstance(result, Raised):
        return ["raised", result.type_name, result.text]
    return ["value", result.wire, mutation.changed if isinstance(mutation, Returned) and mutation.changed else ["list"]]


@lru_cache(maxsize=2)
def jailed(name: str) -> str:
    """Return a program of this folder as a jail is sent it.

    It is compiled once, here: compiling it anew took a jail longer than running the tests of most problems. The jail's
    interpreter is this one.
    """
    path = Path(__file__).with_name(name)
    code = compile(path.read_text(encoding="utf-8"), name, "exec", dont_inherit=True)
    return f"import marshal\nexec(marshal.loads({marshal.dumps(code)!r}))\n"
