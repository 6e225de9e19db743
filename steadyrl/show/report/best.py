"""The best checkpoint of a run by held-out score, and the early end, for the report and the model card.

The best of several checkpoints was chosen by the figure that is shown for it. On average the figure is too high, and
whatever shows it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.show.page.markup import interval, number, signed
from steadyrl.show.report.evidence import Evidence, best_step
from steadyrl.show.report.figures import change, metric_samples
from steadyrl.show.review.epochs import finite_number

BIASED = (
    "This step was chosen by its score on these held-out problems, so that its figures are biased upward: on fresh "
    "problems expect less"
)


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
        "change": change(*(metric_samples(e.of(evidence.deploy)) for e in (evidence.before, evidence.best))),
    }


def best_sentences(summary: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """Return what a report says of the best checkpoint and of an early end; nothing where a run has neither."""
    lines, best = [], summary["best"]
    if best is not None:
        what = f"held-out {summary['metric'] or 'metric'}"
        line = f"The best checkpoint is that of step {best['step']}: {what} {_with_bounds(best)}, n = {best['n']}"
        since = best["change"]
        if since["difference"] is not None:
            bounds = "" if since["interval"] is None else f" {interval(since['interval'])}"
            line += f", {signed(since['difference'])}{bounds} compared with before training"
        lines.append(f"{line}. {BIASED}.")
    early = info.get("stopped_early")
    if early:
        why = f"{early.get('patience')} evaluations in a row (evaluate.patience) were not better than the best one"
        if "target" in early:
            why = f"the smoothed reward held its target {number(early['target'])} (run.target) for a tenth of the run"
        lines.append(f"The run stopped early, after {early.get('step')} steps: {why}.")
    return lines


def _with_bounds(best: Mapping[str, Any]) -> str:
    bounds: list[float] | None = best["interval"]
    return number(best["score"]) + ("" if bounds is None else f" {interval(bounds)}")
