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
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import begin
from steadyrl.core.protocols import Attackable, Exact, Interactive, ToolUsing
from steadyrl.core.types import Finding, Rollout
from steadyrl.core.words import counted
from steadyrl.doctor.check import Check, Found, Passed, Result, Unknown, judged
from steadyrl.loop.rewards.combine import require_columns, score_texts
from steadyrl.loop.tasks.attempts import Say, always, episode_lines, impossible_calls, looping, score_attempts, scripted
from steadyrl.loop.tasks.checked import CheckedTask, check, offers, open_to_check
from steadyrl.loop.tasks.data_line import data_counts, data_line

GOLD_AT_LEAST, EMPTY_AT_MOST = 0.8, 0.05
_ATTACKED = 100  # problems, of both splits, whose empty forms are scored
_EXAMPLE_EPISODES = 3  # played by rules, and shown
_CORE = "honest core"
_ROUNDING = 1e-9  # of means of equal rewards
_EXAMPLES = 3  # problems that fail, of as many as there may be
_HOSTILE = ("(", '"', "AND", "x" * 5000, "( " * 400, "\x00", "NOT NOT", "'; DROP TABLE documents; --", "a:b", "\ud800")
UNKNOWN = Unknown("the task knows none; give one to have it checked")


def check_task(config: Config) -> list[Finding]:
    """Check the task and the rewards of a config.

    Raises:
        SteadyError: The task cannot be built at all.
    """
    task, terms = open_to_check(config)
    train, heldout = list(plugins.problems_of(task, "train")), list(plugins.problems_of(task, "heldout"))
    require_columns(terms, "train", train)
    require_columns(terms, "heldout", heldout)
    checked = CheckedTask(config, task, terms, train, heldout)
    if not checked.problems:
        return split(checked)
    begin(f"scoring known answers to {counted(len(checked.problems), 'problem')}")
    return judged(CHECKS, checked)


@check("problems")
def split(checked: CheckedTask) -> Result:
    config, train, heldout = checked.config, checked.train, checked.heldout
    counts = data_counts(checked.task, train, heldout)
    counts["heldout"]["problems"] = min(len(heldout), config.evaluate.problems or len(heldout))
    message = data_line(counts)
    if not train:
        return Found("none", message=message)
    ids, held_ids = [p.id for p in train], [p.id for p in heldout]
    common = set(ids) & set(held_ids)
    duplicates = len(ids) + len(held_ids) - len(set(ids)) - len(set(held_ids))
    if common or duplicates:
        return Found("repeated", message=f"{message}; ids: {len(common)} in both, {duplicates} repeated")
    if heldout and counts["heldout"]["trained_on_too"] == len(heldout):
        return Found("copied", message=message)
    return Passed(message)  # a few copies are counted, and do no harm


@check("gold answer")
def gold_answer(checked: CheckedTask) -> Result:
    if isinstance(checked.task, Exact):
        golden = [rollout for _, rollout in checked.golden([*checked.train, *checked.heldout])]
        return _count_right(checked, "low", golden, "score 1", lambda score: score == 1)
    golden_pairs = checked.golden(checked.problems)
    bounds = GOLD_AT_LEAST, math.inf, f"at least {GOLD_AT_LEAST:g}"
    if isinstance(checked.task, ToolUsing):
        # Rewards of a user's environment have a scale of their own, and its expert shows a way, not always the best.
        with_expert = {problem.id for problem, _ in golden_pairs}
        empty = checked.scores([rollout for rollout in checked.empty if rollout.problem_id in with_expert])
        scores = [score for score in empty if score is not None]
        nothing = float(np.mean(scores)) if scores else EMPTY_AT_MOST
        bounds = nothing + _ROUNDING, math.inf, f"more than the {nothing:.3f} of an empty answer"
    result = _mean(checked, "low", [rollout for _, rollout in golden_pairs], *bounds)
    for kind in dict.fromkeys(problem.columns.get("kind") for problem, _ in golden_pairs):
        of_kind = [rollout for problem, rollout in golden_pairs if problem.columns.get("kind") == kind]
        kind_result = _mean(checked, "low", of_kind, *bounds)
        if isinstance(result, Passed) and isinstance(kind_result, Found):
            return Found(kind_result.cause, message=f"of '{kind}': {kind_result.message}")
    return result


@check("empty answer")
def empty_answer(checked: CheckedTask) -> Result:
    if isinstance(checked.task, Exact):
        empty = checked.answered([(problem, "") for problem in (*checked.train, *checked.heldout)])
        return _count_right(checked, "high", empty, "score 0", lambda score: score == 0)
    return _mean(checked, "high", checked.empty, -math.inf, EMPTY_AT_MOST, f"at most {EMPTY_AT_MOST:g}")


