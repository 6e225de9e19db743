"""Code: a request for a function goes in, Python comes out, and tests say in a jail how much of it works.

The reward of the author's interest is ``tests``, the share of tests passed. Tests decide; what else is measured
(quality, brevity) counts only for programs that pass them all, so that no policy is paid for tidy code that does
nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field

from steadyrl.core.counting.count import tell
from steadyrl.core.errors import DataError
from steadyrl.core.protocols import RewardFn, Task
from steadyrl.core.sections import PathName, PathText, Section
from steadyrl.core.types import Problem, Rollout, Score
from steadyrl.environments.code.generated import generated_problems
from steadyrl.environments.code.judge_tests import Verdict, jailed, judge
from steadyrl.environments.code.lint import LONGEST, find_ruff, lint
from steadyrl.environments.code.problems import CodeProblem, program
from steadyrl.environments.code.published import load_problems
from steadyrl.environments.code.sandbox.choose import SandboxSettings, open_sandbox
from steadyrl.environments.code.sandbox.outcome import Returned
from steadyrl.environments.code.sandbox.pool import JailError
from steadyrl.loop.tasks.jsonl import held_out_ids

OWN_PROBLEMS = Path(__file__).with_name("problems.jsonl")
_CACHE_SIZE = 10_000  # a step asks for each one once per reward part
_FINDING_COST = 0.2  # of quality, per objection
_REFUSED_SHOWN = 20  # problems, by id and reason
_USUAL_SIZE = 60  # nodes of a program, where no canonical solution gives a measure

Pairs = Sequence[tuple[Problem, Rollout]]
Measure = Callable[[Verdict, CodeProblem, str], Score]
Key = TypeVar("Key")
Value = TypeVar("Value")


class CodeSettings(Section):
    """Settings of the code task."""

    free_on_resume = frozenset({"problems", "heldout"})  # files may move; that they hold the same problems is checked

    problems: PathName = Field("own")
    """'own', 'generated', or a .jsonl or .jsonl.gz file in our format or in that of HumanEval or MBPP."""
    heldout: PathText = Field("")
    """A second file of the same kind for evaluations. Empty holds out a share of the first."""
    heldout_share: float = Field(0.5, gt=0, lt=1)
    """Share of the first file's problems that are held out if there is no second file."""
    generated_count: int = Field(800, ge=2, le=1_000_000)
    """Maximum number of problems that 'generated' makes."""
    generated_seed: int = Field(0, ge=0, lt=2**63, description="Seed of the generated problems.")
    generated_steps: Literal["one", "two", "mixed"] = Field("mixed")
    """Number of steps in a generated problem: 'one', 'two', or 'mixed' (a third of the problems have two)."""
    generated_half: Literal["a", "b", "both"] = Field("both")
    """Which half of the generated problems to use. 'a' and 'b' share no problem, so a warm-up on one leaves the other
    unseen."""
    all_or_nothing: bool = Field(False)
    """If true, the reward 'tests' is 1 if all tests pass and 0 otherwise. If false, it is the share of tests that
    pass."""
    lint: Literal["off", "ruff"] = Field("off")
    """A linter whose objections lower 'quality', in addition to the checks on the syntax tree. 'ruff' needs the extra
    'code'."""
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings, description="Where answers are executed.")


@dataclass(frozen=True)
class CodeReward:
    """A reward of one rollout, with a way to run the answers of a step in all workers at once."""

    measure: Callable[[Problem, Rollout], Score]
    prepare: Callable[[Pairs], None]

    def __call__(self, problem: Problem, rollout: Rollout) -> Score:
        """Score one rollout."""
        return self.measure(problem, rollout)


