"""What the preflight collects once and then looks at from all sides: a few rollouts, their scores, what they took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steadyrl.core.types import Batch, Group, Problem, Rollout, Sampling, TokenScores
from steadyrl.core.words import counted
from steadyrl.doctor.check import Registry
from steadyrl.doctor.remedies import Value
from steadyrl.loop.curriculum.passes import uniform
from steadyrl.loop.rewards.combine import require_scores, score_groups, score_texts
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import require_tokens
from steadyrl.loop.train import Session
from steadyrl.maths.batch import make_batch, take_rows

# 64 rollouts see a reward that one answer in fifty earns, and 4096 tokens bound what long completions cost.
ROLLOUTS, TOKENS, LEAST_ROLLOUTS = 64, 4096, 16
# Of these, half of a step is scored and trained, of a large model a quarter, so that the preflight takes at most the
# time of two steps.
LEAST_SCORED = 16  # rollouts
# From here on no more are drawn than in a step. Smaller models draw quickly, and more rollouts see rarer rewards.
LARGE, LEAST_OF_LARGE = 10_000_000, 4  # parameters, rollouts
_CANDIDATES = 8  # problems looked at for each one that is taken, so that long and short prompts meet in a batch
_GOLD_PROBLEMS = 64
_KEY = 2**31 + 2  # the preflight's draws never meet those of training or of evaluations
RECORDS = Registry.read(Path(__file__).with_name("checks.toml"))
check = RECORDS.check


@dataclass(frozen=True)
class Timed:
    """How long something took on so many rows."""

    rows: int
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A few rollouts of the untrained policy."""

    session: Session
    """Where they come from."""
    groups: Sequence[Group]
    """Scored, as far as they could be."""
    measured: Sequence[Group]
    """Those of them that were measured."""
    batch: Batch
    """All rollouts of these that hold a token of the policy, scored or not (a reward of 0 stands for an unknown
    one)."""
    scores: TokenScores
    """What the trainer measures on every row of ``batch``."""
    training: Batch | None
    """What the algorithm would train on, prepared; None where it kept nothing."""
    sampling: tuple[Timed, Timed]
    """What drawing took, of a part of the rows and of the others; of all rows, twice the same, where a step draws as
    many and no more need be told of it."""
    reward: Timed
    """What scoring by the rewards took."""
    scoring: Timed
    """What scoring by the trainer took, once more, as the first time takes longer."""


def silent(line: str) -> None:
    """Say nothing of how far the preflight is."""


