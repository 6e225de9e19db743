"""Look at a session before any budget is spent: on a few prompts, everything that a run stands on, causes named.

``preflight`` leaves the session as it was: same weights, same optimizer, same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steadyrl.backends.torch.device_memory import memory_now
from steadyrl.core.config import Config, dump, in_force
from steadyrl.core.types import Finding, Rollout
from steadyrl.core.words import counted, percent
from steadyrl.doctor.check import Check, Found, Passed, Result, Unknown, judged
from steadyrl.doctor.checks.kl import LEAST_SEQUENCE
from steadyrl.doctor.checks.kl_control import LEAST_TARGET, target_in
from steadyrl.doctor.checks.plan import LEAST, rate_not_reached
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.remedies import Value
from steadyrl.doctor.series import RawLog, Run
from steadyrl.loop.autopilot.band import narrowed_band
from steadyrl.loop.checkpoint import PilotState
from steadyrl.loop.preflight.forecast import COSTS, Measured
from steadyrl.loop.preflight.parity import reference_parity, sampled_entropy, sampler_parity
from steadyrl.loop.preflight.trial import Trial, begin_trial, check, gold_rollouts, more_signal, silent
from steadyrl.loop.preflight.trial_updates import UPDATE_CHECKS, make_trial_updates
from steadyrl.loop.rewards.combine import score_texts
from steadyrl.loop.tasks.data_line import data_counts, data_line
from steadyrl.loop.train import Session

UNSCORED_AT_MOST = 0.2  # a judge or an engine that fails more often is broken, not unlucky
TRUNCATED_AT_MOST = 0.98
# SmolLM2 learns sums from answers of which two thirds are empty. A prompt that is closed leaves hardly any text.
EMPTY_AT_MOST = 0.9
MARKS: Mapping[str, str] = {"ok": "ok  ", "found": "FAIL", "unknown": "?   "}
ROOM = 3.0  # steps at the lower end of the autopilot's band that a target for the whole run should leave
FALLEN_BY, HARDLY = 0.8, 0.1  # of a run: by then its schedule is over, and this share of the rate remains


def preflight(session: Session, phase: Callable[[str], None] = silent) -> list[Finding]:
    """Sample a few prompts, make a few updates and take them back; judge what is seen.

    Returns:
        Findings in the order of a step, then time, memory and disk of the whole run.

    Raises:
        SteadyError: The session cannot make a step at all, for a reason of its settings.
    """
    before = memory_now()
    trial = begin_trial(session, phase)
    findings = judged(BEFORE_UPDATES, trial)
    updates = make_trial_updates(trial, phase)
    findings += [*updates.findings, *judged(COSTS, Measured(trial, updates, before, memory_now()))]
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
    sentences = [f"{len(passed)} of {len(findings)} passed"]
    sentences += [f"FAILED: {', '.join(failed)}"] if failed else []
    sentences += [f"warnings: {', '.join(warned)}"] if warned else []
    sentences += [f"could not tell: {', '.join(unknown)}"] if unknown else []
    sentences += [f"the run takes {finding.message.partition(':')[0]}" for finding in passed if finding.check == "time"]
    return "preflight: " + "; ".join(sentences)


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as lines for a terminal, with causes and remedies."""
    lines = []
    for finding in findings:
        lines.append(f"{'warn' if _warns(finding) else MARKS[finding.state]}  {finding.check}: {finding.message}")
        lines += [f"        cause: {finding.cause}"] if finding.cause else []
        lines += [f"        remedy: {finding.remedy}"] if finding.remedy else []
        lines += [f"        try: {override}" for override in finding.overrides]
    return lines


@check("data")
def data(trial: Trial) -> Result:
    session = trial.session
    return Passed(data_line(data_counts(session.task, session.problems, session.heldout)))


