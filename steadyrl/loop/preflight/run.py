"""Look at a session before any budget is spent: on a few prompts, everything that a run stands on, causes named.

``preflight`` leaves the session as it was: same weights, same optimizer, same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from steadyrl.core.config import in_force
from steadyrl.core.types import Finding, Rollout
from steadyrl.loop.preflight.forecast import forecast, memory_now
from steadyrl.loop.preflight.parity import reference_parity, sampled_entropy, sampler_parity
from steadyrl.loop.preflight.plan import schedule, targets
from steadyrl.loop.preflight.trial import Trial, advice_for_signal, begin_trial, gold_rollouts, silent
from steadyrl.loop.preflight.trial_updates import make_trial_updates
from steadyrl.loop.rewards.combine import score_texts
from steadyrl.loop.tasks.data_line import data_counts, data_line
from steadyrl.loop.train import Session

UNSCORED_AT_MOST = 0.2  # a judge or an engine that fails more often is broken, not unlucky
TRUNCATED_AT_MOST = 0.98
# SmolLM2 learns sums from answers of which two thirds are empty. A prompt that is closed leaves hardly any text.
EMPTY_AT_MOST = 0.9
MARKS: Mapping[str, str] = {"ok": "ok  ", "found": "FAIL", "unknown": "?   "}


def preflight(session: Session, phase: Callable[[str], None] = silent) -> list[Finding]:
    """Sample a few prompts, make a few updates and take them back; judge what is seen.

    Args:
        session: What is looked at.
        phase: Called with a line when something longer begins.

    Returns:
        Findings in the order of a step, then time, memory and disk of the whole run.

    Raises:
        SteadyError: The session cannot make a step at all, for a reason of its settings.
    """
    before = memory_now()
    trial = begin_trial(session, phase)
    findings = [
        data(session),
        schedule(session),
        targets(trial),
        completions(trial),
        rewards(trial),
        gold_answer(trial),
        sampler_parity(trial),
        sampled_entropy(trial),
        reference_parity(trial),
    ]
    updates = make_trial_updates(trial, phase)
    findings += [*updates.findings, *forecast(trial, updates, before)]
    # Advice that is followed already would send its reader in a circle.
    return [replace(f, overrides=tuple(o for o in f.overrides if not in_force(session.config, o))) for f in findings]


def fails(finding: Finding) -> bool:
    """Return whether a run should not begin with what was found; a warning is said and stops nothing."""
    return finding.state == "found" and finding.severity == "critical"


def _warns(finding: Finding) -> bool:
    return finding.state == "found" and not fails(finding)


def summary_line(findings: Sequence[Finding]) -> str:
    """Return one line: how many passed, what failed and why, how long the run will take."""
    failed, warned = (
        [f"{finding.check} ({finding.cause})" for finding in findings if of_kind(finding)]
        for of_kind in (fails, _warns)
    )
    unknown = [finding.check for finding in findings if finding.state == "unknown"]
    passed = [finding for finding in findings if finding.state == "ok"]
    parts = [f"{len(passed)} of {len(findings)} passed"]
    parts += [f"FAILED: {', '.join(failed)}"] if failed else []
    parts += [f"warnings: {', '.join(warned)}"] if warned else []
    parts += [f"could not tell: {', '.join(unknown)}"] if unknown else []
    parts += [f"the run takes {finding.message.partition(':')[0]}" for finding in passed if finding.check == "time"]
    return "preflight: " + "; ".join(parts)


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as lines for a terminal, with causes and remedies."""
    lines = []
    for finding in findings:
        lines.append(f"{'warn' if _warns(finding) else MARKS[finding.state]}  {finding.check}: {finding.message}")
        lines += [f"        cause: {finding.cause}"] if finding.cause else []
        lines += [f"        remedy: {finding.remedy}"] if finding.remedy else []
        lines += [f"        try: {override}" for override in finding.overrides]
    return lines


def data(session: Session) -> Finding:
    """Say what is trained on and what judges."""
    return Finding("data", state="ok", message=data_line(data_counts(session.task, session.problems, session.heldout)))


def completions(trial: Trial) -> Finding:
    """Judge how completions end, and whether they say anything."""
    name, ends_with = "completions", trial.session.backend.tokenizer.end_ids
    rollouts = _rollouts(trial)
    ends = {id(r): _ends(r, ends_with) for r in rollouts}
    # An episode that ran out of turns has stop_reason "length", though each of its turns may have ended as it should.
    truncated = _share(r.stop_reason == "length" and not ends[id(r)] for r in rollouts)
    empty = _share(not r.text.strip() for r in rollouts)
    ended = _share(ends.values())
    beyond = _share(_goes_on(r, ends_with) for r in rollouts)
    tokens = float(np.mean([r.length for r in rollouts]))
    message = (
        f"{len(rollouts)} of {tokens:.1f} tokens on average: {truncated:.0%} truncated, {ended:.0%} ended by an "
        f"end token, {empty:.0%} empty"
    )
    limit = trial.session.sampling.max_new_tokens
    if beyond:
        return Finding(
            name,
            "critical",
            message=f"{message}; {beyond:.0%} go on after it: text that nobody reads is trained",
            cause="text_after_end",
            remedy="stop each completion at the first of the tokenizer's end tokens",
        )
    may_stop = bool(trial.session.sampling.stop)  # at a string, without an end token
    if not may_stop and any(r.stop_reason == "stop" and not ends[id(r)] for r in rollouts):
        return Finding(
            name,
            "critical",
            message=f"{message}; some stopped without it: the end of the text is not trained",
            cause="end_token_missing",
            remedy="leave the end token in the completion",
        )
    if trial.session.algorithm.source == "demonstrations":
        return Finding(name, state="ok", message=f"{message}; good answers are imitated, however the policy's own end")
    if truncated > TRUNCATED_AT_MOST:
        return Finding(
            name,
            "critical",
            message=f"{message}; the limit is {limit} tokens",
            cause="never_ends",
            remedy=f"allow longer completions{_or_template(trial)}",
            overrides=(f"sampling.max_new_tokens={2 * limit}", "model.chat_template=auto"),
        )
    if empty > EMPTY_AT_MOST:
        return Finding(
            name,
            "critical",
            message=message,
            cause="empty",
            remedy=f"see that prompts end where an answer begins: an end token closes them{_or_template(trial)}",
            overrides=("model.chat_template=auto",),
        )
    return Finding(name, state="ok", message=message)


