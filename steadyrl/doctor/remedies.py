"""Remedies as changes of settings, by canonical name, computed from the run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steadyrl.doctor.check import Change, Times, Value
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import KL_OLD_LARGE, setting, update_size

HEALTHY_UPDATE = 0.02  # nats per token: what the updates of a healthy run's step come to
LEAST_CUT, USUAL_CUT, GREATEST_CUT = 2.0, 3.0, 100.0
MORE_SAMPLES = 8  # completions per prompt where their number is not known, or is 1


def learning_rate(run: Run) -> float | None:
    """Return the learning rate that the run was set to, or reached; None where neither is known."""
    logged = run.get("learning_rate")
    reached = float(logged.values.max()) if logged is not None else 0.0
    return setting(run, "learning_rate") or reached or None


def times(name: str, factor: float) -> Change:
    """Return the change of a setting to ``factor`` times what it is; none where that is 0."""

    def change(run: Run) -> Mapping[str, Value]:
        now = learning_rate(run) if name == "learning_rate" else setting(run, name)
        if not now:
            known = setting(run, name) is not None or run.get(name) is not None  # as 0, which has no multiple
            return {} if known else {name: Times(factor)}
        return {name: float(f"{now * factor:.1g}") if name in ("learning_rate", "kl_coef") else round(now * factor)}

    return change


def to(**values: Value) -> Change:
    """Return the change of settings to fixed values."""
    return lambda run: values


def both(*changes: Change) -> Change:
    """Return several changes as one."""
    return lambda run: {name: value for change in changes for name, value in change(run).items()}


def more_samples(run: Run) -> Mapping[str, Value]:
    """Draw twice as many completions per prompt."""
    samples = setting(run, "samples_per_prompt")
    return {"samples_per_prompt": 2 * int(samples) if samples and samples > 1 else MORE_SAMPLES}


def learning_rate_cut(run: Run) -> float:
    """Return what to divide a learning rate by that is too high.

    The KL of a step grows with the square of the learning rate: the root of (KL / 0.02) brings it back to 0.02.
    Without a logged KL, 3.
    """
    size = update_size(run)
    large = np.zeros(0) if size is None else size.values[size.values > KL_OLD_LARGE]
    if not len(large):
        return USUAL_CUT
    return float(np.clip(np.sqrt(np.median(large) / HEALTHY_UPDATE), LEAST_CUT, GREATEST_CUT))


def slower(run: Run) -> Mapping[str, Value]:
    """Lower a learning rate that is too high."""
    return times("learning_rate", 1.0 / learning_rate_cut(run))(run)


def calmer(run: Run) -> Mapping[str, Value]:
    """Change what makes steps too large: a lower learning rate, and one pass over each batch."""
    passes = setting(run, "epochs")
    return {**slower(run), **({} if passes is not None and passes <= 1 else {"epochs": 1})}


def plain_sampling(run: Run) -> Mapping[str, Value]:
    """Make log-probs those of the distribution sampled from."""
    if run.settings.get("logprobs") == "raw" and "logprobs" in run.keys:
        return {"logprobs": "sampled"}
    return {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def go_back(since: int | None) -> str:
    """Return where to go on from when a fault began at a step."""
    return f"go back to a checkpoint before step {since}" if since else "start again from the beginning"
