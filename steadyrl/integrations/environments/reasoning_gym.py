"""The generators and scorers of reasoning-gym as a task.

[task]
name = "reasoning_gym"

[task.args]
datasets = ["chain_sum", "leg_counting"]
dataset_args = {chain_sum = {max_terms = 3}}

[rewards]
score = 1.0
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, DataError, exception_line
from steadyrl.core.protocols import RewardFn
from steadyrl.core.sections import Section
from steadyrl.core.types import Message, Problem, Rollout
from steadyrl.core.words import did_you_mean
from steadyrl.loop.rewards.calls import within

# Some of reasoning-gym's scorers call ``eval`` or sympy's ``parse_expr``, which evaluates too, on what a policy wrote.
# A policy that writes ``__import__('os').system(...)`` would be obeyed, and ``9**9**9**9`` would never end.
_EVALUATE = ("eval", "exec", "parse_expr", "sympify")
_LONGEST = 400  # characters
# Numbers, signs, brackets, quotes, single letters, rows of the letters A to E, and functions of one number. None of
# these names is a function that acts; `N` and `S` of sympy are.
_WORDS = r"(?:a?(?:sin|cos|tan)h?|exp|log|sqrt|Integral|[A-E]+|[A-EQX-Z_a-z])(?!\w)"
_POWER = r"\*\*\s*(?:-?\d{1,2}|\(-?\d{1,2}(?:/\d{1,2})?\))(?!\d|\s*\*\*)"
_EXPRESSION = re.compile(rf"(?:\d{{1,9}}(?:\.\d{{0,9}})?|{_WORDS}|{_POWER}|\*(?!\*)|[-+/(),\[\]\s'\"|])*")
_POWER_OF_BRACKETS = re.compile(r"\)\s*\*\*")
_REPEATED = re.compile(r"['\"\[].*\*|\*.*['\"\[]", re.DOTALL)  # 'a' * 999999999
# An entry depends on the sum of its data set's seed and its number: sets of seeds must not overlap.
_HELDOUT, _NEXT_SEED = 1 << 20, 1 << 21
_EVALUATION_SECONDS = 5.0


class ReasoningGymTask:
    """See Task and Sourced. Reward: score, what reasoning-gym's own score_answer gives, mostly 0 to 1."""

    class Settings(Section):
        """Settings of the reasoning_gym task."""

        datasets: list[str] = Field(min_length=1)
        """Names of reasoning-gym's data sets, such as 'chain_sum'. Several are mixed in equal shares."""
        dataset_args: dict[str, dict[str, Any]] = Field(default_factory=dict)
        """Settings of a data set by its name, such as {chain_sum = {max_terms = 3}}."""
        train_count: int = Field(500, ge=1, le=1_000_000)
        """Training problems, at most. A question that comes up twice counts once."""
        heldout_count: int = Field(100, ge=0, le=1_000_000)
        """Held-out problems, at most. No training problem asks the same."""
        seed: int = Field(0, ge=0, le=1_000_000, description="Which problems are generated. A run's seed changes none.")
        system: Literal["", "default", "simple", "direct", "chain_of_draft", "DeepSeekZero"] = Field("")
        """Which of reasoning-gym's system prompts asks for an answer in <answer> tags. Empty asks the question alone,
        and an answer without tags is scored as a whole."""

    name = "reasoning_gym"
    metric = "score"

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        """Generate the problems, which do not depend on the run's seed.

        Raises:
            ConfigError: There is no such data set, or it has no such settings.
            DataError: All that it generates to train on is held out.
            MissingExtraError: reasoning-gym is not installed.
        """
        gym = plugins.require("reasoning_gym")
        self._extract = gym.utils.extract_answer
        self._system = gym.utils.SYSTEM_PROMPTS[settings.system].strip() if settings.system else ""
        self._sets: dict[str, Any] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        questions: set[str] = set()
        first = settings.seed * _NEXT_SEED
        self._heldout = self._generate(gym, settings, "heldout", first + _HELDOUT, questions)
        self._train = self._generate(gym, settings, "train", first, questions)
        if not self._train:
            raise DataError(
                f"every question that {', '.join(settings.datasets)} generated is held out; lower "
                "task.args.heldout_count, or choose data sets with more questions"
            )
        self._evaluated = {name for name, dataset in self._sets.items() if evaluates(dataset)}
        names = f"reasoning-gym's {', '.join(settings.datasets)}"
        self.sources = {"train": f"{names}, from seed {first}", "heldout": f"{names}, from seed {first + _HELDOUT}"}

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """Return the problems of a split, the data sets in turn."""
        return self._train if split == "train" else self._heldout

    def rewards(self) -> Mapping[str, RewardFn]:
        """See Task."""
        return {"score": self._score}

    def baselines(self) -> Mapping[str, Callable[[Problem], str]]:
        """See Task: none, for each data set would need its own."""
        return {}

    def gold(self, problem: Problem) -> str | None:
        """Return the known answer in the form that is asked for; None where the data set only checks answers."""
        answer = problem.columns.get("answer")
        return f"<answer>{answer}</answer>" if answer is not None and self._system else answer

    def ask(self, text: str) -> Problem:
        """Return the text as a new problem."""
        return Problem("asked", text, messages=self._messages(text))

    def show(self, answer: str) -> list[str]:
        """Return what an answer is read as."""
        extracted = self._answer_in(answer)
        return ["no answer in <answer> tags"] if extracted is None else [f"the answer is read as {extracted}"]

    def _generate(
        self, gym: Any, settings: Settings, split: str, seed: int, questions: set[str]
    ) -> tuple[Problem, ...]:
        count = settings.train_count if split == "train" else settings.heldout_count
        names = settings.datasets
        numbered = {"seed": seed, "size": max(count, 1)}  # the package makes no empty set
        sets = []
        for name in names:
            if name not in gym.factory.DATASETS:
                all_names = sorted(gym.factory.DATASETS)
                hint = did_you_mean(name, all_names, f"there are {', '.join(all_names)}", count=3)
                raise ConfigError(f"reasoning-gym has no data set '{name:.80}'; {hint}")
            args = {**settings.dataset_args.get(name, {}), **numbered}
            try:
                sets.append(gym.create_dataset(name, **args))
            except Exception as error:  # its configs check themselves by assertions, among others
                raise ConfigError(
                    f"reasoning-gym's '{name}' cannot be made with task.args.dataset_args.{name} = {args}: "
                    f"{exception_line(error)}"
                ) from error
        self._sets |= dict(zip(names, sets, strict=True))
        problems: list[Problem] = []
        for i in range(count):
            name, entry = names[i % len(names)], sets[i % len(names)][i // len(names)]
            if entry["question"] in questions:
                continue
            questions.add(entry["question"])
            columns = {"dataset": name, "answer": entry["answer"]}
            problem = Problem(
                f"{split}-{name}-{i // len(names)}", entry["question"], columns, self._messages(entry["question"])
            )
            self._entries[problem.id] = entry
            problems.append(problem)
        return tuple(problems)

    def _messages(self, question: str) -> tuple[Message, ...]:
        if not self._system:
            return ()
        return ({"role": "system", "content": self._system}, {"role": "user", "content": question})

    def _score(self, problem: Problem, rollout: Rollout) -> float | None:
        entry = self._entries.get(problem.id)
        if entry is None:
            return None
        name, answer = problem.columns["dataset"], self._answer_in(rollout.text)
        scorer, limit_s = self._sets[name].score_answer, 0.0
        if name in self._evaluated:
            limit_s = _EVALUATION_SECONDS
            answer = answer if answer is not None and is_expression(answer) else None
        try:
            return float(within(limit_s, scorer, answer, entry))
        except Exception:  # scorers raise for some answers that they cannot read, and sympy may take hours
            return float(scorer(None, entry))

    def _answer_in(self, text: str) -> str | None:
        in_tags: str | None = self._extract(text)
        return in_tags if in_tags is not None or self._system else text.strip() or None


def evaluates(dataset: Any) -> bool:
    """Return whether a data set's score_answer evaluates the answer."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(type(dataset).score_answer)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    evaluated = [a for call in calls if ast.unparse(call.func).rpartition(".")[2] in _EVALUATE for a in call.args]
    names = [node for argument in evaluated for node in ast.walk(argument) if isinstance(node, ast.Name)]
    return any(name.id == "answer" for name in names)


def is_expression(answer: str) -> bool:
    """Return whether evaluating an answer can do nothing but compute, and not for long."""
    return (
        len(answer) <= _LONGEST
        and _EXPRESSION.fullmatch(answer) is not None
        and len(_POWER_OF_BRACKETS.findall(answer)) <= 2
        and not _REPEATED.search(answer)
    )
