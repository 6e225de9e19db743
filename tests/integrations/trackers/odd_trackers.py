"""Trackers that a run must survive: one that hangs, one that dies, one that writes down what it is given."""

import json
import subprocess
import time

from steadyrl.integrations.trackers.tracker import Tracker


class Keeping:
    needs = "json"
    anew = False

    def __init__(self, opening):
        self.file = opening.folder / "kept.jsonl"
        opening.kept["opened"] = opening.kept.get("opened", 0) + 1
        self._write(open=opening.run, settings=opening.settings)

    def _write(self, **line):
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def log(self, step, time, metrics):
        self._write(step=step, metrics=metrics)

    def samples(self, step, rows):
        self._write(samples=rows)

    def finding(self, line):
        self._write(finding=line["check"])

    def report(self, folder):
        self._write(report=sorted(path.name for path in folder.iterdir()))

    def close(self, status):
        self._write(status=status)


class Hanging(Keeping):
    def log(self, step, time_s, metrics):
        if step == 2:
            time.sleep(600)


class Straying(Keeping):
    """Starts a process in a session of its own, as W&B does, and dies."""

    def log(self, step, time_s, metrics):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._write(child=child.pid)
        raise ConnectionError("the server is gone")


class Dying(Keeping):
    def log(self, step, time_s, metrics):
        if step == 2:
            raise ConnectionError("the server is gone")


class Counting(Tracker):
    def __init__(self, opening):
        self.path = opening.folder / "steps"

    def log(self, step, time, metrics):
        with self.path.open("a") as file:
            file.write(f"{step} ")


class Failing(Counting):
    def log(self, step, time, metrics):
        metrics["reward/meen"]