def begin_trial(session: Session, phase: Callable[[str], None] = silent) -> Trial:
    """Sample and score a few rollouts; the session stays as it is.

    Raises:
        DataError: None of them holds a token of the policy: no turn fits, or the environment is broken.
    """
    backend, key, environment = session.backend, (session.config.run.seed, _KEY), session.environment
    problems, samples = _choose(session)
    phase(f"preflight: sampling {counted(len(problems) * samples, 'completion')}")
    if not is_large(session):  # what is done once must not be timed; here it would show
        collect(backend, problems[:2], 1, session.sampling, (*key, 0), environment=environment)
    began = time.perf_counter()
    # Two calls of different sizes tell the cost of a call from that of a row; a trial as large as a step needs one.
    split = len(problems) if len(problems) * samples == session.config.rollout.rollouts else max(1, len(problems) // 4)
    groups = collect(backend, problems[:split], samples, session.sampling, (*key, 1), environment=environment)
    first_call = second_call = Timed(split * samples, time.perf_counter() - began)
    if problems[split:]:
        began = time.perf_counter()
        groups += collect(backend, problems[split:], samples, session.sampling, (*key, 2), environment=environment)
        second_call = Timed((len(problems) - split) * samples, time.perf_counter() - began)
    began = time.perf_counter()
    groups = score_groups(groups, session.terms)
    reward = Timed(len(problems) * samples, time.perf_counter() - began)
    if not any(rollout.completion_mask.any() for group in groups for rollout in group.rollouts):
        require_scores(groups)  # a broken environment says more than the rollouts that it left empty
        require_tokens(groups, session.environment)
    measured = _measured_groups(session, groups)
    batch = rows_of(session, measured)
    phase(f"preflight: {counted(len(batch.lengths), 'completion')} scored by policy and reference")
    scores = score(session, batch)
    start = time.perf_counter()
    selected = session.algorithm.select(measured)
    training = _prepare(session, selected) if selected else None
    return Trial(
        session=session,
        groups=groups,
        measured=measured,
        batch=batch,
        scores=scores,
        training=training,
        sampling=(first_call, second_call),
        reward=reward,
        scoring=Timed(sum(len(group.rollouts) for group in measured), time.perf_counter() - start),
    )


def more_signal(trial: Trial) -> Mapping[str, Value]:
    """Return the settings that make the rewards of a problem differ."""
    if all(len({rollout.completion_ids.tobytes() for rollout in group.rollouts}) == 1 for group in trial.groups):
        return {"sampling.temperature": 1.0, "sampling.top_p": 1.0, "sampling.top_k": 0}
    return {"rollout.samples_per_prompt": 4 * trial.session.config.rollout.samples_per_prompt}


def is_large(session: Session) -> bool:
    """Return whether the model is so large that the preflight itself has a cost."""
    parameters = session.backend.describe().get("parameters", 0)
    return isinstance(parameters, int) and parameters >= LARGE


def _measured_groups(session: Session, groups: list[Group]) -> list[Group]:
    """Return the groups that are measured: those that teach most, up to a part of a step."""

    def teaches(i: int) -> tuple[bool, float, int]:
        rewards = groups[i].rewards
        return len(set(rewards)) > 1, max(rewards, default=-math.inf), -i

    least, share = (LEAST_OF_LARGE, 4) if is_large(session) else (LEAST_SCORED, 2)
    limit, rows, chosen = max(least, session.config.rollout.rollouts // share), 0, []
    for i in sorted(range(len(groups)), key=teaches, reverse=True):
        if rows and rows + len(groups[i].rollouts) > limit:
            continue
        chosen.append(i)
        rows += len(groups[i].rollouts)
    return [groups[i] for i in sorted(chosen)]


def score(session: Session, batch: Batch, sampling: Sampling | None = None) -> TokenScores:
    """Have the trainer score rows, under the session's sampling or another."""
    return session.backend.score(batch, sampling or session.sampling, session.algorithm.needs)


def rows_of(session: Session, groups: Sequence[Group]) -> Batch:
    """Lay groups into arrays, unscored rollouts too; those without a token of the policy are left out."""
    filled_groups = []
    for group in groups:
        written = (r for r in group.rollouts if r.completion_mask.any())
        rollouts = tuple(replace(r, reward=0.0 if r.reward is None else r.reward) for r in written)
        filled_groups.append(replace(group, rollouts=rollouts))
    return make_batch(filled_groups, session.backend.tokenizer.pad_id)


def _prepare(session: Session, groups: list[Group]) -> Batch | None:
    """Do what a step of the loop does between rewards and updates; None where there is no token to train on.

    Rollouts without a token, and those that do not train, count for the baseline and are then left out, so that any
    part of the rows can train.
    """
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    trained = np.flatnonzero(batch.trained_mask.any(axis=1))
    if not trained.size:
        return None
    return take_rows(session.algorithm.prepare(session.scored(batch), session.algorithm.state), trained)


def _choose(session: Session) -> tuple[list[Problem], int]:
    """Return problems whose prompts are of different lengths, and how many samples to draw of each."""
    rollouts = min(ROLLOUTS, max(LEAST_ROLLOUTS, TOKENS // session.sampling.max_new_tokens))
    if is_large(session):
        rollouts = max(LEAST_OF_LARGE, min(rollouts, session.config.rollout.rollouts))
    samples = min(session.config.rollout.samples_per_prompt, rollouts // 2)
    problems, seed = session.problems, session.config.run.seed
    count = min(rollouts // samples, len(problems))  # a small step's own prompts would tell too little
    indices = uniform(len(problems), 0, min(len(problems), _CANDIDATES * count), seed)
    encode = session.backend.tokenizer.encode_prompt
    by_length = sorted((problems[i] for i in indices), key=lambda problem: (len(encode(problem.asked)), problem.id))
    spread = np.linspace(0, len(by_length) - 1, count).astype(int)
    # Lengths are mixed, so that any part of the problems is as ragged as all of them.
    order = np.random.default_rng(seed).permutation(count)
    return [by_length[spread[i]] for i in order], samples


def gold_rollouts(trial: Trial) -> list[tuple[Problem, Rollout]]:
    """Return the good answers that the task knows to the trial's problems, scored; none where it knows none."""
    problems = list({p.id: p for p in (group.problem for group in trial.groups)}.values())[:_GOLD_PROBLEMS]
    golds = [(problem, trial.session.task.gold(problem)) for problem in problems]
    answers = [(problem, text) for problem, text in golds if text is not None]
    scored = score_texts(answers, trial.session.terms) if answers else []
    return [(problem, rollout) for (problem, _), rollout in zip(answers, scored, strict=True)]
