r"""Arithmetic and word problems with exact checks, generated in levels or read from a file like GSM8K's.

{"question": "Ana has 3 boxes with 4 eggs each. How many eggs are there?", "answer": "3 * 4 = 12\n#### 12"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from steadyrl.core.errors import DataError
from steadyrl.core.protocols import RewardFn
from steadyrl.core.sections import PathText, Section
from steadyrl.core.types import Problem, Rollout
from steadyrl.environments.math.generated import LEVELS, generate
from steadyrl.loop.rewards.answers import MARK, final_number
from steadyrl.loop.tasks.jsonl import held_out_ids, read_objects

_SEED = 18  # of the generated problems: those of a level are the same in every run


class MathTask:
    """See Task and Exact. Rewards: correct (1 or 0), number (whether the answer holds a number at all)."""

    class Settings(Section):
        """Settings of the math task."""

        free_on_resume = frozenset({"path", "heldout"})  # as of prompts

        path: PathText = Field("")
        """JSONL file with a 'question' and an 'answer' per line, as in GSM8K. A 'level' is optional. Empty generates
        problems."""
        heldout: PathText = Field("")
        """A second file of the same kind for evaluations. Empty holds out a share of the first."""
        heldout_share: float = Field(0.2, gt=0, lt=1, description="Share of the file's problems that are held out.")
        levels: list[int] = Field([1, 2, 3, 4, 5, 6])
        """Levels of generated problems: 1 and 2 sums, 3 products, 4 two operations, 5 and 6 stories of one and two
        steps."""
        train_count: int = Field(200, ge=1, le=100_000, description="Maximum generated training problems per level.")
        heldout_count: int = Field(20, ge=1, le=10_000, description="Maximum generated held-out problems per level.")
        instruction: str = Field("", description="Text that is put after every question.")

        @field_validator("levels")
        @classmethod
        def _some_levels(cls, levels: list[int]) -> list[int]:
            if not levels:
                raise ValueError(f"one or more levels of {min(LEVELS)} to {max(LEVELS)}")
            return levels

    name = "math"
    metric = "correct"

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        """Generate the problems, or read them.

        Args:
            settings: Which problems.
            seed: The run's seed. The problems and the split do not depend on it.

        Raises:
            DataError: A level does not exist, or the file has a defect.
        """
        self._suffix = f"\n{settings.instruction}" if settings.instruction else ""
        if settings.path:
            problems = self._read_file(Path(settings.path))
            share = held_out_ids([problem.id for problem in problems], settings.heldout_share)
            held_out = set() if settings.heldout else share
            self._train = tuple(problem for problem in problems if problem.id not in held_out)
            self._heldout = tuple(problem for problem in problems if problem.id in held_out)
        else:
            unknown = sorted(set(settings.levels) - set(LEVELS))
            if unknown:
                raise DataError(f"task.args.levels has {unknown}; expected levels of {min(LEVELS)} to {max(LEVELS)}")
            self._train, self._heldout = self._generate(settings)
        if settings.heldout:
            self._heldout = tuple(self._read_file(Path(settings.heldout)))

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """Return the problems of a split, the easy levels first."""
        return self._train if split == "train" else self._heldout

    def rewards(self) -> Mapping[str, RewardFn]:
        """See Task."""
        return {"correct": correct, "number": number}

    def baselines(self) -> Mapping[str, Callable[[Problem], str]]:
        """Return the answers of rules that do not calculate."""
        return {"the first number of the question": _first_number, "always 1": lambda problem: "1"}

    def gold(self, problem: Problem) -> str | None:
        """Return the right number."""
        answer: str = problem.columns["answer"]
        return answer

    def wrong(self, problem: Problem) -> str | None:
        """Return the number after the right one."""
        return str(Fraction(problem.columns["answer"]) + 1)

    def ask(self, text: str) -> Problem:
        """Return the text as a new problem."""
        return Problem("asked", text + self._suffix)

    def show(self, answer: str) -> list[str]:
        """Return the number that an answer comes to."""
        number = final_number(answer)
        return ["no number"] if number is None else [f"the answer is read as {number}"]

    def _generate(self, settings: Settings) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
        train: list[Problem] = []
        heldout: list[Problem] = []
        for level in sorted(set(settings.levels)):
            pairs = generate(level, settings.heldout_count + settings.train_count, _SEED)
            problems = [
                Problem(f"level-{level}-{i}", prompt + self._suffix, {"answer": str(answer), "level": level})
                for i, (prompt, answer) in enumerate(pairs)
            ]
            # A level may have fewer problems than were asked for; held out is a third of them at most.
            size = min(settings.heldout_count, len(problems) // 3)
            heldout += problems[:size]
            train += problems[size:]
        return tuple(train), tuple(heldout)

    def _read_file(self, path: Path) -> list[Problem]:
        problems: dict[str, Problem] = {}
        for line in read_objects(path):
            question = line.filled("question")
            solution = line.record.get("answer")
            value = final_number(str(solution)) if isinstance(solution, str | int | float) else None
            if value is None or isinstance(solution, bool):
                raise DataError(
                    f"{line}: 'answer' holds no number; expected a number, or a solution that ends with '{MARK} 42'"
                )
            columns = {**{k: v for k, v in line.record.items() if k not in ("question", "id")}, "answer": str(value)}
            id = line.filled("id") if "id" in line.record else f"line-{line.number}"
            if id in problems:
                raise DataError(f"{line}: the id '{id}' is taken; give every problem its own")
            problems[id] = Problem(id, question + self._suffix, columns)
        if len(problems) < 2:
            raise DataError(f"{path} has {len(problems)} problems; expected two or more")
        return list(problems.values())


def correct(problem: Problem, rollout: Rollout) -> float:
    """Return 1 if the final number of the answer is the right one, else 0."""
    return float(final_number(rollout.text) == Fraction(problem.columns["answer"]))


def number(problem: Problem, rollout: Rollout) -> float:
    """Return 1 if the answer holds a number, else 0."""
    return float(final_number(rollout.text) is not None)


def _first_number(problem: Problem) -> str:
    words = problem.prompt.replace("?", " ").replace("(", " ").split()
    return next((word for word in words if word.isdigit()), "0")
