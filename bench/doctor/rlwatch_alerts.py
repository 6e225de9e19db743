"""Alerts of rlwatch on stored runs: <python with rlwatch> bench/doctor/rlwatch_alerts.py <folder>; a JSON line each."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import rlwatch
import store

# Its own names, and where each is found in a log of ours and of TRL: its callback's map, widened to our names.
NAMES: Mapping[str, tuple[str, ...]] = {
    "entropy": ("entropy", "objective/entropy", "policy/entropy"),
    "kl_divergence": ("kl_ref_k1", "kl", "objective/kl"),
    "reward_mean": ("reward/mean", "reward", "ppo/mean_scores", "env/reward_mean"),
    "reward_std": ("reward/std", "reward_std", "ppo/std_scores", "env/reward_std"),
    "advantage_std": ("advantage/std",),
    "loss": ("loss/total", "loss", "ppo/loss/total"),
    "learning_rate": ("learning_rate", "ppo/learning_rate"),
    "clip_fraction": ("clip_fraction", "clip_ratio/region_mean", "ppo/policy/clipfrac"),
    "grad_norm": ("grad_norm",),
}


def main() -> None:
    """Print the alerts of all runs of a folder."""
    folder = Path(sys.argv[1])
    for label in store.read_labels(folder):
        for alert in alerts(store.read_metrics(store.stored(folder, label))):
            print(json.dumps({"run": label["run"], **alert}))


def alerts(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what rlwatch raises on a run, with its default settings."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        monitor = rlwatch.attach(framework="manual", storage={"log_dir": folder})
        found = []
        for number, record in enumerate(records):
            step = int(record.get("step", number))
            found += monitor.log_step(step, **known(record))
        monitor.stop()
    for alert in found:
        yield {"detector": alert.detector, "severity": alert.severity, "step": alert.step}


def known(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a step's numbers under the names of rlwatch; the first spelling that is there counts."""
    pairs = {
        name: next((record[s] for s in spellings if record.get(s) is not None), None)
        for name, spellings in NAMES.items()
    }
    return {name: float(value) for name, value in pairs.items() if value is not None}


if __name__ == "__main__":
    main()
