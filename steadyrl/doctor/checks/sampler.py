"""Is what was sampled from what trains: a sampling mismatch, and a sampler that differs from the trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import detrended
from steadyrl.doctor.statistics.readings import number, setting
from steadyrl.doctor.statistics.signals import LASTING, first_lasting, long_run_error, tail
from steadyrl.doctor.statistics.units import TOKEN, find, together

# The gap of healthy runs stays within 3 standard errors; over many runs and windows 5 is beyond chance.
LEAK_NATS = 1.5  # a gap above it, and above the entropy, no temperature in use explains
NOISE_AT_START = 1e-3  # nats per token of KL to the reference before any update: far above rounding
GAP_Z = 5.0
# In simulation temperature 0.7 makes a gap of -29 % of the entropy, top-p 0.9 one of -11 %.
GAP_SHARE = 0.03
GAP_WINDOW = 50  # steps at the start and at the end that are judged on their own
GAP_OPENING = 10  # steps, in which a policy is not sure yet
GAP_LEAST = 8  # steps; fewer give no error of the mean
# Our sampler and trainer share weights and code: rounding in float32 is 1e-6.
OWN_GAP = 1e-3
# Elsewhere engines differ: NeMo RL plots the worst sample from a probability error of 5 % on.
OTHER_GAP = 0.05
KL_SAMPLER = 0.1  # nats per token; verl's own warning
IMPORTANCE = 2.0  # mean weight, up or down; verl's own warning
# A sampler with reloaded base weights was seen at 0.029, and that run never learned (trl#5312).
IMPORTANCE_LOST = 0.1
MASKED = 0.5  # of the tokens: learning stopped where 0.75 were dropped, and not where 0.26 were (docs/off-policy.md)
FEWEST_APART = 3  # rows one after the other, where half of a table are fewer than those that last
GROWN = 0.2  # first difference over the last, below which it came with the updates
# TRL's newer PPO counts -1 for each padding token in its sampled entropy and averages the exact one over padding.
PADDED_ENTROPY = ("trl-ppo",)


@dataclass(frozen=True)
class Gap:
    """Mean sampled -log p minus mean exact entropy, in the window where it is surest."""

    gap: float
    error: float
    """Nats per token, and the gap's standard error."""
    entropy: float
    """Exact entropy there, nats per token."""
    onset: int
    """The first step that shows it."""

    @property
    def sure(self) -> bool:
        """True if neither noise nor rounding explains the gap."""
        return abs(self.gap) > max(GAP_Z * self.error, GAP_SHARE * self.entropy)

    @property
    def sentence(self) -> str:
        """The measurement in words."""
        return (
            f"mean -log p of the sampled tokens less the exact entropy is {self.gap:+.3g} nats/token "
            f"(standard error {number(self.error)}, entropy {number(self.entropy)}; from step {self.onset} on)"
        )


def sampling_gap(run: Run) -> Gap | None:
    """Measure the gap at the start and at the end of a run; None where it was not logged or for too few steps.

    Where the settings let one expect a gap, the first steps are looked at alone, too: it closes as a policy grows sure.

    Returns:
        The first window with a sure gap, else the first one.
    """
    exact = find(run, "entropy", TOKEN, "exact")
    sampled = find(run, "entropy", TOKEN, "sampled")
    if exact is None or sampled is None or run.trainer in PADDED_ENTROPY:
        return None
    sampled, exact = together(sampled, exact)
    if len(exact) < GAP_LEAST:
        return None
    gap = sampled.values - exact.values
    windows = []
    opening = [slice(0, GAP_OPENING)] if warps_by_settings(run) else []
    for part in (*opening, slice(0, GAP_WINDOW), slice(-GAP_WINDOW, None)):
        level = float(exact.values[part].mean())
        # A gap that closes or widens is no less of a gap: its trend is not noise.
        error, size = long_run_error(detrended(gap[part])), float(gap[part].mean())
        windows.append(Gap(size, error, level, int(exact.steps[_gap_start(gap, size)])))
    return next((window for window in windows if window.sure), windows[0])


def _gap_start(gap: np.ndarray, size: float) -> int:
    """Return the index from which a gap [n] is there: the first that shows half of its size, and five that do."""
    share = gap / size if size else np.ones(len(gap))
    ahead = np.lib.stride_tricks.sliding_window_view(share, LASTING).mean(axis=1)
    starts = (ahead >= 0.5) & (share[: len(ahead)] >= 0.5)
    return int(starts.argmax())


