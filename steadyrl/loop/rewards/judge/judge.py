"""The reward ``judge``: AI feedback on a step's rollouts, all of them in one call.

A rollout without a verdict is unscored, never 0. Rollouts without text, and those that fail the judge's ``gate``, get 0
unasked: where tests can tell, they have the first word, and the judge grades what they let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steadyrl.core.types import Problem, Rollout, Score
from steadyrl.loop.rewards.judge.modes import Contest, Opinion
from steadyrl.loop.rewards.judge.offline import LikelihoodPanel
from steadyrl.loop.rewards.judge.panel import Panel
from steadyrl.loop.rewards.judge.settings import JudgeSettings

NAME = "judge"
_LONGEST_NOTE = 300  # characters of the judge's sentence that a rollout keeps

Pairs = Sequence[tuple[Problem, Rollout]]
Gate = Callable[[Pairs], list[Score]]


class Judge:
    """See the module. Call it with all rollouts of a step."""

    def __init__(self, section: JudgeSettings, gold: Callable[[Problem], str | None], gate: Gate | None):
        """Take the settings.

        Args:
            section: Of the config.
            gold: The task's known good answers.
            gate: The reward behind ``rewards.judge.gate``; None where there is none.

        Raises:
            ConfigError: The key is missing.
            MissingExtraError: The offline judge needs torch.
        """
        self._gold, self._gate = gold, gate
        self._panel = LikelihoodPanel(section) if section.mode == "likelihood" else Panel(section)

    def __call__(self, pairs: Pairs) -> list[Score]:
        """Return a score for each rollout, in order.

        Raises:
            EngineError: Too many verdicts failed, lately.
        """
        gated = self._gate(pairs) if self._gate else [Score(1.0)] * len(pairs)
        eligible = [
            bool(_answer(rollout)) and gate.value is not None and gate.value >= 1.0
            for (_, rollout), gate in zip(pairs, gated, strict=True)
        ]
        texts: dict[str, dict[str, None]] = {}
        problems: dict[str, Problem] = {}
        for (problem, rollout), is_asked in zip(pairs, eligible, strict=True):
            if is_asked:
                problems[problem.id] = problem
                texts.setdefault(problem.id, {})[_answer(rollout)] = None
        contests = [
            Contest(name, problems[name].prompt, tuple(answers), self._gold(problems[name]))
            for name, answers in texts.items()
        ]
        opinions = dict(zip(texts, self._panel.opinions(contests), strict=True))
        return [
            _score(opinions[problem.id][_answer(rollout)]) if is_asked else _unasked(rollout, gate)
            for (problem, rollout), gate, is_asked in zip(pairs, gated, eligible, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        """Return judge/* of what was asked since the last call."""
        return self._panel.drain()


def _answer(rollout: Rollout) -> str:
    """Return what a judge reads: space around an answer makes it no other one."""
    return rollout.text.strip()


def _score(opinion: Opinion) -> Score:
    if opinion.value is None:
        return Score(None, unscored=f"{NAME}: {opinion.reason}")
    parts: Mapping[str, float] = {f"{NAME}_{name}": value for name, value in opinion.parts.items()}
    reason = " ".join(opinion.reason.split())[:_LONGEST_NOTE]
    return Score(opinion.value, parts, note=f"{NAME}: {reason}" if reason else "")


def _unasked(rollout: Rollout, gate: Score) -> Score:
    if _answer(rollout) and gate.value is None:  # what the gate does not know the judge does not either
        return Score(None, unscored=f"{NAME}: its gate is unknown ({gate.unscored})")
    return Score(0.0)
