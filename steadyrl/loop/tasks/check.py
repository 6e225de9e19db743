"""Checks whether a task is sound before anyone trains on it. This needs no model.

The gold answer must score high and an empty one low, scoring must be reproducible, and no text may raise an error. In a
multi-turn task the expert plays the gold answer, which must be good for every kind of problem, and the empty answer is
an empty text in every turn. An environment with messages is also played by rules that try its tools, loop, and attack.
High and low are means over at most 200 problems of each split. In an exact task (see ``protocols.Exact``) every answer
to every problem must be right by itself. Where the task knows empty forms of an answer (see ``protocols.Attackable``),
the rewards may pay none of them more than the honest core in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import begin
from steadyrl.core.protocols import Attackable, Exact, Interactive, Task, ToolUsing
from steadyrl.core.sections import RewardSettings
from steadyrl.core.types import Finding, Problem, Rollout
from steadyrl.loop.rewards.combine import Term, make_terms, planned_updates, require_columns, score_texts
from steadyrl.loop.tasks.attempts import Say, score_attempts
from steadyrl.loop.tasks.check_environment import check_environment, scripted
from steadyrl.loop.tasks.data_line import data_counts, data_line

GOLD_AT_LEAST, EMPTY_AT_MOST = 0.8, 0.05
_AT_MOST = -math.inf, EMPTY_AT_MOST, f"at most {EMPTY_AT_MOST:g}"
_PROBLEMS = 200  # of each split, spread evenly
_ATTACKED = 100  # problems, of both splits, whose empty forms are scored
_CORE = "honest core"
_ROUNDING = 1e-9  # of means of equal rewards
_NAMED = 3  # problems that fail, of as many as there may be
_HOSTILE = ("(", '"', "AND", "x" * 5000, "( " * 400, "\x00", "NOT NOT", "'; DROP TABLE documents; --", "a:b", "\ud800")


def check_task(config: Config) -> list[Finding]:
    """Check the task and the rewards of a config.

    Raises:
        SteadyError: The task cannot be built at all.
    """
    task, terms = _build(config)
    train, heldout = list(plugins.problems_of(task, "train")), list(plugins.problems_of(task, "heldout"))
    require_columns(terms, "train", train)
    require_columns(terms, "heldout", heldout)
    some = [*_spread(train), *_spread(heldout)]
    if not some:
        return [_splits(config, task, train, heldout)]
    begin(f"scoring known answers to {len(some)} problems")
    if isinstance(task, Exact):
        answers = _exact(task, task.wrong, terms, [*train, *heldout])
    else:
        empty = _metric(task, _answered(task, terms, [(problem, "") for problem in some]))
        answers = [_gold(task, terms, some, empty), _mean("empty answer", empty, task.metric, *_AT_MOST)]
        if len(some) < len(train) + len(heldout):
            coverage = f"; {len(some)} of {len(train) + len(heldout)} problems were checked"
            answers = [replace(answer, message=answer.message + coverage) for answer in answers]
    if isinstance(task, Attackable):
        attacked = some[:: -(-len(some) // _ATTACKED)]
        forms = [{_CORE: task.honest_core(problem), **task.empty_forms(problem)} for problem in attacked]
        answers.append(_empty_forms(task, terms, attacked, forms))
    if isinstance(task, ToolUsing):
        answers += check_environment(task, terms, some, EMPTY_AT_MOST)
    return [
        _splits(config, task, train, heldout),
        *answers,
        _repeats(config, task, terms, some),
        _hostile(task, terms, some[0]),
    ]


def terms_to_check(config: Config, task: Task) -> list[Term]:
    """Return the rewards without an AI judge, which would cost much here and say nothing about the task.

    `steadyrl judge` checks judges. If the judge is the only reward, it is used here too.
    """
    cheap = {
        n: entry for n, entry in config.rewards.items() if not (isinstance(entry, RewardSettings) and entry.costly)
    }
    return make_terms(cheap or config.rewards, task, planned_updates(config))


def _build(config: Config) -> tuple[Task, list[Term]]:
    begin(f"reading the data of the task '{config.task.name}'")
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    return task, terms_to_check(config, task)


def _spread(problems: Sequence[Problem]) -> list[Problem]:
    if len(problems) <= _PROBLEMS:
        return list(problems)
    return [problems[i] for i in np.linspace(0, len(problems) - 1, _PROBLEMS).astype(int)]


def _judged(name: str, good: bool, measured: str) -> Finding:
    return Finding(name, state="ok", message=measured) if good else Finding(name, "critical", message=measured)


def _splits(config: Config, task: Task, train: Sequence[Problem], heldout: Sequence[Problem]) -> Finding:
    """Count the problems of both splits, and look for those that stand twice or on both sides."""
    counts = data_counts(task, train, heldout)
    counts["heldout"]["problems"] = min(len(heldout), config.evaluate.problems or len(heldout))
    ids, held_ids = [p.id for p in train], [p.id for p in heldout]
    common = set(ids) & set(held_ids)
    repeated = len(ids) + len(held_ids) - len(set(ids)) - len(set(held_ids))
    detail = data_line(counts)
    if common or repeated:
        detail += f"; ids: {len(common)} in both, {repeated} repeated"
    new = not heldout or counts["heldout"]["trained_on_too"] < len(heldout)  # a few copies are told, and do no harm
    return _judged("problems", bool(ids) and new and not common and not repeated, detail)


def _answered(task: Task, terms: Sequence[Term], answers: Sequence[tuple[Problem, str]]) -> list[Rollout]:
    """Score texts. A multi-turn problem gets its text in every turn."""
    if isinstance(task, Interactive):
        return score_attempts(task, [(problem, _always(text)) for problem, text in answers], terms)
    return score_texts(answers, terms)


def _always(text: str) -> Say:
    return lambda episode, turn: text


def _metric(task: Task, rollouts: Sequence[Rollout]) -> list[float | None]:
    return [rollout.parts.get(task.metric) if task.metric else rollout.reward for rollout in rollouts]


def _golden(task: Task, terms: Sequence[Term], problems: Sequence[Problem]) -> list[tuple[Problem, Rollout]]:
    """Return the problems for which the task knows a good answer, with the rollout of that answer."""
    if isinstance(task, Interactive):
        rollouts = score_attempts(task, [(p, lambda episode, turn: episode.expert()) for p in problems], terms)
        return [(p, r) for p, r in zip(problems, rollouts, strict=True) if r.turns or r.unscored]
    answers = [(p, text) for p in problems if (text := task.gold(p)) is not None]
    return [(p, r) for (p, _), r in zip(answers, score_texts(answers, terms), strict=True)]


def _exact(
    task: Task, wrong: Callable[[Problem], str | None], terms: Sequence[Term], problems: Sequence[Problem]
) -> list[Finding]:
    """Score the gold, the empty and the wrong answer of every problem. Each must be right by itself."""
    golden = [rollout for _, rollout in _golden(task, terms, problems)]
    empty = _answered(task, terms, [(problem, "") for problem in problems])
    wrong_answers = [(problem, text) for problem in problems if (text := wrong(problem)) is not None]
    failing = _answered(task, terms, wrong_answers)
    return [
        _count_right(task, "gold answer", golden, len(problems), "score 1", lambda score: score == 1),
        _count_right(task, "empty answer", empty, len(problems), "score 0", lambda score: score == 0),
        _count_right(task, "wrong answer", failing, len(problems), "score below 1", lambda score: score < 1),
    ]


def _count_right(
    task: Task, name: str, rollouts: Sequence[Rollout], problems: int, expected: str, right: Callable[[float], bool]
) -> Finding:
    """Count the answers that score as they must, and name the first that do not."""
    if not rollouts:
        return Finding(name, state="unknown", message="the task knows none; give one to have it checked")
    scores = _metric(task, rollouts)
    off = [(r, s) for r, s in zip(rollouts, scores, strict=True) if s is None or not right(s)]
    detail = f"{len(rollouts) - len(off)} of {len(rollouts)} {expected}"
    if len(rollouts) < problems:
        detail += f"; {problems - len(rollouts)} of {problems} problems have none"
    if off:
        named = [f"{r.problem_id} ({_score_text(r, s)})" for r, s in off[:_NAMED]]
        more = f" and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
        detail += f"; not: {', '.join(named)}{more}"
    return _judged(name, not off, detail)


def _score_text(rollout: Rollout, score: float | None) -> str:
    """Return a score with its remark, in one line."""
    if score is None:
        return f"unscored: {rollout.unscored}"
    note = " ".join(rollout.note.split())
    return f"{score:.3f}: {note}" if note else f"{score:.3f}"


def _gold(task: Task, terms: Sequence[Term], problems: Sequence[Problem], empty: Sequence[float | None]) -> Finding:
    """Compare the gold answers, and those to each kind of problem, with what is expected of them.

    Args:
        task: The task.
        terms: The rewards.
        problems: Which are answered.
        empty: What an empty answer to each problem scores.
    """
    golden = _golden(task, terms, problems)
    if not golden:
        return Finding("gold answer", state="unknown", message="the task knows none; give one to have it checked")
    bounds = GOLD_AT_LEAST, math.inf, f"at least {GOLD_AT_LEAST:g}"
    if isinstance(task, ToolUsing):
        # Rewards of a user's environment have a scale of their own, and its expert shows a way, not always the best.
        with_expert = {problem.id for problem, _ in golden}
        pairs = zip(problems, empty, strict=True)
        scores = [score for problem, score in pairs if problem.id in with_expert and score is not None]
        nothing = float(np.mean(scores)) if scores else EMPTY_AT_MOST
        bounds = nothing + _ROUNDING, math.inf, f"more than the {nothing:.3f} of an empty answer"
    finding = _mean("gold answer", _metric(task, [r for _, r in golden]), task.metric, *bounds)
    for kind in dict.fromkeys(problem.columns.get("kind") for problem, _ in golden):
        of_kind = [rollout for problem, rollout in golden if problem.columns.get("kind") == kind]
        kind_finding = _mean("gold answer", _metric(task, of_kind), task.metric, *bounds)
        if finding.state == "ok" and kind_finding.state == "found":
            return replace(kind_finding, message=f"of '{kind}': {kind_finding.message}")
    return finding


def _mean(name: str, scores: Sequence[float | None], metric: str, low: float, high: float, expected: str) -> Finding:
    """Compare the mean with its bounds. Unscored answers are no evidence of health, so they fail."""
    scored = [score for score in scores if score is not None]
    if len(scored) < len(scores):
        return _judged(name, False, f"{len(scores) - len(scored)} of {len(scores)} left unscored, expected none")
    mean = float(np.mean(scored))
    return _judged(name, low <= mean <= high, f"mean {metric or 'reward'} {mean:.3f}, expected {expected}")


def _empty_forms(
    task: Task, terms: Sequence[Term], problems: Sequence[Problem], forms: Sequence[Mapping[str, str]]
) -> Finding:
    """Compare what the rewards pay for each empty form with what they pay for the honest core, on the same problems."""
    paid: dict[str, float] = {}
    for form in forms[0]:
        rollouts = _answered(task, terms, [(p, texts[form]) for p, texts in zip(problems, forms, strict=True)])
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        if len(rewards) < len(rollouts):
            return _judged("empty forms", False, f"{len(rollouts) - len(rewards)} of {len(rollouts)} left unscored")
        paid[form] = float(np.mean(rewards))
    core = paid.pop(_CORE)
    above = sorted((form for form in paid if paid[form] > core + _ROUNDING), key=lambda form: -paid[form])
    detail = f"{len(paid) - len(above)} of {len(paid)} are paid at most the {core:.3f} of the honest answer in them"
    if above:
        named = ", ".join(f"'{form}' {paid[form]:.3f}" for form in above[:_NAMED])
        detail += f"; paid more: {named}; do not reward the form, but what each part adds to the result"
    return _judged("empty forms", not above, detail)


def _repeats(config: Config, task: Task, terms: Sequence[Term], problems: Sequence[Problem]) -> Finding:
    """Score the same answers with a second, newly built task, so that no cache can answer."""
    again_task, again = _build(config)
    if isinstance(again_task, ToolUsing):
        first, second = (
            score_attempts(each, [(p, scripted(each, p)) for p in problems[:20]], its_terms)  # type: ignore[arg-type]
            for each, its_terms in ((task, terms), (again_task, again))
        )
    elif isinstance(again_task, Interactive):
        golden = _golden(task, terms, problems[:50])
        first = [rollout for _, rollout in golden]
        second = score_attempts(again_task, [(p, _echo(r.turns)) for p, r in golden], again)
    else:
        answers = [(p, again_task.gold(p) or p.prompt) for p in problems[:50]]
        first, second = score_texts(answers, terms), score_texts(answers, again)
    differing = sum(a != b for a, b in zip(_metric(task, first), _metric(task, second), strict=True))
    return _judged("scoring repeats", differing == 0, f"{differing} of {len(first)} answers scored differently")


def _echo(turns: Sequence[str]) -> Say:
    return lambda episode, turn: turns[turn] if turn < len(turns) else None


def _hostile(task: Task, terms: Sequence[Term], problem: Problem) -> Finding:
    unscored = [r for r in _answered(task, terms, [(problem, text) for text in _HOSTILE]) if r.unscored]
    detail = f"{len(_HOSTILE)} malformed answers, {len(unscored)} left unscored"
    if unscored:
        detail += f" ({unscored[0].unscored})"
    return _judged("hostile answers", not unscored, detail)
