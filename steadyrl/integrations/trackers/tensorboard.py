"""TensorBoard: event files in the run directory. `tensorboard --logdir runs` finds them all."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from steadyrl.core.plugins import require
from steadyrl.doctor.readers.spelling import flat_settings
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
        settings = json.dumps(opening.settings, indent=1, default=str)
        if opening.kept.get("settings") != settings:  # at first, and where a resumed run changed some
            # Where TensorBoard looks for a text, and under the name that Hugging Face's Trainer gives to its arguments.
            self._text("args", 0, settings)
            self._begin_session(flat_settings(opening.settings), opening.info)
            opening.kept["settings"] = settings

    def _begin_session(self, settings: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Write the run's settings and the scores to sort runs by, as TensorBoard's page HPARAMS reads them."""
        api, data = (require(f"tensorboard.plugins.hparams.{name}_pb2") for name in ("api", "plugin_data"))
        wrapper = require("google.protobuf.struct_pb2").Value
        heldout_tags = [f"heldout/{info['metric']}"] if info.get("metric") else []
        start = data.SessionStartInfo(start_time_secs=float(info.get("started") or 0.0))
        infos = []
        for name, value in settings.items():  # each is one of the three kinds that the page has
            if isinstance(value, bool):
                kind, plain = api.DATA_TYPE_BOOL, wrapper(bool_value=value)
            elif isinstance(value, int | float):
                kind, plain = api.DATA_TYPE_FLOAT64, wrapper(number_value=float(value))
            else:
                kind, plain = api.DATA_TYPE_STRING, wrapper(string_value=str(value))
            infos.append(api.HParamInfo(name=name, type=kind))
            start.hparams[name].CopyFrom(plain)
        experiment = api.Experiment(
            hparam_infos=infos,
            metric_infos=[
                api.MetricInfo(name=api.MetricName(tag=tag)) for tag in (*heldout_tags, "heldout/reward", "reward/mean")
            ],
        )
        self._hparams("experiment", data.HParamsPluginData(experiment=experiment, version=0))
        self._hparams("session_start_info", data.HParamsPluginData(session_start_info=start, version=0))

    def _hparams(self, tag: str, content: Any) -> None:
        value = self._summary.Summary.Value(tag=f"_hparams_/{tag}")
        value.metadata.plugin_data.plugin_name = "hparams"
        value.metadata.plugin_data.content = content.SerializeToString()
        # A value without a tensor is none for TensorBoard's readers; what counts is in its metadata.
        value.tensor.CopyFrom(self._tensor.TensorProto(dtype=self._types.DT_FLOAT, tensor_shape={}, float_val=[0.0]))
        self._writer.add_event(self._event.Event(wall_time=clock.time(), summary=self._summary.Summary(value=[value])))

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        values = []
        for name, value in metrics.items():
            values.append(self._summary.Summary.Value(tag=name, simple_value=value))
            if name not in self._described:  # once is enough for TensorBoard
                self._described.add(name)
                values[-1].metadata.summary_description = description(name)
                values[-1].metadata.plugin_data.plugin_name = "scalars"
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time, step=step, summary=summary))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rollouts as texts."""
        texts = [
            f"**{row['problem']}**, reward {row['reward']}\n\n{_quoted(row['prompt'])}\n\n{_quoted(row['completion'])}"
            for row in rows
        ]
        self._text("rollouts", step, "\n\n---\n\n".join(texts))

    def report(self, folder: Path) -> None:
        """Write the report as a text."""
        self._text("report", 0, (folder / "report.md").read_text(encoding="utf-8"))

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
