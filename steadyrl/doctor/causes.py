"""Which finding brings which about, and the order that follows: causes before consequences, the worst first.

A finding may name its cause itself (``Finding.follows``). What it leaves open, the table below fills in: with the
nearest cause that was found and began in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steadyrl.types import Finding

SEVERITIES = ("critical", "warning", "info")
NO_STEP = -1  # of a finding that holds for the run as a whole: before every step

# consequence -> (what brings it about, only where the consequence names one of these causes itself), the nearest first.
# Without a list of causes the link holds whatever the consequence says of its own.
Link = tuple[str, tuple[str, ...]]
FROM_UPDATES = ("learning_rate", "unknown")
BROUGHT_ABOUT_BY: Mapping[str, tuple[Link, ...]] = {
    "sampler_mismatch": (("warped_sampling", ("warped_sampling", "unknown")),),
    "negative_kl": (
        ("warped_sampling", ("warped_sampling", "unknown")),
        ("sampler_mismatch", ("sampler_mismatch", "unknown")),
    ),
    "kl_controller": (("negative_kl", ("negative_kl",)), ("kl_unit_clash", ())),
    "kl_zero": (
        ("non_finite", ("skipped_updates",)),
        ("reward_constant", ("no_advantage",)),
        ("no_signal_groups", ("no_advantage",)),
    ),
    "kl_runaway": (
        ("kl_unit_clash", ("controller_slow", "controller_absent", "unknown")),
        ("kl_controller", ("controller_slow", "controller_absent")),
        ("kl_penalty_off", ("no_penalty", "controller_absent", "unknown")),
        ("learning_rate_too_high", (*FROM_UPDATES, "controller_absent", "controller_slow")),
        ("entropy_explosion", ("controller_absent", "controller_slow", "unknown")),
        ("negative_kl", ("unknown",)),
        ("sampler_mismatch", ("unknown",)),
        ("reward_jump", ("unknown", "controller_absent", "no_penalty")),
    ),
    "learning_rate_too_low": (("kl_zero", ()),),
    "ratio_off": (
        ("learning_rate_too_high", FROM_UPDATES),
        ("sampler_mismatch", ("old_logprobs", "unknown")),
    ),
    "clip_fraction_high": (
        ("ratio_off", ("old_logprobs",)),
        ("learning_rate_too_high", (*FROM_UPDATES, "epochs")),
        ("sampler_mismatch", ("old_logprobs", "unknown")),
    ),
    "policy_loss_spikes": (
        ("reward_jump", ("advantages", "unknown")),
        ("reward_scale", ("advantages", "unknown")),
        ("ratio_off", ("ratio_blow_up", "old_logprobs", "unknown")),
        ("learning_rate_too_high", (*FROM_UPDATES, "ratio_blow_up")),
        ("value_loss_spikes", ("advantages",)),
    ),
    "value_loss_spikes": (
        ("reward_jump", ("reward_outlier", "value_reset", "value_head", "unknown")),
        ("value_jump", ()),
        ("length_explosion", ("length_jump",)),
        ("reward_scale", ("reward_outlier",)),
        ("kl_runaway", ("kl",)),
        ("negative_kl", ("kl",)),
        ("learning_rate_too_high", ("kl", "unknown")),
    ),
    "explained_variance_low": (
        ("value_jump", ("untrained_head", "offset")),
        ("reward_jump", ("untrained_head", "offset")),
        ("reward_constant", ("constant_returns",)),
        ("reward_scale", ("offset",)),
        ("value_loss_spikes", ("untrained_head",)),
    ),
    "grad_norm": (
        ("warped_sampling", ("always_clipped", "exploding", "unknown")),
        ("sampler_mismatch", ("always_clipped", "exploding", "unknown")),
        ("reward_jump", ("always_clipped", "exploding", "reward_outlier", "value_loss", "unknown")),
        ("value_jump", ("value_loss", "unknown")),
        ("value_loss_spikes", ("value_loss",)),
        ("reward_scale", ("reward_outlier", "always_clipped")),
        ("reward_constant", ("no_signal",)),
        ("no_signal_groups", ("no_signal",)),
        ("learning_rate_too_high", ("large_updates", "exploding", "unknown")),
    ),
    "entropy_collapse": (
        ("reward_jump", ("no_entropy_pressure", "unknown", "degenerate")),
        ("length_collapse", ("exploitation", "unknown", "no_entropy_pressure")),
        ("learning_rate_too_high", (*FROM_UPDATES, "no_entropy_pressure", "degenerate", "constant_reward")),
        ("reward_constant", ("constant_reward",)),
        ("no_signal_groups", ("constant_reward",)),
    ),
    "entropy_explosion": (
        ("warped_sampling", ("warped_sampling",)),
        ("learning_rate_too_high", (*FROM_UPDATES, "noise_reward")),
        ("reward_constant", ("noise_reward",)),
        ("no_signal_groups", ("noise_reward",)),
        ("negative_kl", ("noise_reward", "unknown")),
    ),
    "reward_constant": (
        ("learning_rate_too_high", ("broke",)),
        ("length_collapse", ("broke", "solved")),
        ("entropy_explosion", ("broke",)),
    ),
    "no_signal_groups": (("reward_constant", ()), ("entropy_collapse", ("same_answers",))),
    "reward_flat": (
        ("reward_jump", ("moving_without_gain", "unknown")),
        ("reward_constant", ()),
        ("no_signal_groups", ("no_signal", "unknown")),
        ("kl_zero", ("not_moving", "unknown")),
        ("learning_rate_too_low", ("not_moving", "unknown")),
        ("learning_rate_too_high", ("moving_without_gain", "unknown")),
        ("negative_kl", ("moving_without_gain",)),
        ("sampler_mismatch", ("moving_without_gain", "unknown")),
    ),
    "reward_falling": (
        ("truncated", ("truncated",)),
        ("reward_jump", ("unknown",)),
        ("empty_completions", ("empty",)),
        ("reward_unscored", ("unscored",)),
        ("non_finite", ("unknown",)),
        ("learning_rate_too_high", ("unknown",)),
        ("kl_runaway", ("unknown",)),
        ("negative_kl", ("unknown",)),
        ("sampler_mismatch", ("unknown",)),
        ("entropy_explosion", ("unknown",)),
    ),
    "reward_hacking": (("length_collapse", ()), ("length_explosion", ())),
    "over_training": (("reward_hacking", ()),),
    "empty_completions": (
        ("length_collapse", ("learned",)),
        ("learning_rate_too_high", ("learned",)),
        ("reward_jump", ("learned",)),
    ),
    "length_explosion": (("repetition", ("repetition",)), ("entropy_explosion", ("no_end", "unknown"))),
    "truncated": (
        ("length_explosion", ("grew",)),
        ("learning_rate_too_high", ("grew",)),
        ("entropy_explosion", ("grew",)),
    ),
    "repetition": (("entropy_collapse", ("degenerate",)), ("learning_rate_too_high", ("degenerate",))),
    "throughput_decay": (("length_explosion", ()),),
    "non_finite": (
        ("value_loss_spikes", ()),
        ("policy_loss_spikes", ()),
        ("grad_norm", ()),
        ("ratio_off", ()),
        ("learning_rate_too_high", ()),
    ),
}


@dataclass(frozen=True)
class Placed:
    """A finding and its depth: 0 for a root, 1 for what a root brings about, and so on."""

    depth: int
    finding: Finding


def arrange(findings: Sequence[Finding], tolerance: int, ranks: Mapping[str, int]) -> tuple[Finding, ...]:
    """Return findings with ``follows`` filled in, each cause before its consequences, the worst chain first.

    Args:
        findings: As the checks gave them; what says the same twice is put together.
        tolerance: Steps by which a consequence may show before its cause does: both are dated by blocks of noisy steps.
        ranks: Order of checks by name, for findings that are equally bad and equally old.
    """
    single = _merged(findings)
    linked: list[Finding] = []
    for finding in single:
        linked.append(replace(finding, follows=_cause(finding, single, linked, tolerance)))
    ordered = sorted(linked, key=lambda finding: _rank(finding, ranks))
    return tuple(placed.finding for placed in tree(_by_worst(ordered)))


def tree(findings: Sequence[Finding]) -> list[Placed]:
    """Return findings with their depths, each after the first finding of the check that it follows.

    Args:
        findings: Among equals in the order wanted; ``follows`` leads round in no circle.
    """
    placed: list[Placed] = []

    def place(finding: Finding, depth: int) -> None:
        placed.append(Placed(depth, finding))
        if finding is first[finding.check]:
            for other in findings:
                if other.follows == finding.check:
                    place(other, depth + 1)

    first = {finding.check: finding for finding in reversed(findings)}
    for finding in findings:
        if finding.follows not in first:
            place(finding, 0)
    return placed


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding per check and cause: the worst and earliest, with the evidence of all."""
    found: dict[tuple[str, str], Finding] = {}
    for finding in sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), _start(f))):
        known = found.setdefault((finding.check, finding.cause), finding)
        more = tuple(line for line in finding.evidence if line not in known.evidence)
        found[finding.check, finding.cause] = replace(known, evidence=known.evidence + more)
    return list(found.values())