@check("completions")
def completions(trial: Trial) -> Result:
    end_ids, sampling = trial.session.backend.tokenizer.end_ids, trial.session.sampling
    rollouts = _rollouts(trial)
    ends = {id(r): bool(np.isin(r.completion_ids[r.completion_mask][-1:], end_ids).any()) for r in rollouts}
    # An episode that ran out of turns has stop_reason "length", though each of its turns may have ended as it should.
    truncated = _share(r.stop_reason == "length" and not ends[id(r)] for r in rollouts)
    empty = _share(not r.text.strip() for r in rollouts)
    ended = _share(ends.values())
    # The policy's own tokens behind an end of its text; what the environment answers may stand there.
    past_end = _share(
        bool((np.isin(r.completion_ids[:-1], end_ids) & r.completion_mask[:-1] & r.completion_mask[1:]).any())
        for r in rollouts
    )
    tokens = float(np.mean([r.length for r in rollouts]))
    message = (
        f"{len(rollouts)} of {tokens:.1f} tokens on average: {percent(truncated)} truncated, {percent(ended)} ended by "
        f"an end token, {percent(empty)} empty"
    )
    if past_end:
        return Found(
            "text_after_end",
            message=f"{message}; {percent(past_end)} go on after it: text that nobody reads is trained",
        )
    # A stop string ends a completion without an end token.
    if not sampling.stop and any(r.stop_reason == "stop" and not ends[id(r)] for r in rollouts):
        return Found(
            "end_token_missing", message=f"{message}; some stopped without it: the end of the text is not trained"
        )
    if trial.session.algorithm.source == "demonstrations":
        return Passed(f"{message}; good answers are imitated, however the policy's own end")
    change: dict[str, Value] = {"model.chat_template": "auto"}
    if truncated > TRUNCATED_AT_MOST:
        limit = sampling.max_new_tokens
        change = {"sampling.max_new_tokens": 2 * limit, **change}
        finding = _ill_ended(trial, "never_ends", f"{message}; the limit is {limit} tokens", change)
        # Answers that are cut off teach all the same, where their rewards differ: often the first thing is to end.
        return replace(finding, severity="warning") if isinstance(rewards.find(trial), Passed) else finding
    return _ill_ended(trial, "empty", message, change) if empty > EMPTY_AT_MOST else Passed(message)


def _ill_ended(trial: Trial, cause: str, message: str, change: Mapping[str, Value]) -> Found:
    """Return a finding for whose cause the model's chat template may help, where the template is not in use."""
    remedy = completions.cause(cause).remedy
    if not in_force(trial.session.config, "model.chat_template=auto"):
        remedy += " The model's chat template teaches it where to end."
    return Found(cause, message=message, remedy=remedy, change=change)


@check("rewards")
def rewards(trial: Trial) -> Result:
    rollouts = _rollouts(trial)
    scores = [r.reward for r in rollouts if r.reward is not None]
    unscored = 1 - len(scores) / len(rollouts)
    message = f"{len(scores)} of {counted(len(rollouts), 'rollout')} scored"
    if unscored > UNSCORED_AT_MOST:
        reason = next(r.unscored for r in rollouts if r.unscored)
        return Found("unscored", message=f"{message}; the first reason: {reason}")
    message += f", mean {np.mean(scores):.4g}, standard deviation {np.std(scores):.3g}"
    if trial.session.algorithm.source == "demonstrations":
        return Passed(f"{message}; good answers are imitated, whatever the policy's own earn")
    if len(set(scores)) == 1:
        rare = f"what fewer than {percent(3 / len(scores))} of answers earn may not show"
        return Found("constant", message=f"{message}: all are {scores[0]:g}; {rare}")
    if trial.session.config.rollout.samples_per_prompt == 1:
        return Passed(message)
    signal = _share(len({r.reward for r in group.rollouts} - {None}) > 1 for group in trial.groups)
    message += f"; {percent(signal)} of {len(trial.groups)} groups have different rewards"
    if signal:
        return Passed(message)
    message += ": the reward depends on the problem alone"
    return Found("no_signal", message=message, change=more_signal(trial))


@check("gold_answer")
def gold_answer(trial: Trial) -> Result:
    session, answers = trial.session, gold_rollouts(trial)
    if not answers:
        return Unknown("the task knows no good answers")
    gold, empty = [r for _, r in answers], score_texts([(p, "") for p, _ in answers], session.terms)
    pairs = [(g, e) for g, e in zip(gold, empty, strict=True) if g.reward is not None and e.reward is not None]
    if not pairs:
        return Unknown(f"none of {counted(len(answers), 'good answer')} could be scored: {gold[0].unscored}")
    means = [float(np.mean([r.reward for r in side])) for side in zip(*pairs, strict=True)]
    message = f"good answers earn {means[0]:.4g}, empty ones {means[1]:.4g}, mean of {counted(len(pairs), 'problem')}"
    message += f" ({len(answers) - len(pairs)} more unscored)" if len(answers) > len(pairs) else ""
    if means[0] > means[1]:
        return Passed(message)
    return Found("empty_wins", message=f"{message}{_worst_reward(session, pairs)}")


