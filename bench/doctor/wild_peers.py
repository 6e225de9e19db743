"""Alarms of other tools on published logs: <its python> bench/doctor/wild_peers.py NAME ROWS.json; prints JSON.

Each tool gets the quantities under its own names, with its default settings. Every alarm above information counts, in
the tool's own order.
"""

from __future__ import annotations

import io
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

Row = Mapping[str, float]
# Our quantity -> the name in rlwatch, rl-doctor and rlprobe; "" where the tool has none.
NAMES: Mapping[str, tuple[str, str, str]] = {
    "reward": ("reward_mean", "reward_mean", "reward_mean"),
    "reward_std": ("reward_std", "reward_std", "reward_std"),
    "reward_std_within": ("", "", "group_reward_std_mean"),
    "reward_min": ("", "reward_min", "reward_min"),
    "reward_max": ("", "reward_max", "reward_max"),
    "no_signal": ("", "zero_var_group_frac", "zero_variance_group_frac"),
    "advantage_mean": ("", "advantage_mean", "adv_mean"),
    "advantage_std": ("advantage_std", "advantage_std", "adv_std"),
    "entropy": ("entropy", "entropy", "entropy_mean"),
    "kl_ref": ("kl_divergence", "kl", "kl_mean"),
    "clip_fraction": ("clip_fraction", "pg_clipfrac", "clip_fraction"),
    "grad_norm": ("grad_norm", "grad_norm", "grad_norm"),
    "learning_rate": ("learning_rate", "lr", "lr"),
    "loss": ("loss", "", "loss"),
    "loss_policy": ("", "policy_loss", "policy_loss"),
    "loss_value": ("", "", "value_loss"),
    "explained_variance": ("", "value_explained_var", "value_explained_variance"),
    "length": ("", "response_len_mean", "completion_len_mean"),
    "length_max": ("", "response_len_max", "completion_len_max"),
    "truncated": ("", "response_len_clip_ratio", "truncation_rate"),
    "repetition": ("", "", "repetition_rate"),
    "time_step": ("", "time_per_step", "step_time_s"),
}


def main() -> None:
    """Print the alarms of one tool, by log."""
    name, path = sys.argv[1], Path(sys.argv[2])
    tool, place = TOOLS[name]
    every = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for log, rows in every.items():
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found[log] = list(dict.fromkeys(tool([renamed(row, place) for row in rows])))
    print(json.dumps(found))


def renamed(row: Row, place: int) -> dict[str, float]:
    """Return a row under a tool's names, parts of the reward with the prefix that TRL gives them."""
    known = {NAMES[name][place]: value for name, value in row.items() if name in NAMES and NAMES[name][place]}
    parts = {name: value for name, value in row.items() if name.startswith("reward_part/")}
    spelled = {f"rewards/{name.removeprefix('reward_part/')}/mean": value for name, value in parts.items()}
    return {"step": row["step"], **known, **({}, spelled, parts)[place]}


def rlwatch_alarms(rows: list[dict[str, float]]) -> list[str]:
    """Return rlwatch's alerts."""
    import rlwatch

    with tempfile.TemporaryDirectory() as folder:
        monitor = rlwatch.attach(framework="manual", storage={"log_dir": folder})
        found = []
        for row in rows:
            found += monitor.log_step(int(row["step"]), **{name: v for name, v in row.items() if name != "step"})
        monitor.stop()
    return [alert.detector for alert in found]


def rldoctor_alarms(rows: list[dict[str, float]]) -> list[str]:
    """Return rl-doctor's problems, worst first."""
    from rl_doctor import Severity, diagnose, run_from_records

    return [f.detector for f in diagnose(run_from_records(rows)).problems if f.severity > Severity.INFO]


def rlprobe_alarms(rows: list[dict[str, float]]) -> list[str]:
    """Return rlprobe's findings above information, in its order."""
    from rlprobe.doctor.engine import diagnose_view
    from rlprobe.doctor.runview import RunView
    from rlprobe.schemas import RunManifest, StepRecord

    fields = StepRecord.model_fields
    records = []
    for row in rows:
        known = {name: value for name, value in row.items() if name in fields and math.isfinite(value)}
        lost = sum(math.isnan(value) for value in row.values())
        endless = sum(math.isinf(value) for value in row.values())
        parts = {name.removeprefix("reward_part/"): v for name, v in row.items() if name.startswith("reward_part/")}
        counts = {"step": int(row["step"]), "nan_count": lost, "inf_count": endless, "reward_components": parts}
        records.append(StepRecord(**{**known, **counts}))
    view = RunView(RunManifest.model_construct(), records)
    return [finding.signature_id for finding in diagnose_view(view) if str(finding.severity).lower() != "info"]


Tool = Callable[[list[dict[str, float]]], list[str]]
TOOLS: Mapping[str, tuple[Tool, int]] = {
    "rlwatch": (rlwatch_alarms, 0),
    "rldoctor": (rldoctor_alarms, 1),
    "rlprobe": (rlprobe_alarms, 2),
}

if __name__ == "__main__":
    main()