@check("wrong answer", offers(Exact))
def wrong_answer(checked: CheckedTask) -> Result:
    answers = [(p, text) for p in (*checked.train, *checked.heldout) if (text := checked.task.wrong(p)) is not None]
    return _count_right(checked, "right", checked.answered(answers), "score below 1", lambda score: score < 1)


def _count_right(
    checked: CheckedTask, cause: str, rollouts: Sequence[Rollout], expected: str, is_right: Callable[[float], bool]
) -> Result:
    """Count the answers that score as they must, and name the first that do not."""
    if not rollouts:
        return UNKNOWN
    problems = len(checked.train) + len(checked.heldout)
    scored = zip(rollouts, checked.scores(rollouts), strict=True)
    failures = [(r, score) for r, score in scored if score is None or not is_right(score)]
    message = f"{len(rollouts) - len(failures)} of {len(rollouts)} {expected}"
    if len(rollouts) < problems:
        message += f"; {problems - len(rollouts)} of {problems} problems have none"
    if not failures:
        return Passed(message)
    examples = [f"{r.problem_id} ({_score_text(r, score)})" for r, score in failures[:_EXAMPLES]]
    remainder = f" and {len(failures) - _EXAMPLES} more" if len(failures) > _EXAMPLES else ""
    return Found(cause, message=f"{message}; not: {', '.join(examples)}{remainder}")


def _score_text(rollout: Rollout, score: float | None) -> str:
    if score is None:
        return f"unscored: {rollout.unscored}"
    note = " ".join(rollout.note.split())
    return f"{score:.3f}: {note}" if note else f"{score:.3f}"


def _mean(
    checked: CheckedTask, cause: str, rollouts: Sequence[Rollout], low: float, high: float, expected: str
) -> Result:
    """Compare the mean with its bounds. Unscored answers are no evidence of health, so they fail."""
    if not rollouts:
        return UNKNOWN
    scores = checked.scores(rollouts)
    scored = [score for score in scores if score is not None]
    total = len(checked.train) + len(checked.heldout)
    coverage = f"; {len(checked.problems)} of {total} problems were checked" if len(checked.problems) < total else ""
    if len(scored) < len(scores):
        missing = f"{len(scores) - len(scored)} of {len(scores)} left unscored, expected none"
        return Found("unscored", message=missing + coverage)
    mean = float(np.mean(scored))
    message = f"mean {checked.task.metric or 'reward'} {mean:.3f}, expected {expected}{coverage}"
    return Passed(message) if low <= mean <= high else Found(cause, message=message)


