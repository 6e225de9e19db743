"""What a part of the check is given, and the rows that it yields."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BESIDE = {"cuda": 5, "cpu": 2}  # parts at a time
COMMAND = [sys.executable, "-c", "from steadyrl.cli.main import main; main()"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: That was measured.
        value: A number or a text; None where nothing could be measured.
        unit: Of the number.
        bound: What the value must keep to, in words; empty where it is measured only.
        ok: Whether it does; None where nothing is asked of it, or it was skipped.
        note: Why, where a row needs a reason.
    """

    what: str
    value: float | str | None
    unit: str = ""
    bound: str = ""
    ok: bool | None = None
    note: str = ""

    def record(self) -> dict[str, Any]:
        """Return what is written to JSON."""
        finite = not isinstance(self.value, float) or math.isfinite(self.value)
        return asdict(self) | {"value": self.value if finite else str(self.value)}


def at_most(what: str, value: float, bound: float, unit: str = "", note: str = "") -> Row:
    """Return the row of a value that must be no larger than a bound; what is no number is too large."""
    return Row(what, value, unit, f"<= {bound:g}", bool(value <= bound), note)


def skipped(what: str, why: str) -> Row:
    """Return the row of what could not be tried here."""
    return Row(what, None, note=f"skipped: {why}")


@dataclass(frozen=True)
class Place:
    """Where a part computes.

    Attributes:
        device: "cuda" or "cpu".
        folder: An empty folder of its own.
        limit_s: Seconds after which the part is ended.
    """

    device: str
    folder: Path
    limit_s: float

    @property
    def small(self) -> bool:
        """Whether sizes are those for a CPU."""
        return self.device == "cpu"


def steadyrl(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command line; its output goes to the part's own, or to what ``options`` say."""
    return subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, text=True, **options)


def finished(*arguments: str, **options: Any) -> str:
    """Run the command line to its end and return its output.

    Raises:
        RuntimeError: It failed.
    """
    process = steadyrl(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    output = process.communicate()[0]
    if process.returncode:
        raise RuntimeError(f"steadyrl {' '.join(arguments)} ended with {process.returncode}: {output[-1500:]}")
    return output


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Yield a list that holds the seconds of the block once it is over."""
    seconds: list[float] = []
    began = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - began)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a part: packages of this checkout first, nothing from the network, and no pictures."""
    undrawn = ROOT / "tests" / "processes"  # the pictures of its report are a fifth of the time of a short run
    paths: Sequence[str] = [str(ROOT), str(ROOT / "bench"), str(undrawn), os.environ.get("PYTHONPATH", "")]
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    # Parts run beside each other: with more threads than cores they slow one another many times over.
    asked = {**os.environ, **(more or {})}  # what a part starts has its DEVICE
    cores = len(os.sched_getaffinity(0)) // BESIDE.get(asked.get("DEVICE", ""), 1)
    threads = {"OMP_NUM_THREADS": str(max(1, cores))}
    return {**os.environ, **quiet, **threads, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(more or {})}
