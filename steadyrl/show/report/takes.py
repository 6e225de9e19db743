"""The numbers by which runs are compared: of each topic, metrics and what is taken of their curves."""

from __future__ import annotations

from collections.abc import Mapping

from steadyrl.lab.study.file import Take

# The topics of the founding documents: what each is told by.
TOPICS: Mapping[str, tuple[tuple[str, Take], ...]] = {
    "Reward": (("reward/mean", "first"), ("reward/mean", "last"), ("completion/length", "last")),
    "KL control": (
        ("kl_ref_k1_seq", "last"),
        ("kl_ref_k1_seq", "max"),
        ("kl_ref_k1_seq", "below_zero"),
        ("kl_ref_k1_seq", "lowest_z"),
        ("algorithm/kl_coef", "ratio"),
    ),
    "Value function": (("loss/value", "last"), ("loss/value", "spike"), ("value/explained_variance", "last")),
    "Policy behaviour": (
        ("loss/policy", "last"),
        ("loss/nll", "last"),
        ("clip_fraction", "mean"),
        ("kl_old_k3", "max"),
        ("grad_norm", "max"),
    ),
    "Entropy": (("entropy", "first"), ("entropy", "last"), ("entropy", "ratio")),
    "Advantages": (("advantage/mean", "mean"), ("advantage/std", "first"), ("advantage/std", "last")),
}
TAKES: Mapping[Take, str] = {
    "last": "at the end",
    "first": "at the start",
    "mean": "mean",
    "min": "lowest step",
    "max": "highest step",
    "gain": "end minus start",
    "ratio": "end as a share of the start",
    "spike": "highest step over the level before it",
    "below_zero": "share of steps below 0",
    "lowest_z": "lowest tenth of the run, in standard errors",
}