def _worst_reward(session: Session, pairs: Sequence[tuple[Rollout, Rollout]]) -> str:
    """Name the reward that pays the empty answer most, beside the good one."""
    gains_by_term = {}
    for term in session.terms:
        component_pairs = [(g.parts, e.parts) for g, e in pairs if term.name in g.parts and term.name in e.parts]
        gains = [term.weight * (empty[term.name] - gold[term.name]) for gold, empty in component_pairs]
        gains_by_term[term.name] = float(np.mean(gains)) if gains else 0.0
    worst = max(gains_by_term, key=lambda name: gains_by_term[name])
    return f"; '{worst}' pays the empty answer {gains_by_term[worst]:.3g} more" if gains_by_term[worst] > 0 else ""


def _rollouts(trial: Trial) -> list[Rollout]:
    return [rollout for group in trial.groups for rollout in group.rollouts]


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean(list(flags)))


@check("schedule")
def schedule(trial: Trial) -> Result:
    config = trial.session.config
    update, steps = config.update, config.run.steps
    run = _planned(config)
    ill_planned = rate_not_reached.find(run)
    if isinstance(ill_planned, Found):
        if steps < LEAST:
            return Passed(f"{ill_planned.message}; so few steps are a trial")
        change = {run.keys[name]: value for name, value in (ill_planned.change or {}).items()}
        return replace(ill_planned, severity="warning", change=change)
    if update.schedule != "constant" and 0 < update.schedule_steps <= update.warmup_steps:
        return Found(
            "never_falls",
            "warning",
            message=f"update.schedule = '{update.schedule}' falls over {counted(update.schedule_steps, 'step')}, and "
            f"the warm-up takes {update.warmup_steps}: the rate stays where the warm-up brought it",
            change={"update.schedule_steps": steps},
        )
    rates = [update.rate(step, steps) for step in (0, min(update.warmup_steps, steps - 1), steps - 1)]
    first, full, last = (f"{rate:.3g}" for rate in rates)
    message = f"the learning rate goes from {first} at the first step to {full}, and is {last} at the last of {steps}"
    if 0 < update.schedule_steps <= FALLEN_BY * steps and rates[2] <= HARDLY * update.learning_rate:
        ends = f"update.schedule_steps ends the schedule at step {update.schedule_steps}, and that rate stays"
        return Found("falls_early", "warning", message=f"{message}: {ends}", change={"update.schedule_steps": steps})
    return Passed(message)


@check("targets")
def targets(trial: Trial) -> list[Result]:
    results = [_reward(trial), _solved(trial), _kl_ref(trial), _kl_control(trial), _patience(trial.session.config)]
    return results if any(results) else [Passed("none is set")]


def _planned(config: Config) -> Run:
    return identify(RawLog("the plan", "steadyrl", {}, flat_settings(dump(config))))


def _reward(trial: Trial) -> Result:
    target = trial.session.config.run.target
    if target is None:
        return None
    rewards = [reward for group in trial.groups for reward in group.rewards]
    mean = float(np.mean(rewards)) if rewards else -np.inf
    if mean >= target:
        message = f"run.target is {target:g}, and the policy earns {mean:.4g} before it trains: the run ends at once"
        return Found("reward_met", "warning", message=message)
    return _earned(trial, "run.target", "reward", target, "", np.mean)


def _solved(trial: Trial) -> Result:
    solved, metric = trial.session.config.evaluate.solved, trial.session.task.metric
    return None if solved is None else _earned(trial, "evaluate.solved", "solved", solved, metric, max)


