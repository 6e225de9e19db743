"""Weights & Biases, online, or offline into the run directory where no key is known (`wandb sync` sends it later)."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from steadyrl.core.plugins import require
from steadyrl.integrations.trackers.tracker import Opening, alert_text, description

PROJECT = "steadyrl"
# The two sections of graphs beside our own names: what is learned, and how the policy moves.
TRAIN = (
    "reward/mean", "kl_ref_k1_seq", "kl_ref_exact_seq", "algorithm/kl_coef", "loss/policy", "loss/value",
    "completion/length",
)  # fmt: skip
POLICY = (
    "entropy", "entropy_sampled", "clip_fraction", "kl_old_k3", "advantage/mean", "advantage/std",
    "value/explained_variance", "grad_norm",
)  # fmt: skip
SECTIONS = {name: f"{section}/{name}" for section, names in (("train", TRAIN), ("policy", POLICY)) for name in names}


class WandbTracker:
    """Writes a run of W&B whose id is the run's name. WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE count as usual."""

    needs: ClassVar[str] = "wandb"

    def __init__(self, opening: Opening):
        """Begin the run, or go on with it online; an offline run is written anew, as one whole."""
        wandb = require("wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if _has_key(wandb) else "offline")
        self.anew = mode == "offline"
        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=opening.run[:128].replace("/", "-"),  # what W&B takes for an id
            name=opening.run,
            resume="allow" if mode == "online" else None,
            mode=mode,
            dir=str(opening.folder),
            config={**opening.settings, "algorithm": opening.info.get("algorithm"), "task": opening.info.get("task")},
            allow_val_change=True,  # of settings that a resumed run changed
            settings=wandb.Settings(console="off", silent=True, **_measured_process(opening.info)),
        )
        self._units: set[str] = set()

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write metrics under our names, and those of the two sections under these names, too."""
        copies = {SECTIONS[name]: value for name, value in metrics.items() if name in SECTIONS}
        if step < self._run.step:  # of a step that is over W&B takes nothing; its summary does
            self._run.summary.update(dict(metrics))
        else:
            self._run.log({**metrics, **copies, "timestamp": time}, step=step)
        if new_names := metrics.keys() - self._units:
            self._units |= new_names
            self._run.config.update(
                {"metrics": {name: description(name) for name in sorted(self._units)}}, allow_val_change=True
            )

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table."""
        columns = ["problem", "prompt", "completion", "reward"]
        table = self._wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])
        self._run.log({"rollouts": table}, step=step)

    def report(self, folder: Path) -> None:
        """Write the report as an artifact."""
        artifact = self._wandb.Artifact(f"report-{self._run.id}", type="report")
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact)

    def finding(self, line: Mapping[str, Any]) -> None:
        """Send an alert."""
        levels = {"critical": "ERROR", "warning": "WARN"}
        level = levels.get(str(line["severity"]), "INFO")
        self._run.alert(title=f"{line['check']} (step {line['step']})", text=alert_text(line), level=level)

    def close(self, status: str) -> None:
        """End the run, as failed where it was."""
        self._run.finish(exit_code=0 if status in ("finished", "interrupted") else 1)


def _measured_process(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which W&B measures the process that trains, and nothing of a run that has ended."""
    process = info.get("process") or {}
    if info.get("status") != "running" or process.get("node") != platform.node():
        return {"x_disable_stats": True}
    return {"x_stats_pid": process["id"]}


def _has_key(wandb: Any) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.path.expanduser(os.environ.get("NETRC", "~/.netrc")))
    return netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="replace")
