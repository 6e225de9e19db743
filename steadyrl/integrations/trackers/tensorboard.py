"""TensorBoard: event files in the run directory. `tensorboard --logdir runs` finds them all."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from steadyrl.core.plugins import require
from steadyrl.integrations.trackers.tracker import Opening, alert_text, description


class TensorBoardTracker:
    """Writes scalars with their units as descriptions, and samples, settings and findings as texts."""

    needs: ClassVar[str] = "tensorboard"
    anew = False

    def __init__(self, opening: Opening):
        """Begin an event file; those of earlier attempts stay, and TensorBoard reads them together."""
        writer = require("tensorboard.summary.writer.event_file_writer")
        self._summary = require("tensorboard.compat.proto.summary_pb2")
        self._event = require("tensorboard.compat.proto.event_pb2")
        self._tensor = require("tensorboard.compat.proto.tensor_pb2")
        self._types = require("tensorboard.compat.proto.types_pb2")
        self._writer = writer.EventFileWriter(str(opening.folder))
        self._described: set[str] = set()
        if not opening.kept.get("settings"):
            # Where TensorBoard looks for a text, and under the name that Hugging Face's Trainer gives to its arguments.
            self._text("args", 0, json.dumps(opening.settings, indent=1, default=str))
            opening.kept["settings"] = True

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        values = [self._scalar(name, value) for name, value in metrics.items()]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time, step=step, summary=summary))

    def _scalar(self, name: str, value: float) -> Any:
        summary = self._summary.Summary.Value(tag=name, simple_value=value)
        if name not in self._described:  # once is enough for TensorBoard
            self._described.add(name)
            summary.metadata.summary_description = description(name)
            summary.metadata.plugin_data.plugin_name = "scalars"
        return summary

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rollouts as texts."""
        texts = [
            f"**{row['problem']}**, reward {row['reward']}\n\n{_quoted(row['prompt'])}\n\n{_quoted(row['completion'])}"
            for row in rows
        ]
        self._text("rollouts", step, "\n\n---\n\n".join(texts))

    def finding(self, line: Mapping[str, Any]) -> None:
        """Write a finding as a text."""
        self._text("findings", int(line["step"]), f"**{line['severity']} {line['check']}** {alert_text(line)}")

    def _text(self, tag: str, step: int, text: str) -> None:
        tensor = self._tensor.TensorProto(dtype=self._types.DT_STRING, string_val=[text.encode("utf-8", "replace")])
        value = self._summary.Summary.Value(tag=f"{tag}/text_summary", tensor=tensor)
        value.metadata.plugin_data.plugin_name = "text"
        summary = self._summary.Summary(value=[value])
        self._writer.add_event(self._event.Event(wall_time=clock.time(), step=step, summary=summary))

    def close(self, status: str) -> None:
        """Write what is left."""
        self._writer.close()


def _quoted(text: Any) -> str:
    return "\n".join(f"    {line}" for line in str(text).splitlines() or [""])
