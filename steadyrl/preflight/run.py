"""Look at a session before any budget is spent: on a few prompts, everything that a run stands on, causes named.

``preflight`` leaves the session as it was: same weights, same optimizer, same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from steadyrl.preflight.forecast import forecast, memory_now
from steadyrl.preflight.parity import reference_parity, sampled_entropy, sampler_parity
from steadyrl.preflight.trial import Trial, Verdict, begin_trial, silent
from steadyrl.preflight.trial_updates import make_trial_updates
from steadyrl.rewards.combine import score_texts
from steadyrl.train import Session
from steadyrl.types import Rollout

UNSCORED_AT_MOST = 0.2  # a judge or an engine that fails more often is broken, not unlucky
TRUNCATED_AT_MOST, EMPTY_AT_MOST = 0.98, 0.5
_GOLD_PROBLEMS = 64
_MARKS = {True: "ok  ", False: "FAIL", None: "?   "}


def preflight(session: Session, phase: Callable[[str], None] = silent) -> list[Verdict]:
    """Sample a few prompts, make a few updates and take them back; judge what is seen.

    Args:
        session: What is looked at.
        phase: Called with a line when something longer begins.

    Returns:
        Verdicts in the order of a step, then time, memory and disk of the whole run.

    Raises:
        SteadyError: The session cannot make a step at all, for a reason of its settings.
    """
    before = memory_now()
    trial = begin_trial(session, phase)
    verdicts = [
        completions(trial),
        rewards(trial),
        gold_answer(trial),
        sampler_parity(trial),
        sampled_entropy(trial),
        reference_parity(trial),
    ]
    updates = make_trial_updates(trial, phase)
    return [*verdicts, *updates.verdicts, *forecast(trial, updates, before)]


def summary_line(verdicts: Sequence[Verdict]) -> str:
    """Return one line: how many passed, what failed and why, how long the run will take."""
    failed = [f"{v.name} ({v.cause})" for v in verdicts if v.passed is False]
    unknown = [v.name for v in verdicts if v.passed is None]
    parts = [f"{sum(v.passed is True for v in verdicts)} of {len(verdicts)} passed"]
    parts += [f"FAILED: {', '.join(failed)}"] if failed else []
    parts += [f"could not tell: {', '.join(unknown)}"] if unknown else []
    parts += [f"the run takes {v.message.partition(':')[0]}" for v in verdicts if v.name == "time" and v.passed]
    return "preflight: " + "; ".join(parts)


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return verdicts as lines for a terminal, with causes and remedies."""
    lines = []
    for verdict in verdicts:
        lines.append(f"{_MARKS[verdict.passed]}  {verdict.name}: {verdict.message}")
        if verdict.cause:
            lines += [f"        cause: {verdict.cause}", f"        remedy: {verdict.remedy}"]
        lines += [f"        try: {override}" for override in verdict.overrides]
    return lines


def completions(trial: Trial) -> Verdict:
    """Judge how completions end, and whether they say anything."""
    name, ends_with = "completions", trial.session.backend.tokenizer.end_ids
    rollouts = _rollouts(trial)
    ends = {id(r): _ends(r, ends_with) for r in rollouts}
    # An episode that ran out of turns has stop_reason "length", though each of its turns may have ended as it should.
    truncated = _share(r.stop_reason == "length" and not ends[id(r)] for r in rollouts)
    empty = _share(not r.text for r in rollouts)
    ended = _share(ends.values())
    beyond = _share(_goes_on(r, ends_with) for r in rollouts)
    tokens = float(np.mean([len(r.completion_ids) for r in rollouts]))
    message = (
        f"{len(rollouts)} of {tokens:.1f} tokens on average: {truncated:.0%} truncated, {ended:.0%} ended by an "
        f"end token, {empty:.0%} empty"
    )
    limit = trial.session.sampling.max_new_tokens
    if beyond:
        return Verdict(
            name,
            False,
            f"{message}; {beyond:.0%} go on after it: text that nobody reads is trained",
            "text_after_end",
            "stop each completion at the first of the tokenizer's end tokens",
        )
    if any(r.stop_reason == "stop" and not ends[id(r)] for r in rollouts):
        return Verdict(
            name,
            False,
            f"{message}; some stopped without it: the end of the text is not trained",
            "end_token_missing",
            "leave the end token in the completion",
        )
    if truncated > TRUNCATED_AT_MOST:
        return Verdict(
            name,
            False,
            f"{message}; the limit is {limit} tokens",
            "never_ends",
            "allow longer completions, or use the model's chat template, which teaches it where to end",
            (f"sampling.max_new_tokens={2 * limit}", "model.chat_template=auto"),
        )
    if empty > EMPTY_AT_MOST:
        return Verdict(
            name,
            False,
            message,
            "empty",
            "see that prompts end where an answer begins: an end token or a missing template closes them",
            ("model.chat_template=auto",),
        )
    return Verdict(name, True, message)


