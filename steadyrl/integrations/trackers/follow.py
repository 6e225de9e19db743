"""Hands what a run directory holds to a tracker, from where it stopped the last time.

The run directory is the queue: nothing waits in memory, nothing is lost when a tracker is away, and what was not sent
can be sent later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from steadyrl.core.metrics import answer_means, finite_number
from steadyrl.core.plugins import make
from steadyrl.core.rundir import RunDir, appended, read_json, read_lines, write_json
from steadyrl.integrations.trackers.tracker import SAMPLES, Opening, Reporting, Tracker

LONGEST_TEXT = 4000  # characters of a text in a table
AT_ONCE = 200  # steps between two notes of how far it came
HELDOUT = ("before", "after")  # the evaluations that are sent as held-out scores of the first and of the last step
_NOT_METRICS = frozenset({"step", "attempt", "time"})


def state_file(run: RunDir, name: str) -> Path:
    """Return where it is noted how far a run was sent."""
    return run.trackers_folder / f"{name.rpartition(':')[2].rpartition('.')[2]}.json"


def sent_until(run: RunDir, name: str) -> int:
    """Return the last step that a tracker has, -1 for none."""
    return int(_state(run, name).get("sent", -1))


def is_complete(run: RunDir, name: str) -> bool:
    """Return whether a tracker has all that an ended run holds, so that nothing is left to send."""
    state, records = _state(run, name), run.metrics()
    last = max((record["step"] for record in records), default=-1)
    evaluations = {when for when in HELDOUT if run.evaluation_file(when).is_file()} if records else set()
    return bool(
        state.get("sent", -1) >= last
        and state.get("findings", 0) >= len(run.findings())
        and evaluations <= state.get("heldout", {}).keys()
        and state.get("heldout", {}).get("after", last) == last
        and state.get("report") == _report_digest(run)
    )


def _state(run: RunDir, name: str) -> dict[str, Any]:
    path = state_file(run, name)
    return read_json(path) if path.is_file() else {}


def _report_digest(run: RunDir) -> str | None:
    """Return a digest of the report's page; None where there is none. A report written again has the same bytes."""
    page = run.report_folder / "report.html"
    return sha256(page.read_bytes()).hexdigest() if page.is_file() else None


class Follower:
    """Sends a run to a tracker, again and again what is new.

    Attributes:
        again: Steps that a resumption or the autopilot made anew; a tracker keeps what it was sent first.
    """

    def __init__(self, run: RunDir, name: str):
        """Open the tracker; that may take as long as the tracker takes."""
        self._run, self._state_file = run, state_file(run, name)
        self._state = _state(run, name)
        self._offsets = {run.metrics_file: 0, run.findings_file: 0}
        self._findings_read = 0  # lines of findings.jsonl
        self.again = 0
        folder = run.trackers_folder / self._state_file.stem
        folder.mkdir(parents=True, exist_ok=True)
        tracker_state = self._state.setdefault("kept", {})
        opening = Opening(run.path.resolve().name, run.resolved(), run.info(), folder.resolve(), tracker_state)
        self._tracker: Tracker = make("tracker", name, opening)
        if self._tracker.anew:
            self._state |= {"sent": -1, "samples": -1, "findings": 0, "heldout": {}, "report": None}
        self._note()

    def send(self) -> bool:
        """Send what is new; return whether there was anything."""
        count = 0
        for count, record in enumerate(self._new_lines(self._run.metrics_file), start=1):
            self._heldout("before", record)
            step = record.get("step")
            if type(step) is int and step <= self._state.get("sent", -1):
                self.again += 1
            elif type(step) is int:
                values = {name: finite_number(value) for name, value in record.items() if name not in _NOT_METRICS}
                metrics = {name: value for name, value in values.items() if value is not None}
                self._tracker.log(step, float(record.get("time") or 0.0), metrics)
                self._state["sent"] = step
            if count % AT_ONCE == 0:
                self._note()
        sent = (count > 0, self._samples(), self._findings())  # all three, in this order
        if any(sent):
            self._note()
        return any(sent)

    def close(self, status: str) -> None:
        """Send the rest, the scores after training and the report, and end the run in the tracker."""
        self.send()
        if records := self._run.metrics():
            self._heldout("before", records[0])
            self._heldout("after", records[-1])
        digest, tracker = _report_digest(self._run), self._tracker
        if isinstance(tracker, Reporting) and digest is not None and digest != self._state.get("report"):
            tracker.report(self._run.report_folder)
            self._state["report"] = digest
        self._note()
        self._tracker.close(status)

    def _heldout(self, when: str, record: Mapping[str, Any]) -> None:
        """Send the scores before training with the first step, or those after it with the last, once."""
        file, sent = self._run.evaluation_file(when), self._state.setdefault("heldout", {})
        step = record.get("step")
        if type(step) is not int or not file.is_file() or (when in sent and (when == "before" or sent[when] == step)):
            return
        means = answer_means(list(read_lines(file)), self._run.deploy)
        scores = {f"heldout/{name}": value for name, value in means.items() if math.isfinite(value)}
        unsent = {name: value for name, value in scores.items() if name not in record}
        if unsent:
            self._tracker.log(step, float(record.get("time") or 0.0), unsent)
        sent[when] = step

    def _samples(self) -> bool:
        """Send the rollouts of the newest step that was recorded and whose metrics were sent."""
        sent, last = self._state.get("sent", -1), self._state.get("samples", -1)
        folder = self._run.rollouts_file(0).parent
        steps = [int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdecimal()]
        newest = max((step for step in steps if last < step <= sent), default=None)
        if newest is None:
            return False
        rows = [
            {name: str(record.get(name) or "")[:LONGEST_TEXT] for name in ("problem", "prompt", "completion")}
            | {"reward": finite_number(record.get("reward"))}
            for record in islice(read_lines(self._run.rollouts_file(newest)), SAMPLES)
        ]
        self._tracker.samples(sent, rows)  # W&B takes nothing for a step that is over
        self._state["samples"] = newest
        return True

    def _findings(self) -> bool:
        reported_lines = self._state.get("findings", 0)
        sent = False
        for line in self._new_lines(self._run.findings_file):
            self._findings_read += 1
            raised = line.get("state") == "raised" and isinstance(line.get("step"), int)
            if raised and self._findings_read > reported_lines:
                self._tracker.finding(line)
                sent = True
        self._state["findings"] = max(reported_lines, self._findings_read)
        return sent

    def _new_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        for _, end, record in appended(path, self._offsets[path]):
            self._offsets[path] = end
            yield record

    def _note(self) -> None:
        write_json(self._state_file, self._state)
