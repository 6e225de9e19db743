"""What kind of training a log is of: by its algorithm, and by what it logs where no algorithm is named.

``algorithms.toml`` is the one place that knows algorithms by name, those of other trainers as well as our own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrl.doctor.series import Traits

FILE = Path(__file__).with_name("algorithms.toml")
OF_CRITICS = ("loss_value", "explained_variance", "value_mean")
_OF_GROUPS = ("no_signal", "reward_std_within")


def _by_algorithm() -> dict[str, Traits]:
    by_name: dict[str, Traits] = {}
    for fields in tomllib.loads(FILE.read_text(encoding="utf-8"))["algorithm"]:
        names = fields.pop("names")
        by_name |= {name: replace(by_name.get(name, Traits()), **fields) for name in names}
    return by_name


BY_ALGORITHM: Mapping[str, Traits] = _by_algorithm()


def traits(algorithm: str, settings: Mapping[str, Any], logged: Container[str], logs_critic: bool = False) -> Traits:
    """Return the traits of a run.

    Args:
        algorithm: "" if unknown; a class of the user's own is unknown, too.
        settings: Canonical ones.
        logged: The quantities that the log holds.
        logs_critic: Whether this trainer logs values wherever it learns them.
    """
    run_traits = BY_ALGORITHM.get(algorithm, Traits())
    if run_traits.critic is None and any(name in logged for name in OF_CRITICS):
        run_traits = replace(run_traits, critic=True)
    elif run_traits.critic is None and logs_critic and "loss_policy" in logged:
        run_traits = replace(run_traits, critic=False)
    if run_traits.grouped is None and not run_traits.critic and any(name in logged for name in _OF_GROUPS):
        run_traits = replace(run_traits, grouped=True)
    place = settings.get("kl_place")
    return replace(run_traits, kl_place=place) if place in ("reward", "loss", "none") else run_traits
