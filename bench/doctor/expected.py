"""What counts as the right answer for every fault. Written down on 2026-11-20, before any run was examined.

A pair is (check, cause); "*" stands for any. Several pairs are right where a log cannot tell them apart, or where they
name the same thing from two sides: a learning rate that is too high shows as updates that are too large. A finding that
only names a consequence (the entropy collapsed, the reward fell, for unknown reasons) is never right: it is counted as
"detected", not as "named".
"""

from __future__ import annotations

from collections.abc import Mapping

Pair = tuple[str, str]

_WARPED: tuple[Pair, ...] = (("*", "warped_sampling"), ("*", "temperature_or_truncation"))
# Another reference, or the same one with dropout: either way the KL is there before any update.
_REFERENCE: tuple[Pair, ...] = (
    ("*", "reference_mismatch"),
    ("*", "reference_noise"),
)
_TOO_HIGH: tuple[Pair, ...] = (
    ("learning_rate_too_high", "learning_rate"),
    ("clip_fraction_high", "learning_rate"),
    ("ratio_off", "learning_rate"),
    ("policy_loss_spikes", "learning_rate"),
    ("kl_runaway", "learning_rate"),
    ("entropy_collapse", "learning_rate"),
    ("entropy_explosion", "learning_rate"),
    ("grad_norm", "large_updates"),
    ("updates_cut_short", "learning_rate"),
)
_NOISE: tuple[Pair, ...] = (
    ("reward_noise", "*"),
    ("reward_flat", "moving_without_gain"),
    ("*", "noise_reward"),
    ("*", "judge_noise"),
    ("*", "noisy_reward"),
)

RIGHT: Mapping[str, tuple[Pair, ...]] = {
    "warped_temperature": (*_WARPED, ("warped_sampling", "temperature")),
    "warped_top_p": (*_WARPED, ("warped_sampling", "truncation")),
    "pad_leak": (("*", "pad_leak"),),
    "reference_dropout": (*_REFERENCE, ("*", "reference_dropout")),
    # Dropout and low precision are both noise of one pass, there from the first step and of one size.
    "policy_dropout": (("*", "policy_noise"), ("sampler_mismatch", "precision"), ("*", "dropout")),
    "reference_other": (*_REFERENCE, ("*", "reference_dropout")),
    "kl_coef_zero": (("*", "no_penalty"), ("*", "penalty_switched_off")),
    "lr_x10": _TOO_HIGH,
    "lr_x100": _TOO_HIGH,
    "lr_div100": (("learning_rate_too_low", "learning_rate"), ("reward_flat", "not_moving")),
    "no_update": (("kl_zero", "no_update"), ("reward_flat", "not_moving"), ("learning_rate_too_low", "*")),
    "epochs_8": (("*", "epochs"),),
    "reward_offset": (("*", "offset"), ("*", "reward_shift"), ("value_loss_spikes", "reward_outlier")),
    "reward_noise": _NOISE,
    "reward_outliers": (("*", "outliers"), ("*", "reward_outlier")),
    "value_head_reset": (("*", "value_reset"), ("value_loss_spikes", "value_head")),
    "overflow_gradient": (("non_finite", "gradient"), ("kl_zero", "skipped_updates")),
    "overflow_logprobs": (("non_finite", "log_probs"),),
    # From outside, an engine that stops too early and a parser that finds nothing differ in the length only.
    "empty_template": (("empty_completions", "template_or_eos"), ("empty_completions", "parser")),
    "empty_parser": (("empty_completions", "parser"),),
    "stale_sampler": (("*", "stale_weights"), ("*", "high_temperature_or_stale_weights")),
    "constant_reward": (
        ("reward_constant", "broken"),
        ("reward_constant", "broke"),
        ("no_signal_groups", "*"),
        ("reward_flat", "no_signal"),
        ("*", "constant_reward"),
        ("*", "constant_returns"),
        ("*", "no_advantage"),
        ("*", "no_signal"),
    ),
    "judge_garbage": (*_NOISE, ("*", "judge_or_engine")),
    "judge_silent": (("reward_unscored", "*"), ("*", "unscored")),
    "length_exploited": (
        ("length_collapse", "length_reward"),
        ("length_collapse", "shorter_pays"),
        ("empty_completions", "learned"),
        ("reward_hacking", "*"),
    ),
    "controller_slow": (("*", "controller_slow"), ("kl_controller", "slow")),
    "unit_clash": (("kl_unit_clash", "*"),),
    "entropy_bonus": (("*", "entropy_coef"),),
    "cut_off": (("truncated", "*"),),
    # The two below were written down before the part that was made last.
    "part_never_pays": (("reward_part_idle", "never_pays"),),
    "warped_hot": (
        *_WARPED,
        ("warped_sampling", "high_temperature"),
        ("warped_sampling", "high_temperature_or_stale_weights"),
    ),
}

# rlwatch names symptoms: its detectors that fit what the fault does to the log, taken generously.
RLWATCH_FITS: Mapping[str, tuple[str, ...]] = {
    "warped_temperature": ("kl_explosion",),
    "warped_top_p": ("kl_explosion",),
    "pad_leak": ("kl_explosion",),
    "reference_dropout": ("kl_explosion",),
    "policy_dropout": ("kl_explosion",),
    "reference_other": ("kl_explosion",),
    "kl_coef_zero": ("kl_explosion",),
    "lr_x10": ("kl_explosion", "entropy_collapse", "gradient_norm_spike"),
    "lr_x100": ("kl_explosion", "entropy_collapse", "gradient_norm_spike"),
    "lr_div100": (),
    "no_update": (),
    "epochs_8": ("kl_explosion", "entropy_collapse", "gradient_norm_spike"),
    "reward_offset": ("reward_hacking", "reward_mean_drift", "advantage_variance", "gradient_norm_spike"),
    "reward_noise": ("reward_hacking", "advantage_variance"),
    "reward_outliers": ("reward_hacking", "advantage_variance", "gradient_norm_spike"),
    "value_head_reset": ("advantage_variance", "gradient_norm_spike"),
    "overflow_gradient": ("loss_nan", "gradient_norm_spike"),
    "overflow_logprobs": ("loss_nan",),
    "empty_template": (),
    "empty_parser": ("reward_mean_drift",),
    "stale_sampler": ("kl_explosion",),
    "constant_reward": (),
    "judge_garbage": ("reward_hacking", "advantage_variance"),
    "judge_silent": (),
    "length_exploited": ("reward_mean_drift", "reward_hacking"),
    "controller_slow": ("kl_explosion",),
    "unit_clash": ("kl_explosion",),
    "entropy_bonus": ("kl_explosion",),
    "cut_off": (),
    "part_never_pays": (),
    "warped_hot": ("kl_explosion",),
}


def fits(pair: Pair, wanted: tuple[Pair, ...]) -> bool:
    """Return True if a finding's (check, cause) is among the right answers."""
    return any(check in ("*", pair[0]) and cause in ("*", pair[1]) for check, cause in wanted)
