"""The summary of a run: what was measured, without a judgement.

A problem that one of the evaluations could not score is left out of the comparison and counted. A metric that was
never logged is None, never zero. The best of several checkpoints was chosen by the figure that is shown for it. On
average the figure is too high, and whatever shows the figure says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from steadyrl.core.metrics import finite_mean, finite_number, series
from steadyrl.core.stats import smoothed
from steadyrl.core.types import DECODINGS, Decoding
from steadyrl.core.words import counted, percent
from steadyrl.lab.compare.verdict import Conclusion, conclude, judge
from steadyrl.show.page.markup import interval, number, signed
from steadyrl.show.report.evidence import Answer, Evaluation, Evidence, best_step

ENTROPY_START_STEPS = 3  # the policy has hardly moved in them
ENTROPY_END_STEPS = 10  # enough to average out single batches
KL_NOISE_SE = 2.0  # standard errors below 0 that noise rarely explains: 2 % of the steps where the true KL is 0

Values = float | Sequence[float]  # of a problem: a number, or those of its samples
BIASED = (
    "This step was chosen by its score on these held-out problems, so that its figures are biased upward: on fresh "
    "problems expect less"
)


def metric_values(answers: Mapping[str, Answer]) -> dict[str, float]:
    """Return the task's metric by problem, for the problems with a known one."""
    return {problem: answer.metric for problem, answer in answers.items() if answer.metric is not None}


def metric_samples(answers: Mapping[str, Answer]) -> dict[str, Sequence[float]]:
    """Return the task's metric of every sample by problem, for the problems with a known one."""
    return {problem: answer.samples for problem, answer in answers.items() if answer.samples}


def part_values(answers: Mapping[str, Answer], part: str) -> dict[str, float]:
    """Return a part by problem, for the problems with a known one."""
    return {problem: answer.measurements[part] for problem, answer in answers.items() if part in answer.measurements}


def means(answers: Mapping[str, Answer]) -> dict[str, float | None]:
    """Return the mean of the metric, as "metric", and of every part, each over the answers that have it."""
    names = sorted({part for answer in answers.values() for part in answer.measurements})
    part_means = {part: finite_mean(part_values(answers, part).values()) for part in names}
    return {**part_means, "metric": finite_mean(metric_values(answers).values())}


def change(before: Mapping[str, Values], after: Mapping[str, Values] | None) -> dict[str, Any]:
    """Compare a measurement on the problems for which both evaluations have it.

    Args:
        before: By problem id, a number or those of its samples.
        after: By problem id; None while there is no evaluation after training, then only ``before`` is filled.

    Returns:
        n, before, after, difference, interval (95 %, over problems), relative (difference / before), verdict and its
        reason, as ``steadyrl compare`` decides; None for anything unknown.
    """
    shared = [problem for problem in before if after is None or problem in after]
    comparison: dict[str, Any] = dict.fromkeys(
        ("n", "before", "after", "difference", "interval", "relative", "verdict", "reason")
    )
    comparison["n"] = len(shared)
    if after is not None:
        comparison["verdict"] = "undecided"
        comparison["reason"] = f"scored both times: {counted(len(shared), 'problem')}, and it takes two"
    if not shared:
        return comparison
    first = [np.atleast_1d(before[problem]).tolist() for problem in shared]
    comparison["before"] = float(np.mean(list(map(np.mean, first))))
    if after is None:
        return comparison
    second = [np.atleast_1d(after[problem]).tolist() for problem in shared]
    comparison["after"] = float(np.mean(list(map(np.mean, second))))
    comparison["difference"] = float(np.mean([np.mean(b) - np.mean(a) for a, b in zip(first, second, strict=True)]))
    if comparison["before"] != 0:
        comparison["relative"] = comparison["difference"] / comparison["before"]
    if len(shared) > 1:  # an interval needs the spread of several problems
        judged = judge(first, second)
        if judged.smallest is not None:  # else all answers of both have one value, and no spread
            comparison["interval"] = [judged.change.low, judged.change.high]
        comparison["verdict"], comparison["reason"] = judged.word, judged.reason
    return comparison


def why_undecided(comparison: Mapping[str, Any]) -> str:
    """Return why a change is undecided although its interval excludes 0, as the end of a sentence; else ""."""
    if comparison["verdict"] != "undecided" or not comparison["interval"]:
        return ""
    low, high = map(float, comparison["interval"])
    return "" if low <= 0 <= high else f", because {comparison['reason']}"


