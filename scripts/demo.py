"""What `make demo` shows: PPO settings that fail beside steady ones, and a pretrained model that learns to do sums.

    python scripts/demo.py settings
    python scripts/demo.py sums

The first writes runs/demo/settings.svg. docs/pictures/settings.svg is a copy of the picture, and sums.svg one of
report/overview.svg of the second.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from ten_answers import answers, ten_of

from steadyrl.core.rundir import RunDir
from steadyrl.loop.evaluate import held_out_score
from steadyrl.show.report.pictures.curves import TOPICS, overlay

FOLDER = Path("runs/demo")
BOTH = ["run.steps=60", "run.preflight=off", "evaluate.problems=200", "backend.threads=1"]
SETTINGS = {
    "founding settings": ["examples/founding.toml", *BOTH],
    # Fewer and smaller steps than the example's, with a stronger pull to the reference.
    "steady settings": [
        "examples/search.toml",
        *BOTH,
        "rollout.prompts_per_step=32",
        "update.learning_rate=1e-4",
        "algorithm.args.kl_coef=0.02",
    ],
}
# Sums of two digits (0 to 9), which a few steps at a higher rate than the example's teach.
SUMS = [
    "examples/smollm2/math.toml",
    "run.steps=10",
    "run.preflight=off",
    "task.args.levels=[1]",
    "update.learning_rate=7e-4",
    "update.warmup_steps=2",
    "evaluate.problems=100",
]
COLUMNS = {"reward/mean": "reward", "kl_ref_k1_seq": "KL, nats", "entropy": "entropy", "completion/length": "length"}
JUDGED = (1, 3)  # exit codes of the doctor: sick, and too little to judge
LINE_EVERY_S = 5.0  # where the output is no terminal
console = Console(highlight=False)


class Training:
    """A `steadyrl train` in a process of its own; its output is read in a thread."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.lines = ["starting"]
        self.folder: Path | None = None
        command = [sys.executable, "-m", "steadyrl", "train", *arguments, f"run.folder={FOLDER}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                if line.startswith("run directory: "):
                    self.folder = Path(line.partition(": ")[2].strip())

    def row(self) -> list[str]:
        """Return the name, the step and the last metrics."""
        records = RunDir.open(self.folder).metrics() if self.folder else []
        values = [records[-1].get(metric) for metric in COLUMNS] if records else []
        return [self.name, str(len(records)), *("" if value is None else f"{value:.3g}" for value in values)]

    def status(self) -> str:
        """Return the name and the last line of the output that is no detail of another line, which are indented."""
        return f"{self.name}: {[line for line in self.lines if line and not line.startswith(' ')][-1]}"

    def end(self) -> RunDir:
        """Return the finished run; a failed one ends the demo with its last lines."""
        self._reader.join()
        if self.process.wait() or self.folder is None:
            sys.exit("\n".join([f"{self.name}: the training failed", *self.lines[-20:]]))
        return RunDir.open(self.folder)


def progress(trainings: Sequence[Training]) -> Group:
    """Return a table of the last metrics, and the phase of each training; the table has the numbers of a step."""
    table = Table("", "step", *COLUMNS.values(), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for training in trainings:
        table.add_row(*training.row())
    phases = (training.status().partition("  ")[0] for training in trainings)
    return Group(table, *(Text(phase, overflow="fold", style="dim") for phase in phases))


def train(experiments: dict[str, list[str]]) -> dict[str, RunDir]:
    """Train several runs at once, and show how far they are."""
    for name, arguments in experiments.items():
        console.print(f"{name}: steadyrl train {' '.join(arguments)}", style="dim")
    began = time.monotonic()
    trainings = [Training(name, arguments) for name, arguments in experiments.items()]
    spinner = Spinner("dots")
    printed = dict.fromkeys(trainings, "")  # the last status of each, where the output is no terminal

    def view() -> Group:
        spinner.update(text=f"{time.monotonic() - began:.0f} s")
        return Group(progress(trainings), spinner)

    try:
        with Live(console=console, get_renderable=view, refresh_per_second=4):
            while any(training.process.poll() is None for training in trainings):
                time.sleep(LINE_EVERY_S if not console.is_terminal else 0.25)
                if not console.is_terminal:
                    for training in trainings:
                        if (status := training.status()) != printed[training]:
                            print(f"{time.monotonic() - began:.0f} s  {status}", flush=True)
                        printed[training] = status
    finally:
        for training in trainings:
            training.process.terminate()  # those that still run after Ctrl-C or an error
    return {training.name: training.end() for training in trainings}


def steadyrl(*arguments: str) -> None:
    """Run a command as a user would, after showing it."""
    console.print(f"\n$ steadyrl {' '.join(arguments)}", style="bold", markup=False)
    done = subprocess.run([sys.executable, "-m", "steadyrl", *arguments], check=False)
    if done.returncode not in (0, *JUDGED):
        sys.exit(done.returncode)


def settings() -> None:
    """Train with failing and with steady settings, and show the doctor's diagnoses and a picture of both."""
    console.print(
        "The shipped model (1.8 million parameters) learns to write search queries by PPO, twice at once: with the "
        "settings that this project began with, and with steady ones. Model, requests and reward are the same.\n"
    )
    runs = train(SETTINGS)
    for name, run in runs.items():
        console.print(f"\n{name}: mean F1 of greedy answers to held-out requests {before_and_after(run)}", style="bold")
        steadyrl("doctor", str(run.path))
    picture = FOLDER / "settings.svg"
    drawn = overlay({name: [run.metrics()] for name, run in runs.items()}, [TOPICS[0], TOPICS[1], TOPICS[4]])
    assert drawn is not None, "both runs have rewards"
    picture.write_text(drawn, encoding="utf-8")
    console.print(f"\nboth in one picture: {picture}")
    steadyrl("report", *(str(run.path) for run in runs.values()), "--to", str(FOLDER / "settings"))
    console.print("; ".join(f"{letter} has the {name}" for letter, name in zip("AB", runs, strict=True)))


def sums() -> None:
    """Train SmolLM2 on arithmetic, and show ten answers before and after."""
    console.print(
        "\nSmolLM2-135M, a pretrained model, learns to add digits by GRPO. The problems shown are held out.\n"
    )
    (run,) = train({"sums": SUMS}).values()
    scores = before_and_after(run)
    console.print(f"\nshare of right greedy answers to held-out problems {scores}. Ten of them at random:\n")
    before, after = (answers(run.evaluation_file(when)) for when in ("before", "after"))
    table = Table("problem", "before", "", "after", "", box=None)
    for problem in ten_of(before):
        row = [" ".join(before[problem]["prompt"].split())]
        for stage in (before, after):
            answer = stage[problem]["answers"]["greedy"]
            row += [" ".join(answer["text"].split())[:20] or "(nothing)", "right" if answer["metric"] == 1 else "wrong"]
        table.add_row(*map(Text, row))
    console.print(table)


def before_and_after(run: RunDir) -> str:
    """Return the means of the task's metric over the greedy held-out answers."""
    scores = [held_out_score(run.evaluations()[when], 0, "greedy") for when in ("before", "after")]
    return " -> ".join("unknown" if score is None else f"{score.score:.2f}" for score in scores)


if __name__ == "__main__":
    parts = {"settings": settings, "sums": sums}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        sys.exit(f"usage: python scripts/demo.py {' | '.join(parts)}")
    try:
        parts[sys.argv[1]]()
    except KeyboardInterrupt:
        sys.exit(130)