def _cause(finding: Finding, every: Sequence[Finding], linked: Sequence[Finding], tolerance: int) -> str:
    """Return the check that brings a finding about, or "": what it names itself if that was found, else the table's."""
    by_check = {other.check for other in every} - {finding.check}
    if finding.follows in by_check and not _leads_to(finding.follows, finding.check, linked):
        return finding.follows
    for check, causes in BROUGHT_ABOUT_BY.get(finding.check, ()):
        if check not in by_check or (causes and finding.cause not in causes):
            continue
        # What is merely worth knowing explains a harm only where the harm itself points at it.
        able = [f for f in every if f.check == check and (f.severity != "info" or causes or finding.severity == "info")]
        in_time = finding.since_step is None or any(_start(f) <= finding.since_step + tolerance for f in able)
        if able and in_time and not _leads_to(check, finding.check, linked):
            return check
    return ""


def _leads_to(check: str, other: str, linked: Sequence[Finding]) -> bool:
    """Return True if ``check`` already follows ``other``, directly or through others."""
    follows = {check}
    while True:
        more = {finding.follows for finding in linked if finding.check in follows} - {"", *follows}
        if not more:
            return other in follows
        follows |= more


def _by_worst(ordered: Sequence[Finding]) -> list[Finding]:
    """Return findings with those first whose chain of consequences holds the worst; else as they were."""
    worst = {id(finding): SEVERITIES.index(finding.severity) for finding in ordered}
    for _ in ordered:  # as many rounds as the longest chain could have links
        for finding in ordered:
            if cause := next((other for other in ordered if other.check == finding.follows), None):
                worst[id(cause)] = min(worst[id(cause)], worst[id(finding)])
    return sorted(ordered, key=lambda finding: worst[id(finding)])


def _rank(finding: Finding, ranks: Mapping[str, int]) -> tuple[int, int, int, str]:
    place = ranks.get(finding.check, len(ranks))
    return SEVERITIES.index(finding.severity), _start(finding), place, finding.cause


def _start(finding: Finding) -> int:
    return NO_STEP if finding.since_step is None else finding.since_step
