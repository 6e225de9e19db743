"""What a check of one program costs, with warm workers, in every jail that holds here; and a long mixed run.

    python bench/sandbox_speed.py            times; writes bench/results/sandbox_speed.json
    python bench/sandbox_speed.py 10000      and so many hostile and ordinary programs, then counts what is left

The long run is over all jails that hold, one after the other.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import numpy as np

from steadyrl.sandbox.choose import probe
from steadyrl.sandbox.outcome import Returned
from steadyrl.sandbox.pool import Limits, Sandbox

ROOT = Path(__file__).parent.parent
CHECKS, WORKERS = 500, (1, 2)
CALLS = [(1, 2), (3, 4), (-5, 5)]
ORDINARY = "def add(a, b):\n    return a + b\n"
HOSTILE = (
    "import os\nos._exit(0)",
    "import os\ndef add(a, b):\n    return os.fork()",
    "import os\ndef add(a, b):\n    os.kill(os.getppid(), 9)",
    "import socket\ndef add(a, b):\n    return socket.create_connection(('127.0.0.1', 9))",
    "def add(a, b):\n    return open('/tmp/left', 'w').write('x')",
    "def add(a, b):\n    return [0] * (1 << 40)",
    "def add(a, b):\n    return 'x' * 3_000_000",
    "def add(a, b):\n    return add(a, b)",
    "import os\ndef add(a, b):\n    os.write(3, b'[\"value\", 3]\\n' * 9)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef add(a, b):\n    return 0",
    "class A:\n    def __eq__(self, o): return True\ndef add(a, b):\n    return A()",
    "def add(a, b:",
)
HANGING = "def add(a, b):\n    while True: pass"
HANGING_SHARE = 0.002


def main() -> None:
    """Measure and write."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    jails = [jail for jail in ("bubblewrap", "landlock") if not probe(jail)]
    found = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "interpreter_start_ms": interpreter_start(),
        "jails": {jail: {f"{n} workers": speed(jail, n) for n in WORKERS} for jail in jails},
    }
    if runs:
        found["long run"] = {jail: long_run(jail, runs // len(jails)) for jail in jails}
    print(json.dumps(found, indent=2))
    (ROOT / "bench" / "results" / "sandbox_speed.json").write_text(json.dumps(found, indent=2) + "\n")


def interpreter_start() -> float:
    """Return the median milliseconds of starting a bare interpreter, which a check would cost without warm workers."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        times.append(time.perf_counter() - began)
    return round(float(np.median(times)) * 1e3, 2)


def speed(jail: str, workers: int) -> dict[str, float]:
    """Return start of a worker, median and 95th percentile of a check, and checks per second."""

    def check(_: int) -> float:
        began = time.perf_counter()
        outcome = pool.run(ORDINARY, "add", CALLS)
        assert outcome.results == (Returned(3), Returned(7), Returned(0))
        return time.perf_counter() - began

    with Sandbox(jail, workers=workers) as pool, ThreadPoolExecutor(workers) as threads:
        start = check(0)
        list(threads.map(check, range(10 * workers)))
        began = time.perf_counter()
        times = list(threads.map(check, range(CHECKS)))
        took = time.perf_counter() - began
    return {
        "first_ms": round(start * 1e3, 1),
        "median_ms": round(float(np.median(times)) * 1e3, 2),
        "p95_ms": round(float(np.quantile(times, 0.95)) * 1e3, 2),
        "checks_per_s": round(CHECKS / took),
    }


def long_run(jail: str, runs: int) -> dict[str, int]:
    """Return how many programs passed of how many honest ones, and what is left afterwards."""
    rng, before = random.Random(0), leftovers()
    honest = passed = fooled = 0
    with Sandbox(jail, Limits(wall_s=1.0, cpu_s=1)) as pool:
        for _ in range(runs):
            draw = rng.random()
            ordinary = draw > 0.5
            code = ORDINARY if ordinary else HANGING if draw < HANGING_SHARE else rng.choice(HOSTILE)
            good = pool.run(code, "add", CALLS).results == (Returned(3), Returned(7), Returned(0))
            honest, passed, fooled = honest + ordinary, passed + (good and ordinary), fooled + (good and not ordinary)
    left = {f"{name}_left": leftovers()[name] - before[name] for name in before}
    return {"runs": runs, "honest": honest, "honest_passed": passed, "hostile_passed": fooled, **left}


def leftovers() -> dict[str, int]:
    """Return how many descriptors and children this process has, and how many files lie in /tmp and in its folder."""
    children = sum(len(p.read_text().split()) for p in Path("/proc/self/task").glob("*/children"))
    sockets = sum(os.readlink(p).startswith("socket:") for p in Path("/proc/self/fd").iterdir() if p.is_symlink())
    return {
        "processes": children,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "sockets": sockets,
        "files": Path("/tmp/left").exists() + len(list(Path.cwd().iterdir())),
    }


if __name__ == "__main__":
    main()