def summarise(evidence: Evidence, harmful: Sequence[str] = ()) -> dict[str, Any]:
    """Return what summary.json holds; ``harmful`` are the checks of the doctor that found harm in the run."""
    before, after, deploy = evidence.before, evidence.after, evidence.deploy
    by_decoding, by_part = compared(before, after, deploy)
    conclusion = conclusion_of(by_decoding, deploy, {"the run": harmful})
    sets = {name: compared(*evaluations, deploy) for name, evaluations in evidence.sets.items()}
    baselines = {name: means(answers) for name, answers in evidence.baselines.answers.items()}
    entropy = series(evidence.metrics, "entropy")
    entropy = entropy[np.isfinite(entropy)]
    first = min(ENTROPY_START_STEPS, len(entropy) // 2)  # start and end share no step
    start, end = finite_mean(entropy[:first]), finite_mean(entropy[first:][-ENTROPY_END_STEPS:]) if first else None
    kl, error = series(evidence.metrics, "kl_ref_k1_seq"), series(evidence.metrics, "kl_ref_k1_seq_se")
    judged = np.isfinite(kl) & (np.nan_to_num(error) > 0)
    in_se = kl[judged] / error[judged]
    return {
        "run": evidence.info.get("id") or evidence.name,
        "task": evidence.info.get("task"),
        "metric": evidence.info.get("metric"),
        "decoding": deploy,
        **by_decoding[deploy],
        **by_decoding,
        "conclusion": conclusion and conclusion.sentence,
        "parts": by_part,
        "samples": evidence.samples,
        "sets": {name: {**changes[deploy], **changes, "parts": of_part} for name, (changes, of_part) in sets.items()},
        "baselines": baselines,
        "against_rules": against_rules(by_decoding[deploy].get("after"), baselines),
        "health": {
            "parseable": finite_mean(part_values(after.get(deploy), "parseable").values()),
            "entropy_start": start,
            "entropy_end": end,
            "entropy_ratio": end / start if start and end is not None else None,
            "kl_ref_k1_seq_min": _finite_min(kl),
            "kl_ref_k1_seq_min_in_se": _finite_min(in_se),
            "kl_steps_below_minus_2se": int((in_se < -KL_NOISE_SE).sum()) if in_se.size else None,
            "kl_ref_exact_seq_min": _finite_min(series(evidence.metrics, "kl_ref_exact_seq")),
            "steps": len(evidence.metrics),
            "unscored": finite_mean(series(evidence.metrics, "reward/unscored")),
            "non_finite_steps": sum(
                any(isinstance(value, float) and not math.isfinite(value) for value in record.values())
                for record in evidence.metrics
            ),
        },
        "target": target_figures(evidence.metrics, evidence.settings.get("run", {}).get("target")),
        "unscored": {
            when: sum(answer.metric is None for answer in side.get(deploy).values()) if side.answers else None
            for when, side in (("before", before), ("after", after))
        },
    }


def against_rules(after: float | None, baselines: Mapping[str, Mapping[str, float | None]]) -> str:
    """Say how many answers without a model score higher on average than the trained one; "" where none is compared."""
    scores = {name: score for name, part_means in baselines.items() if (score := part_means["metric"]) is not None}
    if after is None or not scores:
        return ""
    higher = [name for name in scores if scores[name] > after]
    if not higher:
        return f"Trained, the model scores {after:.3f}: no answers without a model score higher."
    best = max(higher, key=lambda name: scores[name])
    return (
        f"Trained, the model scores {after:.3f}: {len(higher)} of {counted(len(scores), 'answer')} without a model "
        f"score higher, the best is {best} with {scores[best]:.3f}."
    )


def compared(
    before: Evaluation, after: Evaluation, deploy: Decoding
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the comparisons of the metric by way of decoding, and those of every part, see ``change``.

    Parts are of the answers that count; pass@k is of sampled ones.
    """

    def compare(decoding: str, values: Callable[[Mapping[str, Answer]], Mapping[str, Values]]) -> dict[str, Any]:
        return change(values(before.get(decoding)), values(after.get(decoding)) if after.answers else None)

    by_problem = [answers for side in (before, after) for answers in side.answers.values()]
    names = sorted({part for answers in by_problem for answer in answers.values() for part in answer.measurements})
    by_part = {part: compare(decoding_of(part, deploy), partial(part_values, part=part)) for part in names}
    return {decoding: compare(decoding, metric_samples) for decoding in DECODINGS}, by_part


def decoding_of(part: str, deploy: Decoding) -> Decoding:
    """Return the answers that a part is measured on: those that count, or for pass@k the sampled ones."""
    return "sampled" if part.startswith("pass@") else deploy


def contradictions(summary: Mapping[str, Any]) -> list[str]:
    """Return a clause for each way of decoding whose answers decide something else than those that count."""
    words = {name: summary[name]["verdict"] for name in DECODINGS}
    no_doubt = (None, summary["verdict"], "undecided")
    return [f"{name} answers are {word}" for name, word in words.items() if word not in no_doubt]


def conclusion_of(
    by_decoding: Mapping[str, Mapping[str, Any]], deploy: Decoding, harms: Mapping[str, Sequence[str]]
) -> Conclusion | None:
    """Return what the answers as they will be used say, and what contradicts it; None before training has ended."""
    if by_decoding[deploy]["verdict"] is None:
        return None
    return conclude({name: (c["verdict"], c["reason"]) for name, c in by_decoding.items()}, deploy, harms)


def target_figures(metrics: Sequence[Mapping[str, Any]], target: float | None) -> dict[str, Any] | None:
    """Return how near the smoothed reward came to ``run.target``; None for a run without one.

    Returns:
        target, step (the first at or above it, else None), best and best_step (the highest).
    """
    if target is None:
        return None
    rewards = series(metrics, "reward/mean")
    steps, curve = np.flatnonzero(np.isfinite(rewards)), smoothed(rewards[np.isfinite(rewards)])
    if not curve.size:
        return {"target": target, "step": None, "best": None, "best_step": None}
    step_numbers, reached = [int(metrics[i]["step"]) for i in steps.tolist()], np.flatnonzero(curve >= target)
    best = int(curve.argmax())
    step = step_numbers[int(reached[0])] if reached.size else None
    return {"target": target, "step": step, "best": float(curve[best]), "best_step": step_numbers[best]}


def target_sentence(figures: Mapping[str, Any]) -> str:
    """Return what ``target_figures`` says, in words."""
    sentence, best = f"The reward's target (run.target) is {number(figures['target'])}", figures["best"]
    if best is None:
        return f"{sentence}; no reward is known yet."
    if figures["step"] is not None:
        return f"{sentence}: the smoothed reward reached it at step {figures['step']}; its highest is {number(best)}."
    share = f", {percent(best / figures['target'])} of it" if figures["target"] > 0 else ""
    reached = f"the smoothed reward is {number(best)} at most{share}, at step {figures['best_step']}"
    return f"{sentence}, and was not reached: {reached}."


def _finite_min(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.min()) if finite.size else None


def best_figures(evidence: Evidence) -> dict[str, Any] | None:
    """Return what summary.json says of the best checkpoint: its score, and its change since before training.

    Returns:
        step, score, interval, n, and ``change`` (see ``figures.change``); None if no checkpoint was chosen.
    """
    best = evidence.info.get("best") or {}
    step, score = best_step(evidence.info), finite_number(best.get("score"))
    if step is None or score is None:
        return None
    low, high = finite_number(best.get("low")), finite_number(best.get("high"))
    return {
        "step": step,
        "score": score,
        "interval": None if low is None or high is None else [low, high],
        "n": best.get("problems"),
        "change": change(*(metric_samples(e.get(evidence.deploy)) for e in (evidence.before, evidence.best))),
    }


def best_sentences(summary: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """Return what a report says of the best checkpoint and of an early end; nothing where a run has neither."""
    lines, best = [], summary["best"]
    if best is not None:
        metric = f"held-out {summary['metric'] or 'metric'}"
        score = number(best["score"]) + ("" if best["interval"] is None else f" {interval(best['interval'])}")
        line = f"The best checkpoint is that of step {best['step']}: {metric} {score}, n = {best['n']}"
        gain = best["change"]
        if gain["difference"] is not None:
            bounds = "" if gain["interval"] is None else f" {interval(gain['interval'])}"
            line += f", {signed(gain['difference'])}{bounds} compared with before training"
        lines.append(f"{line}. {BIASED}.")
    early = info.get("stopped_early")
    if early:
        if "target" in early:
            target = f"its target {number(early['target'])} (run.target)"
            reason = f"the smoothed reward held {target} for a tenth of the run"
        else:
            patience = counted(early.get("patience"), "evaluation")
            reason = f"{patience} in a row (evaluate.patience) without a better score"
        lines.append(f"The run stopped early, after {counted(early.get('step'), 'step')}: {reason}.")
    return lines