@check("empty forms", offers(Attackable))
def empty_forms(checked: CheckedTask) -> Result:
    task, problems = checked.task, checked.problems[:: -(-len(checked.problems) // _ATTACKED)]
    forms = [{_CORE: task.honest_core(problem), **task.empty_forms(problem)} for problem in problems]
    paid: dict[str, float] = {}
    for form in forms[0]:
        rollouts = checked.answered([(p, texts[form]) for p, texts in zip(problems, forms, strict=True)])
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        if len(rewards) < len(rollouts):
            return Found("unscored", message=f"{len(rollouts) - len(rewards)} of {len(rollouts)} left unscored")
        paid[form] = float(np.mean(rewards))
    core = paid.pop(_CORE)
    above = sorted((form for form in paid if paid[form] > core + _ROUNDING), key=lambda form: -paid[form])
    message = f"{len(paid) - len(above)} of {len(paid)} are paid at most the {core:.3f} of the honest answer in them"
    if not above:
        return Passed(message)
    examples = ", ".join(f"'{form}' {paid[form]:.3f}" for form in above[:_EXAMPLES])
    return Found("paid", message=f"{message}; paid more: {examples}")


@check("scripted policy", offers(ToolUsing))
def scripted_policy(checked: CheckedTask) -> Result:
    rollouts = checked.scripted
    calls = [call for rollout in rollouts for turn in rollout.calls for call in turn]
    broken = [rollout.unscored for rollout in rollouts if rollout.unscored]
    failed = [call for call in calls if call.end != "ok"]
    turns = float(np.mean([len(rollout.turns) for rollout in rollouts]))
    scores = [score for score in checked.scores(rollouts) if score is not None]
    mean = f"mean {checked.task.metric or 'reward'} {np.mean(scores):.3f}" if scores else "none of them scored"
    message = f"{counted(len(rollouts), 'episode')} of {turns:.1f} turns on average, {mean}"
    if calls:
        ends = Counter(call.end for call in calls).most_common()
        message += f"; {counted(len(calls), 'call')}: {', '.join(f'{count} {end}' for end, count in ends)}"
    if failed:
        message += f"; the first: {failed[0].name}: {failed[0].result}"
    examples = tuple(line for i, r in enumerate(rollouts[:_EXAMPLE_EPISODES]) for line in episode_lines(i + 1, r))
    if broken:
        message += f"; {len(broken)} left unscored, the first: {broken[0]}"
        return Found("broken", message=message, evidence=examples)
    # A tool may raise for arguments out of the blue, but not for all of them.
    if any(call.end == "timeout" for call in calls) or (failed and len(failed) == len(calls)):
        return Found("calls_fail", message=message, evidence=examples)
    return Passed(message, examples)


@check("looping policy", offers(ToolUsing))
def looping_policy(checked: CheckedTask) -> Result:
    scripted_rewards = [rollout.reward for rollout in checked.scripted if rollout.reward is not None]
    limit = max(EMPTY_AT_MOST, float(np.mean(scripted_rewards)) if scripted_rewards else EMPTY_AT_MOST)
    rollouts = score_attempts(checked.task, [(p, looping(checked.task, p)) for p in checked.played], checked.terms)
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if len(rewards) < len(rollouts):
        first = next(r.unscored for r in rollouts if r.reward is None)
        return Found("broken", message=f"{len(rollouts) - len(rewards)} left unscored ({first})")
    mean = float(np.mean(rewards))
    turns = float(np.mean([len(rollout.turns) for rollout in rollouts]))
    message = f"mean reward {mean:.3f} for the same turn again and again, {turns:.1f} turns; expected at most {limit:g}"
    return Passed(message) if mean <= limit else Found("paid", message=message)


@check("hostile calls", offers(ToolUsing))
def hostile_calls(checked: CheckedTask) -> Result:
    problem = checked.problems[0]
    turns = impossible_calls(checked.task, problem)
    rollouts = score_attempts(checked.task, [(problem, always(turn)) for turn in turns], checked.terms)
    return _all_scored(f"{len(turns)} turns with calls that cannot be made", "broken", rollouts)


@check("scoring repeats")
def scoring_repeats(checked: CheckedTask) -> Result:
    # A second, newly built task, so that no cache can answer.
    new_task, new_terms = open_to_check(checked.config)
    task, terms, problems = checked.task, checked.terms, checked.problems
    # Episodes take long, and a few of them show whether scoring repeats.
    if isinstance(new_task, ToolUsing):
        first, second = (
            score_attempts(opened, [(p, scripted(opened, p)) for p in problems[:20]], rewards)  # type: ignore[arg-type]
            for opened, rewards in ((task, terms), (new_task, new_terms))
        )
    elif isinstance(new_task, Interactive):
        golden = checked.golden(problems[:50])
        first = [rollout for _, rollout in golden]
        second = score_attempts(new_task, [(p, _echo(r.turns)) for p, r in golden], new_terms)
    else:
        answers = [(p, new_task.gold(p) or p.prompt) for p in problems[:50]]
        first, second = score_texts(answers, terms), score_texts(answers, new_terms)
    differing = sum(a != b for a, b in zip(checked.scores(first), checked.scores(second), strict=True))
    message = f"{differing} of {counted(len(first), 'answer')} scored differently"
    return Found("differs", message=message) if differing else Passed(message)


def _echo(turns: Sequence[str]) -> Say:
    return lambda episode, turn: turns[turn] if turn < len(turns) else None


@check("hostile answers")
def hostile_answers(checked: CheckedTask) -> Result:
    rollouts = checked.answered([(checked.problems[0], text) for text in _HOSTILE])
    return _all_scored(f"{len(_HOSTILE)} malformed answers", "unscored", rollouts)


def _all_scored(message: str, cause: str, rollouts: Sequence[Rollout]) -> Result:
    reasons = [rollout.unscored for rollout in rollouts if rollout.unscored]
    message += f", {len(reasons)} left unscored"
    return Found(cause, message=f"{message} ({reasons[0]})") if reasons else Passed(message)


CHECKS: Sequence[Check[CheckedTask]] = (
    split, gold_answer, empty_answer, wrong_answer, empty_forms, scripted_policy, looping_policy, hostile_calls,
    scoring_repeats, hostile_answers,
)  # fmt: skip