def _ends(rollout: Rollout, end_ids: tuple[int, ...]) -> bool:
    """Return whether the policy's last token ends its text."""
    return bool(np.isin(rollout.completion_ids[rollout.completion_mask][-1:], end_ids).any())


def _goes_on(rollout: Rollout, end_ids: tuple[int, ...]) -> bool:
    """Return whether the policy's own tokens stand behind an end of its text; what the environment answers may."""
    ids, mask = rollout.completion_ids, rollout.completion_mask
    return bool((np.isin(ids[:-1], end_ids) & mask[:-1] & mask[1:]).any())


def rewards(trial: Trial) -> Verdict:
    """Judge whether the rewards can teach: had at all, and different where the algorithm compares them."""
    name, rollouts = "rewards", _rollouts(trial)
    known = [r.reward for r in rollouts if r.reward is not None]
    unscored = 1 - len(known) / len(rollouts)
    reasons = [r.unscored for r in rollouts if r.unscored]
    message = f"{len(known)} of {len(rollouts)} rollouts scored"
    if unscored > UNSCORED_AT_MOST:
        return Verdict(
            name, False, f"{message}; the first reason: {reasons[0]}", "unscored", "fix the reward (or its service)"
        )
    message += f", mean {np.mean(known):.4g}, standard deviation {np.std(known):.3g}"
    if trial.session.algorithm.source == "demonstrations":
        return Verdict(name, True, f"{message}; good answers are imitated, whatever the policy's own earn")
    if len(set(known)) == 1:
        return Verdict(
            name,
            False,
            # None seen in n draws: with 95 % confidence its share is below 3 / n.
            f"{message}: all are {known[0]:g}; what fewer than {3 / len(known):.0%} of answers earn may not show",
            "constant",
            "take easier problems, a reward with more than two values, or a better starting policy",
        )
    if trial.session.config.rollout.samples_per_prompt == 1:
        return Verdict(name, True, message)
    signal = _share(len({r.reward for r in group.rollouts} - {None}) > 1 for group in trial.groups)
    message += f"; {signal:.0%} of {len(trial.groups)} groups have different rewards"
    if signal:
        return Verdict(name, True, message)
    return Verdict(
        name,
        False,
        f"{message}: the reward depends on the problem alone",
        "no_signal",
        "draw more samples per problem, at a higher temperature if they are alike",
        (f"rollout.samples_per_prompt={4 * trial.session.config.rollout.samples_per_prompt}",),
    )


def gold_answer(trial: Trial) -> Verdict:
    """Compare what a known good answer earns with what an empty one does."""
    name, session = "gold_answer", trial.session
    problems = list({p.id: p for p in (group.problem for group in trial.groups)}.values())[:_GOLD_PROBLEMS]
    golds = [(problem, session.task.gold(problem)) for problem in problems]
    answers = [(problem, text) for problem, text in golds if text is not None]
    if not answers:
        return Verdict(name, None, "the task knows no good answers")
    gold, empty = score_texts(answers, session.terms), score_texts([(p, "") for p, _ in answers], session.terms)
    pairs = [(g, e) for g, e in zip(gold, empty, strict=True) if g.reward is not None and e.reward is not None]
    if not pairs:
        return Verdict(name, None, f"none of {len(answers)} good answers could be scored: {gold[0].unscored}")
    means = [float(np.mean([r.reward for r in side])) for side in zip(*pairs, strict=True)]
    message = f"good answers earn {means[0]:.4g}, empty ones {means[1]:.4g}, mean of {len(pairs)} problems"
    message += f" ({len(answers) - len(pairs)} more unscored)" if len(answers) > len(pairs) else ""
    if means[0] > means[1]:
        return Verdict(name, True, message)
    return Verdict(
        name,
        False,
        f"{message}{_against(session, pairs)}",
        "empty_wins",
        "weigh the rewards so that a good answer earns more than none; as it is, silence is the best policy",
    )


def _against(session: Session, pairs: Sequence[tuple[Rollout, Rollout]]) -> str:
    """Name the reward that pays the empty answer most, beside the good one."""
    extra = {}
    for term in session.terms:
        both = [(g.parts, e.parts) for g, e in pairs if term.name in g.parts and term.name in e.parts]
        gains = [term.weight * (empty[term.name] - gold[term.name]) for gold, empty in both]
        extra[term.name] = float(np.mean(gains)) if gains else 0.0
    most = max(extra, key=lambda name: extra[name])
    return f"; '{most}' pays the empty answer {extra[most]:.3g} more" if extra[most] > 0 else ""


def _rollouts(trial: Trial) -> list[Rollout]:
    return [rollout for group in trial.groups for rollout in group.rollouts]


def _share(truths: Iterable[bool]) -> float:
    return float(np.mean(list(truths)))
