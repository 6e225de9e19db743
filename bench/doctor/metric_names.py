"""How many names of metrics the doctor knows: python bench/doctor/metric_names.py [FILE].

The names stand in metric_names.jsonl: what public training loops log, each with its quantity and source, collected on
2026-11-29 by a person who had not seen the vocabulary. Each is read beside a reward and a loss, with values that such
a quantity has. A name of kind "none" is some other thing, and right where it is taken for no quantity of this list.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.series import Column, RawLog

NAMES = Path(__file__).with_suffix(".jsonl")
STEPS = np.arange(1, 41)
# Values at the first and the last step, and what quantities of a run may be called.
QUANTITIES = {
    "reward": (0.2, 0.4, ("reward", "return_mean")),
    "kl": (0.01, 0.05, ("kl_ref", "kl_old", "kl_sampler", "kl_teacher")),
    "entropy": (1.4, 1.0, ("entropy",)),
    "length": (120.0, 160.0, ("length",)),
    "grad_norm": (0.8, 0.9, ("grad_norm",)),
    "truncated": (0.1, 0.2, ("truncated",)),
    "no_signal": (0.3, 0.5, ("no_signal",)),
    "clip_fraction": (0.05, 0.1, ("clip_fraction",)),
    "reward_std": (0.3, 0.31, ("reward_std",)),
    "loss_value": (0.5, 0.4, ("loss_value",)),
    "explained_variance": (0.1, 0.5, ("explained_variance",)),
    "learning_rate": (1e-6, 1e-6, ("learning_rate",)),
    "loss": (0.1, 0.05, ("loss",)),
    "ratio": (1.0, 1.01, ("ratio",)),
    "advantage": (0.0, 0.1, ("advantage",)),
    "reward_part": (0.3, 0.5, ("reward_part/",)),
    "none": (0.5, 0.51, ()),
}


def meanings(name: str, quantity: str) -> list[str]:
    """Return the quantities that a column of this name is taken for."""
    first, last, _ = QUANTITIES[quantity]
    beside = {"reward": (0.2, 0.4), "loss": (0.1, 0.05)}
    beside.pop(quantity, None)
    spans = {**beside, name: (first, last)}
    columns = {source: Column(STEPS, np.linspace(*span, len(STEPS))) for source, span in spans.items()}
    return [series.quantity for series in identify(RawLog("names", "jsonl", columns)).logged if series.source == name]


def is_right(name: str, quantity: str) -> bool:
    """Return whether a name is taken for its quantity; one of another thing for none."""
    found, starts = meanings(name, quantity), tuple(start for _, _, starts in QUANTITIES.values() for start in starts)
    return any(x.startswith(QUANTITIES[quantity][2] or starts) for x in found) is (quantity != "none")


def main() -> None:
    """Print how many names of each quantity are told, and which are not."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else NAMES
    right, wrong = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        (right if is_right(row["name"], row["quantity"]) else wrong)[row["quantity"]].append(row["name"])
    for quantity in QUANTITIES:
        names = ", ".join(wrong[quantity])
        print(f"{quantity:20}{len(right[quantity]):4} of {len(right[quantity]) + len(wrong[quantity]):3}  {names}")
    told, missed = (sum(len(names) for kind, names in of.items() if kind != "none") for of in (right, wrong))
    print(f"{'all but none':20}{told:4} of {told + missed:3}")


if __name__ == "__main__":
    main()
