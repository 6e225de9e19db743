"""MLflow: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME count as usual."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from steadyrl.core.plugins import require
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.integrations.trackers.tracker import Opening, alert_text, description

EXPERIMENT = "steadyrl"
LONGEST_PARAM, LONGEST_NAME = 6000, 250  # characters; MLflow refuses longer ones
MOST_PARAMS = 100  # in one call
UNITS = "metrics.md"
_ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}
# MLflow allows these characters in names, and no others.
_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. :/")


class MLflowTracker:
    """Writes a run of MLflow; its id is kept, so that a resumed run goes on with it."""

    needs: ClassVar[str] = "mlflow"
    anew = False

    def __init__(self, opening: Opening):
        """Begin the run, or go on with it."""
        mlflow = require("mlflow")
        self._entities = require("mlflow.entities")
        self._client = mlflow.MlflowClient()
        run_id = opening.kept.get("run_id")
        flat = flat_settings(opening.settings)
        settings = {_name(name): str(value)[:LONGEST_PARAM] for name, value in flat.items()}
        self._units: dict[str, str] = {}
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
            self._id = str(run_id)
            params = self._client.get_run(self._id).data.params
            for name, value in settings.items():
                if params.get(name) != value:  # a resumed run set it anew, and params cannot change
                    self._client.set_tag(self._id, f"resumed.{name}"[:LONGEST_NAME], value)
            return
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(experiment_name)
        self._id = self._client.create_run(str(experiment_id), run_name=opening.run).info.run_id
        opening.kept["run_id"] = self._id
        entries = [self._entities.Param(name, value) for name, value in settings.items()]
        for begin in range(0, len(entries), MOST_PARAMS):
            self._client.log_batch(self._id, params=entries[begin : begin + MOST_PARAMS])

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write metrics under our names, and their meanings and units as an artifact: MLflow cuts a description."""
        time_ms = int(time * 1000)
        values = [self._entities.Metric(_name(name), value, time_ms, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)
        if new_names := metrics.keys() - self._units.keys():
            self._units |= {name: description(name) for name in new_names}
            rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in sorted(self._units.items()))
            self._client.log_text(self._id, f"| metric | meaning |\n|---|---|\n{rows}", UNITS)
            self._client.set_tag(
                self._id, "mlflow.note.content", f"Meanings and units of the metrics: artifact {UNITS}"
            )

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table as an artifact."""
        columns = ["problem", "prompt", "completion", "reward"]
        table = {"columns": columns, "data": [[row[name] for name in columns] for row in rows]}
        self._client.log_dict(self._id, table, f"rollouts/{step:06d}.json")

    def report(self, folder: Path) -> None:
        """Write the report as artifacts."""
        self._client.log_artifacts(self._id, str(folder), "report")

    def finding(self, line: Mapping[str, Any]) -> None:
        """Set a tag, for MLflow has no alerts."""
        text = f"{line['severity']} at step {line['step']}: {alert_text(line)}"
        self._client.set_tag(self._id, _name(f"finding.{line['check']}"), text[:LONGEST_PARAM])

    def close(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self._id, status=_ENDS.get(status, "FAILED"))


def _name(text: str) -> str:
    return "".join(sign if sign in _ALLOWED else "_" for sign in text)[:LONGEST_NAME]