class CodeTask(Task):
    """See Task and Exact. Rewards: tests, compiles, quality, brevity."""

    Settings = CodeSettings
    name = "code"
    metric = "tests"

    def __init__(self, settings: CodeSettings, seed: int = 0):
        """Read the problems and find a jail.

        Args:
            settings: Which problems, and where answers run.
            seed: The run's. The split does not follow it, so that runs of several seeds are compared on the same
                held-out problems.

        Raises:
            DataError: A file is malformed, there are fewer than two problems, or test code asks for what cannot be
                judged without trusting the answer.
            ConfigError: No jail holds on this machine.
        """
        self._all_or_nothing = settings.all_or_nothing
        self._train, self._heldout = _split(settings)
        self._by_id = {problem.id: problem for problem in [*self._train, *self._heldout]}
        self._sandbox, self._workers = open_sandbox(settings.sandbox), settings.sandbox.workers
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._inspect = lru_cache(_CACHE_SIZE)(self._inspect_in_jail)
        self._ruff = find_ruff() if settings.lint == "ruff" else None
        self._lint_lines: OrderedDict[str, list[str]] = OrderedDict()
        self._refuse_unjudgeable()

    def _refuse_unjudgeable(self) -> None:
        """Run the canonical solutions of problems with test code: what these cannot pass, no answer can."""
        refused = []
        for problem in self._by_id.values():
            if problem.script and problem.canonical_solution is not None:
                try:
                    verdict = judge(self._sandbox, program(problem.canonical_solution, problem), problem)
                except JailError as error:
                    raise DataError(f"the tests of '{problem.id}' could not be tried ({error}); try again") from error
                if verdict.passed < verdict.total:
                    refused.append(f"'{problem.id}': {verdict.refused or verdict.note}")
        if refused:
            raise DataError(
                f"the tests of {len(refused)} of task.args.problems cannot be judged from outside the answer, or their "
                f"own solution does not pass them: {'; '.join(refused[:_REFUSED_SHOWN])}. Have these tests compare "
                "plain values, or remove the problems"
            )

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """See Task."""
        return [
            Problem(p.id, p.prompt, {"entry_point": p.entry_point, "starter_code": p.starter_code})
            for p in (self._train if split == "train" else self._heldout)
        ]

    def rewards(self) -> Mapping[str, RewardFn]:
        """See Task."""
        measures = {
            "tests": self._tests,
            "compiles": self._compiles,
            "quality": self._quality,
            "brevity": self._brevity,
        }
        prepare = {name: self._lint_all if name == "quality" else self._run_all for name in measures}
        return {name: CodeReward(partial(self._score, measures[name]), prepare[name]) for name in measures}

    def baselines(self) -> Mapping[str, Callable[[Problem], str]]:
        """See Task: answers that must not score, or only by luck."""
        wrong: dict[str, Callable[[Problem], str]] = {"wrong solution": lambda problem: self.wrong(problem) or ""}
        has_wrong = any(problem.wrong_solution is not None for problem in self._by_id.values())
        return (wrong if has_wrong else {}) | {
            "a body of pass": lambda problem: f"def {self._by_id[problem.id].entry_point}(*_):\n    pass\n",
            "return the first argument": lambda problem: (
                f"def {self._by_id[problem.id].entry_point}(first=None, *_):\n    return first\n"
            ),
        }

    def gold(self, problem: Problem) -> str | None:
        """Return the canonical solution, or None where a problem has none."""
        return self._by_id[problem.id].canonical_solution

    def wrong(self, problem: Problem) -> str | None:
        """See Exact."""
        return self._by_id[problem.id].wrong_solution

    def show(self, answer: str) -> list[str]:
        """See Task: what a reader would object to in the answer."""
        return self._objections(answer.strip()) or ["nothing to object to"]

    def _score(self, measure: Measure, problem: Problem, rollout: Rollout) -> Score:
        verdict = self._verdict(problem, rollout.text)
        if isinstance(verdict, str):
            return Score(None, unscored=verdict)
        try:
            return measure(verdict, self._by_id[problem.id], rollout.text)
        except JailError as error:
            return Score(None, unscored=str(error))

    def _tests(self, verdict: Verdict, problem: CodeProblem, text: str) -> Score:
        metrics = {
            "passed_all": float(verdict.passed == verdict.total),
            "compiles": float(verdict.outcome.compiled),
            "timed_out": float(verdict.outcome.verdict == "timeout"),
        }
        value = metrics["passed_all"] if self._all_or_nothing else verdict.passed / verdict.total
        return Score(value, metrics, note=verdict.note)

    def _compiles(self, verdict: Verdict, problem: CodeProblem, text: str) -> Score:
        """Return 1 for a program that is Python; an answer of blank lines and comments adds nothing to its starter."""
        added = program(text, problem).removeprefix(problem.starter_code).splitlines()
        says_something = any(line.strip() and line.strip()[0] != "#" for line in added)
        return Score(float(verdict.outcome.compiled and says_something))

    def _quality(self, verdict: Verdict, problem: CodeProblem, text: str) -> Score:
        """Return 1 less a fifth per objection, not below 0, for a program that passes all tests; else 0."""
        code, objections, size = self._inspect_passing(verdict, problem, text)
        objections = self._objections(code) if size else objections
        return Score(max(0.0, 1.0 - _FINDING_COST * len(objections)) if size else 0.0, note="; ".join(objections))

    def _brevity(self, verdict: Verdict, problem: CodeProblem, text: str) -> Score:
        """Return the canonical solution's size over the program's, at most 1, if it passes all tests; else 0."""
        _, objections, size = self._inspect_passing(verdict, problem, text)
        if not size:
            return Score(0.0, note="; ".join(objections))
        canonical = problem.canonical_solution
        reference_size = self._inspect(program(canonical, problem))[1] if canonical is not None else 0
        return Score(min(1.0, (reference_size or _USUAL_SIZE) / size))

    def _inspect_passing(self, verdict: Verdict, problem: CodeProblem, text: str) -> tuple[str, list[str], int]:
        """Return a program, what there is to object to, and its size: 0 if it fails a test or cannot be read."""
        code = program(text, problem)
        return code, *(self._inspect(code) if verdict.passed == verdict.total else ([], 0))

    def _run_all(self, pairs: Pairs) -> None:
        """Run all answers that are not judged yet, as many at a time as there are workers, and remember the verdicts.

        The last ones asked for are kept; what the machine failed at is left to be tried once more, alone.
        """
        keys = [(problem.id, rollout.text) for problem, rollout in pairs if problem.id in self._by_id]
        missing = [key for key in dict.fromkeys(keys) if key not in self._verdicts][-_CACHE_SIZE:]
        if self._workers == 1 or len(missing) < 2:
            return
        with ThreadPoolExecutor(self._workers) as pool:
            for done, (key, verdict) in enumerate(zip(missing, pool.map(self._judge, missing), strict=True), start=1):
                tell("programs", done, len(missing))
                if isinstance(verdict, Verdict):
                    _remember(self._verdicts, key, verdict)

    def _lint_all(self, pairs: Pairs) -> None:
        """Run all answers, and have those that pass looked at in one call."""
        self._run_all(pairs)
        if self._ruff is None:
            return
        passing = []
        for problem, rollout in pairs:
            verdict = self._verdict(problem, rollout.text)
            if not isinstance(verdict, str) and verdict.passed == verdict.total:
                passing.append(program(rollout.text, self._by_id[problem.id]))
        missing = [code for code in dict.fromkeys(passing) if code not in self._lint_lines]
        for code, objections in zip(missing, lint(self._ruff, missing), strict=True):
            _remember(self._lint_lines, code, objections)

    def _objections(self, code: str) -> list[str]:
        """Return what the syntax tree and ruff object to; of a line that both object to, what ruff says."""
        objections, _ = self._inspect(code)
        if self._ruff is None:
            return objections
        if code not in self._lint_lines:
            _remember(self._lint_lines, code, lint(self._ruff, [code])[0])
        lint_lines = self._lint_lines[code]
        lines = {line.partition(":")[0] for line in lint_lines}
        return [*lint_lines, *(line for line in objections if line.partition(":")[0] not in lines)]

    def _judge(self, key: tuple[str, str]) -> Verdict | str:
        code_problem = self._by_id[key[0]]
        try:
            return judge(self._sandbox, program(key[1], code_problem), code_problem)
        except JailError as error:
            return str(error)

    def _verdict(self, problem: Problem, text: str) -> Verdict | str:
        key = (problem.id, text)
        if key in self._verdicts:
            return self._verdicts[key]
        if problem.id not in self._by_id:
            return f"there are no tests for the problem '{problem.id}'"
        verdict = self._judge(key)
        if isinstance(verdict, Verdict):
            _remember(self._verdicts, key, verdict)
        return verdict

    def _inspect_in_jail(self, code: str) -> tuple[list[str], int]:
        """Return the objections to a program and its size, 0 of one that cannot be read.

        It is parsed in the jail, for hostile text may need one.
        """
        if len(code) > LONGEST:  # ruff is shown no more of it
            return [f"it has more than {LONGEST} characters, which is not read"], 0
        match self._sandbox.run(jailed("quality.py"), "inspect", [[code]]).results:
            case (Returned(value=(objections, nodes)),):
                return objections, nodes
        return ["it is too large or too deep to be read"], 0


def _split(settings: CodeSettings) -> tuple[list[CodeProblem], list[CodeProblem]]:
    problems = _load(settings.problems, settings)
    if settings.heldout:
        heldout = _load(settings.heldout, settings)
        if common := {p.id for p in problems} & {p.id for p in heldout}:
            raise DataError(f"the problem '{min(common)}' is in both files of task.args; remove it from one")
        return problems, heldout
    if len(problems) < 2:
        raise DataError(
            f"{settings.problems} has one problem; expected two or more, or task.args.heldout = another file"
        )
    heldout_ids = held_out_ids([problem.id for problem in problems], settings.heldout_share)
    return [p for p in problems if p.id not in heldout_ids], [p for p in problems if p.id in heldout_ids]


def _load(name: str, settings: CodeSettings) -> list[CodeProblem]:
    if name == "own":
        return load_problems(OWN_PROBLEMS)
    if name == "generated":
        return generated_problems(
            settings.generated_count, settings.generated_seed, settings.generated_steps, settings.generated_half
        )
    return load_problems(Path(name))


def _remember(cache: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    cache[key] = value
    if len(cache) > _CACHE_SIZE:
        cache.popitem(last=False)