def _earned(
    trial: Trial, key: str, cause: str, target: float, metric: str, combine: Callable[[list[float]], Any]
) -> Result:
    """Judge whether anything that is known earns as much as a setting asks for.

    Args:
        trial: Its completions and good answers.
        key: The setting.
        cause: Of a finding.
        target: What the setting asks for.
        metric: The part of the reward that is compared; "" for the whole.
        combine: Of the best completions of the problems, and of the good answers, which number counts.
    """

    def values(rollouts: Iterable[Rollout]) -> list[float]:
        earned = (rollout.parts.get(metric) if metric else rollout.reward for rollout in rollouts)
        return [value for value in earned if value is not None]

    best_of_each = [max(values(group.rollouts)) for group in trial.groups if values(group.rollouts)]
    best = float(combine(best_of_each)) if best_of_each else -np.inf
    golds = values(rollout for _, rollout in gold_rollouts(trial))
    message = f"{key} is {target:g}; the best completion of each problem earns {best:.4g} now"
    if not golds:
        message += ", and good answers are not known"
        return Passed(message) if target <= best else Unknown(message)
    gold = float(combine(golds))
    message += f", and good answers {gold:.4g}"
    if target <= max(best, gold):
        return Passed(message)
    change = {key: float(f"{max(best, gold):.2g}")}
    return Found(cause, "warning", message=f"{message}: nothing that is known earns as much", change=change)


def _kl_ref(trial: Trial) -> Result:
    config, entropy, mask = trial.session.config, trial.scores.entropy, trial.batch.completion_mask
    target = config.autopilot.kl_ref_target
    if not target or config.autopilot.mode == "off":
        return None
    length = float(mask.sum() / len(mask))
    first_step = {"completion/length": length, "entropy": None if entropy is None else float(entropy[mask].mean())}
    step = narrowed_band(PilotState(), first_step, config).low * length
    message = (
        f"autopilot.kl_ref_target is {target:g} nats/sequence, and one step at the lower end of the autopilot's band "
        f"moves the policy by {step:.3g}"
    )
    if target >= step:
        return _kl_beyond(trial, target, message, "autopilot.kl_ref_target") or Passed(message)
    change = {"autopilot.kl_ref_target": float(f"{ROOM * step:.2g}")}
    return Found("kl_ref", "warning", message=f"{message}: a single step leaves the target", change=change)


def _kl_control(trial: Trial) -> Result:
    """Judge the target of an algorithm's own controller of the coefficient, where it has one."""
    target = target_in(_planned(trial.session.config))
    if target is None:
        return None
    message = f"algorithm.args.kl_target is {target[0]:g} {target[1]}"
    if target[0] >= LEAST_TARGET:
        beyond = _kl_beyond(trial, target[0], message, "algorithm.args.kl_target")
        return beyond or Passed(f"{message}, which leaves room to learn")
    return Found("kl", "warning", message=f"{message}, below {LEAST_TARGET:g}: too near to the start to learn much")


def _kl_beyond(trial: Trial, target: float, message: str, key: str) -> Found | None:
    """Return a finding for a target in nats per sequence that no policy comes to which still writes such answers."""
    single = -float((trial.scores.logprobs * trial.batch.completion_mask).sum(axis=1).mean())
    if target <= single:
        return None
    message += f"; a policy that always gives one of its present answers is {single:.3g} nats from where it began"
    change = {key: float(f"{min(single / ROOM, LEAST_SEQUENCE):.2g}")}
    return Found("kl_beyond", "warning", message=f"{message}: the coefficient only falls", change=change)


def _patience(config: Config) -> Result:
    evaluate, steps = config.evaluate, config.run.steps
    if not evaluate.patience:
        return None
    needed = (evaluate.patience + 1) * evaluate.every
    message = (
        f"evaluate.patience ends the run after {evaluate.patience} evaluations without a better one, at step {needed} "
        f"at the earliest; the run has {steps} steps"
    )
    if needed < steps:
        return Passed(message)
    interval = max(1, steps // (2 * (evaluate.patience + 1)))
    return Found("patience", "warning", message=message, change={"evaluate.every": interval})


BEFORE_UPDATES: Sequence[Check[Trial]] = (
    data, schedule, targets, completions, rewards, gold_answer, sampler_parity, sampled_entropy, reference_parity,
)  # fmt: skip
CHECKS: Sequence[Check[Any]] = (*BEFORE_UPDATES, *UPDATE_CHECKS, *COSTS)  # in the order of their findings
