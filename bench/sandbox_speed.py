"""What a check of one program costs, with warm workers, in every jail that holds here; and a long mixed run.

    python bench/sandbox_speed.py            times; writes bench/results/sandbox_speed.json
    python bench/sandbox_speed.py 10000      and so many hostile and ordinary programs, then counts what is left

The long run is over all jails that hold, one after the other. What is left is looked for among all descendants of this
process, which adopts those whose parents are gone, and among the names in its folder, /tmp, /var/tmp, /dev/shm and the
home folder: nothing else should write there meanwhile. Linux only, as the jails are.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the attacks lie with the tests, which are no package that is installed

import numpy as np  # noqa: E402

from steadyrl.environments.code.sandbox.choose import probe  # noqa: E402
from steadyrl.environments.code.sandbox.outcome import Returned  # noqa: E402
from steadyrl.environments.code.sandbox.pool import Limits, Sandbox  # noqa: E402
from tests.environments.code.sandbox.attacks.every import EVERY  # noqa: E402
from tests.environments.code.sandbox.attacks.record import WRITTEN  # noqa: E402

CHECKS, WORKERS = 500, (1, 2)
CALLS = [(1, 2), (3, 4), (-5, 5)]
ORDINARY = "def add(a, b):\n    return a + b\n"
HOSTILE = [attack.code for attack in EVERY if not (attack.slow or attack.right or "@" in attack.code)]
HANGING = "def add(a, b):\n    while True: pass"
HANGING_SHARE = 0.002
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>
_SETTLE_S = 1.0  # for what was killed last to be gone


@dataclass(frozen=True)
class Surroundings:
    """What programs could leave behind.

    Attributes:
        processes: Ids of the living descendants of this process.
        descriptors, sockets: How many this process has open.
        names: Paths in its folder, the home folder and those where anybody may write.
    """

    processes: frozenset[int]
    descriptors: int
    sockets: int
    names: frozenset[str]


def main() -> None:
    """Measure and write."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    adopt_orphans()
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
    """Return start of a worker, median and 95th percentile of a check, processor time of one, and checks per second."""

    def check(_: int) -> float:
        began = time.perf_counter()
        outcome = pool.run(ORDINARY, "add", CALLS)
        assert outcome.results == (Returned(3), Returned(7), Returned(0))
        return time.perf_counter() - began

    with Sandbox(jail, workers=workers) as pool, ThreadPoolExecutor(workers) as threads:
        start = check(0)
        list(threads.map(check, range(10 * workers)))
        used, began = processor_time(), time.perf_counter()
        times = list(threads.map(check, range(CHECKS)))
        took, used = time.perf_counter() - began, processor_time() - used
    return {
        "first_ms": round(start * 1e3, 1),
        "median_ms": round(float(np.median(times)) * 1e3, 2),
        "p95_ms": round(float(np.quantile(times, 0.95)) * 1e3, 2),
        "processor_ms": round(used / CHECKS * 1e3, 2),
        "checks_per_s": round(CHECKS / took),
    }


def processor_time() -> float:
    """Return the seconds of processor time of this process and of its living descendants with their dead children.

    Unlike seconds of the clock they hardly depend on what else the machine does.
    """
    ticks = 0
    for pid in {os.getpid(), *descendants(os.getpid())}:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11 : 13 if pid == os.getpid() else 15]))
    return ticks / os.sysconf("SC_CLK_TCK")


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
    time.sleep(_SETTLE_S)
    after = leftovers()
    for name in sorted(after.names - before.names):
        print(f"not there before the long run in {jail}: {name}", file=sys.stderr)
    found = {"runs": runs, "honest": honest, "honest_passed": passed, "hostile_passed": fooled}
    return found | left_since(before, after)


def left_since(before: Surroundings, after: Surroundings) -> dict[str, int]:
    """Return how much of each kind is there that was not there before."""
    return {
        "processes_left": len(after.processes - before.processes),
        "descriptors_left": after.descriptors - before.descriptors,
        "sockets_left": after.sockets - before.sockets,
        "files_left": len(after.names - before.names),
    }


def adopt_orphans() -> None:
    """Have descendants whose parents end become children of this process, and not of the first one of the machine.

    Raises:
        OSError: The kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_ADOPT, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")


def leftovers() -> Surroundings:
    """Return what is there now; see ``adopt_orphans``, without which orphans are not seen."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    folders = [folder for folder in (Path.cwd(), Path.home(), *map(Path, WRITTEN)) if folder.is_dir()]
    return Surroundings(
        processes=frozenset(descendants(os.getpid())),
        descriptors=len(links),
        sockets=sum(link.startswith("socket:") for link in links),
        names=frozenset(str(path) for folder in folders for path in folder.iterdir()),
    )


def descendants(root: int) -> set[int]:
    """Return the ids of all living descendants of a process.

    The dead that nobody has waited for are left out: of adopted ones this process has some that the first process of
    the machine would have waited for.
    """
    parents, dead = {}, set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        state, parent = text.rpartition(")")[2].split()[:2]  # a name may hold spaces and brackets
        pid = int(path.parent.name)
        parents[pid] = int(parent)
        if state in "ZX":
            dead.add(pid)
    found, new = set(), {root}
    while new := {pid for pid, parent in parents.items() if parent in new} - found:
        found |= new
    return found - dead


if __name__ == "__main__":
    main()
