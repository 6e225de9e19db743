"""Trackio: a local database, which `trackio show` opens; TRACKIO_DIR and TRACKIO_SPACE_ID count as usual."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from steadyrl.core.plugins import require
from steadyrl.integrations.trackers.tracker import Opening, alert_text

PROJECT = "steadyrl"


class TrackioTracker:
    """Writes a run of trackio whose name is the run's."""

    needs: ClassVar[str] = "trackio"
    anew = False

    def __init__(self, opening: Opening):
        """Begin the run, or go on with it."""
        self._trackio = require("trackio")
        project, settings = os.environ.get("TRACKIO_PROJECT", PROJECT), dict(opening.settings)
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._trackio.init(project=project, name=opening.run, config=settings, resume="allow", **quiet)

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write metrics under our names."""
        self._trackio.log(dict(metrics), step=step)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rollouts as one text; a table of trackio needs pandas."""
        texts = [
            f"**{row['problem']}**, reward {row['reward']}\n\n{row['prompt']}\n\n{row['completion']}" for row in rows
        ]
        self._trackio.log({"rollouts": self._trackio.Markdown("\n\n---\n\n".join(texts))}, step=step)

    def report(self, folder: Path) -> None:
        """Write the report's text; trackio has no files of other kinds."""
        text = (folder / "report.md").read_text(encoding="utf-8")
        self._trackio.log({"report": self._trackio.Markdown(text)})

    def finding(self, line: Mapping[str, Any]) -> None:
        """Send an alert."""
        levels = self._trackio.AlertLevel
        level = {"critical": levels.ERROR, "warning": levels.WARN}.get(str(line["severity"]), levels.INFO)
        self._trackio.alert(title=f"{line['check']} (step {line['step']})", text=alert_text(line), level=level)

    def close(self, status: str) -> None:
        """End the run."""
        self._trackio.finish()
