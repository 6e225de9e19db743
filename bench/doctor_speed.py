"""How long the doctor takes: for a million logged steps, for a short log, beside a live run.

Writes bench/results/doctor_speed.json. Python's own JSON parser, which large logs do not go through, is timed beside
the first: on a machine that does other work both grow alike.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from itertools import islice
from pathlib import Path

import numpy as np

from steadyrl.core.metrics import CATALOGUE
from steadyrl.doctor.live import EVERY, LiveDoctor

ROOT = Path(__file__).parent.parent
STEPS, SHORT, REPEATS = 1_000_000, 300, 3
LIVE_STEPS = 2000
CHUNK = 5000  # lines
START = "import sys; from steadyrl.cli.main import main; sys.argv[0] = 'steadyrl'; main()"


def curves(n: int) -> dict[str, np.ndarray]:
    """Return eight metrics of a run that learns, [n] each, under steadyrl's names."""
    rng, t = np.random.default_rng(0), np.arange(n) / n
    return {
        "reward/mean": 0.2 + 0.4 * t + 0.05 * rng.normal(size=n),
        "kl_ref_k1_seq": 6.0 * t + 0.3 * rng.normal(size=n),
        "kl_ref_k3": 0.001 + 0.3 * t,
        "entropy": 2.0 - t + 0.02 * rng.normal(size=n),
        "kl_old_k3": 0.01 * np.exp(0.3 * rng.normal(size=n)),
        "loss/policy": 0.01 * rng.normal(size=n),
        "grad_norm": np.exp(0.3 * rng.normal(size=n)),
        "clip_fraction": np.clip(0.1 + 0.02 * rng.normal(size=n), 0.0, 1.0),
    }


def lines(n: int) -> Iterator[str]:
    """Yield the log line by line."""
    columns = {name: np.round(values, 6).tolist() for name, values in curves(n).items()}
    for step in range(n):
        yield json.dumps({"step": step, **{name: values[step] for name, values in columns.items()}}) + "\n"


def timed(*arguments: str) -> dict[str, float]:
    """Return the seconds that `steadyrl doctor` takes on one core, the median of some runs."""
    core = min(os.sched_getaffinity(0))
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-c", START, "doctor", *arguments],
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode in (0, 1, 3), f"steadyrl doctor {arguments} ended with {child.returncode}"
        found.append((time.perf_counter() - start, used.ru_utime + used.ru_stime))
    wall_s, processor_s = (statistics.median(row[i] for row in found) for i in (0, 1))
    return {"wall_s": wall_s, "processor_s": processor_s}


def parse(log: Path) -> None:
    """Parse a log as JSON, and do nothing with it."""
    with log.open(encoding="utf-8") as file:
        while chunk := list(islice(file, CHUNK)):
            json.loads(f"[{','.join(chunk)}]")


def processor_seconds(work: Callable[[], None]) -> float:
    """Return the processor time of some work in this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def live() -> dict[str, float]:
    """Return what a step costs beside a run that logs every metric of the catalogue."""
    rng = np.random.default_rng(0)
    names = [metric.name for metric in CATALOGUE if "*" not in metric.name]
    known = curves(LIVE_STEPS)
    rows = [
        {name: float(known[name][i]) if name in known else float(np.exp(0.1 * rng.normal())) for name in names}
        for i in range(LIVE_STEPS)
    ]
    doctor = LiveDoctor({})
    total = processor_seconds(lambda: [doctor.add(i, row) for i, row in enumerate(rows)] and None)
    last = processor_seconds(lambda: doctor.look(LIVE_STEPS) and None)
    return {
        "steps": LIVE_STEPS,
        "metrics": len(names),
        "every": EVERY,
        "ms_per_step": 1000 * total / LIVE_STEPS,
        "ms_of_the_last_examination": 1000 * last,
    }


def main() -> None:
    """Measure, print and write."""
    result = {
        "date": date.today().isoformat(),
        "command": "python bench/doctor_speed.py",
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_1_min": round(os.getloadavg()[0], 1),
        },
        "cores_used": 1,
        "repeats": REPEATS,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, n in (("million", STEPS), ("short", SHORT)):
            log = Path(folder, f"{name}.jsonl")
            with log.open("w", encoding="utf-8") as file:
                file.writelines(lines(n))
            result[name] = {"steps": n, "metrics": 8, "mib": log.stat().st_size / 2**20, **timed(str(log), "--json")}
            result[name]["json_processor_s"] = processor_seconds(lambda: parse(log))  # noqa: B023  # called at once
            print(name, result[name])
    result["live"] = live()
    print("live", result["live"])
    file = ROOT / "bench" / "results" / "doctor_speed.json"
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