def noisy_policy(run: Run) -> str:
    """Return a sentence if the trainer's own pass over the policy is noisy; else "".

    Before any update policy and reference are equal, and so are sampler and trainer where they share weights: a KL to
    the reference there, with a difference to the sampler of its size, is noise of the pass that both have in common.
    """
    kl, gap = find(run, "kl_ref", TOKEN, "exact", "k3"), run.get("sampler_gap")
    if run.trainer != "steadyrl" or kl is None or gap is None or kl.steps[0] != 0:
        return ""
    first = kl.first
    if first <= NOISE_AT_START or gap.first <= OWN_GAP:
        return ""
    return f"the KL to the reference is {number(first)} before any update"


def warps_by_settings(run: Run) -> str:
    """Return a sentence if the settings alone say that log-probs are not of what was sampled from; else ""."""
    if run.settings.get("logprobs") != "raw":
        return ""
    warping = [
        f"{name} {value}"
        for name, plain in (("temperature", 1), ("top_p", 1), ("top_k", 0))
        if (value := setting(run, name)) is not None and value != plain
    ]
    return f"log-probs are of raw logits, while sampling has {' and '.join(warping)}" if warping else ""


@check("warped_sampling")
def warped_sampling(run: Run) -> Result:
    gap, stated, temperature = sampling_gap(run), warps_by_settings(run), setting(run, "temperature")
    if gap is None and not stated:
        needs = "the exact entropy and the mean -log p of the sampled tokens, over the same tokens, of 8 steps"
        return Unknown(f"it needs {needs}", ("entropy (exact)", "entropy (sampled)"))
    if gap is not None and (not gap.sure or noisy_policy(run)):
        return None
    if gap is not None and gap.gap > max(LEAK_NATS, gap.entropy):
        cause = "pad_leak"
    elif (gap is not None and gap.gap < 0) or (gap is None and (temperature is None or temperature <= 1)):
        cause = "temperature_or_truncation"
    else:
        hot = temperature is None or temperature > 1
        cause = "high_temperature_or_stale_weights" if hot else "stale_weights"
    return Found(
        cause,
        "warning",
        gap.onset if gap and not stated else None,  # settings hold for all steps
        "tokens are drawn from another distribution than the one whose log-probs train, which makes every KL estimate "
        "and ratio wrong",
        tuple(text for text in (gap.sentence if gap else "", stated) if text),
    )


@check("sampler_mismatch")
def sampler_mismatch(run: Run) -> Result:
    # Where the loss corrects for what rounding does, our own sampler may differ as much as another's.
    gap_limit = OWN_GAP if run.trainer == "steadyrl" and run.get("correction_weight") is None else OTHER_GAP
    limits = {"importance": np.log(IMPORTANCE), "sampler_gap": gap_limit, "kl_sampler": KL_SAMPLER}
    if run.settings.get("ahead"):  # the difference is asked for, and its weights say whether it is too large
        del limits["sampler_gap"]
    for name, limit in limits.items():
        series = run.get(name, TOKEN) or run.get(name)
        if series is None:
            continue
        weight = name == "importance"
        size = np.abs(np.log(np.maximum(series.values, 1e-9)) if weight else series.values)
        onset = first_lasting(series, size > limit, min(LASTING, max(len(series) // 2, FEWEST_APART)))
        if onset is None:
            continue
        bound = f"outside 1/{IMPORTANCE:g} to {IMPORTANCE:g}" if weight else f"above {limit} nats/token"
        text = f"{name} {number(tail(series))}, {bound} from step {onset} on"
        apart = replace(series, values=size)
        lost = weight and tail(apart) > -np.log(IMPORTANCE_LOST)
        cause, because = _mismatch_cause(run, apart, lost)
        message = "sampler and trainer give the sampled tokens different probabilities"
        return Found(cause, "critical" if lost else "warning", onset, message, (text, *because))
    masked = run.get("correction_masked")
    onset = None if masked is None else first_lasting(masked, masked.values > MASKED, LASTING)
    if masked is None or onset is None:
        return None
    text = f"correction_masked {number(tail(masked))}, above {MASKED} from step {onset} on"
    return Found("correction", "warning", onset, "the correction for another policy drops most tokens", (text,))


def _mismatch_cause(run: Run, apart: Series, lost: bool) -> tuple[str, tuple[str, ...]]:
    gap, noisy = sampling_gap(run), noisy_policy(run)
    if noisy:
        return "policy_noise", (noisy,)
    if gap is not None and gap.sure:
        return "warped_sampling", (gap.sentence,)
    if lost:
        return "stale_weights", ("so small a weight means that the sampler has other weights altogether",)
    first, last = apart.first, tail(apart)
    if first < GROWN * last:
        return "stale_weights", (f"it was {number(first)} at the first step and grew to {number(last)}",)
    return "precision", (f"it is there from the first step ({number(first)})",)