def _or_template(trial: Trial) -> str:
    """Return what else may help where the model's chat template is not in use."""
    config = trial.session.config
    return "" if in_force(config, "model.chat_template=auto") else "; the model's chat template teaches it where to end"


def _ends(rollout: Rollout, end_ids: tuple[int, ...]) -> bool:
    """Return whether the policy's last token ends its text."""
    return bool(np.isin(rollout.completion_ids[rollout.completion_mask][-1:], end_ids).any())


def _goes_on(rollout: Rollout, end_ids: tuple[int, ...]) -> bool:
    """Return whether the policy's own tokens stand behind an end of its text; what the environment answers may."""
    ids, mask = rollout.completion_ids, rollout.completion_mask
    return bool((np.isin(ids[:-1], end_ids) & mask[:-1] & mask[1:]).any())


def rewards(trial: Trial) -> Finding:
    """Judge whether the rewards can teach: had at all, and different where the algorithm compares them."""
    name, rollouts = "rewards", _rollouts(trial)
    scores = [r.reward for r in rollouts if r.reward is not None]
    unscored = 1 - len(scores) / len(rollouts)
    reasons = [r.unscored for r in rollouts if r.unscored]
    message = f"{len(scores)} of {len(rollouts)} rollouts scored"
    if unscored > UNSCORED_AT_MOST:
        return Finding(
            name,
            "critical",
            message=f"{message}; the first reason: {reasons[0]}",
            cause="unscored",
            remedy="fix the reward (or its service)",
        )
    message += f", mean {np.mean(scores):.4g}, standard deviation {np.std(scores):.3g}"
    if trial.session.algorithm.source == "demonstrations":
        return Finding(
            name, state="ok", message=f"{message}; good answers are imitated, whatever the policy's own earn"
        )
    if len(set(scores)) == 1:
        return Finding(
            name,
            "critical",
            message=f"{message}: all are {scores[0]:g}; what fewer than {3 / len(scores):.0%} of answers earn may not "
            "show",
            cause="constant",
            remedy="take easier problems, a reward with more than two values, or a better starting policy",
        )
    if trial.session.config.rollout.samples_per_prompt == 1:
        return Finding(name, state="ok", message=message)
    signal = _share(len({r.reward for r in group.rollouts} - {None}) > 1 for group in trial.groups)
    message += f"; {signal:.0%} of {len(trial.groups)} groups have different rewards"
    if signal:
        return Finding(name, state="ok", message=message)
    remedy, overrides = advice_for_signal(trial)
    return Finding(
        name,
        "critical",
        message=f"{message}: the reward depends on the problem alone",
        cause="no_signal",
        remedy=remedy,
        overrides=overrides,
    )


def gold_answer(trial: Trial) -> Finding:
    """Compare what a known good answer earns with what an empty one does."""
    name, session = "gold_answer", trial.session
    answers = gold_rollouts(trial)
    if not answers:
        return Finding(name, state="unknown", message="the task knows no good answers")
    gold, empty = [r for _, r in answers], score_texts([(p, "") for p, _ in answers], session.terms)
    pairs = [(g, e) for g, e in zip(gold, empty, strict=True) if g.reward is not None and e.reward is not None]
    if not pairs:
        return Finding(
            name, state="unknown", message=f"none of {len(answers)} good answers could be scored: {gold[0].unscored}"
        )
    means = [float(np.mean([r.reward for r in side])) for side in zip(*pairs, strict=True)]
    message = f"good answers earn {means[0]:.4g}, empty ones {means[1]:.4g}, mean of {len(pairs)} problems"
    message += f" ({len(answers) - len(pairs)} more unscored)" if len(answers) > len(pairs) else ""
    if means[0] > means[1]:
        return Finding(name, state="ok", message=message)
    return Finding(
        name,
        "critical",
        message=f"{message}{_against(session, pairs)}",
        cause="empty_wins",
        remedy="weigh the rewards so that a good answer earns more than none; as it is, silence is the best policy",
    )


def _against(session: Session, pairs: Sequence[tuple[Rollout, Rollout]]) -> str:
    """Name the reward that pays the empty answer most, beside the good one."""
    extra = {}
    for term in session.terms:
        parts = [(g.parts, e.parts) for g, e in pairs if term.name in g.parts and term.name in e.parts]
        gains = [term.weight * (empty[term.name] - gold[term.name]) for gold, empty in parts]
        extra[term.name] = float(np.mean(gains)) if gains else 0.0
    most = max(extra, key=lambda name: extra[name])
    return f"; '{most}' pays the empty answer {extra[most]:.3g} more" if extra[most] > 0 else ""


def _rollouts(trial: Trial) -> list[Rollout]:
    return [rollout for group in trial.groups for rollout in group.rollouts]


def _share(truths: Iterable[bool]) -> float:
    return float(np.mean(list(truths)))
