"""How often do forecasts hold the end of finished runs? python bench/forecast_coverage.py

The runs are the healthy ones of bench/doctor/data with more than 40 steps, the score is their training reward. Each is
cut in its middle. The last lines are what `steadyrl forecast` does with the first run of each task and
algorithm, tried on the others.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from steadyrl.core.rundir import RunDir
from steadyrl.lab.forecast import BLOCKS, coverage, forecast_run, needed_width, points, widened, widths_on

sys.path.insert(0, str(Path(__file__).parent / "doctor"))

import store

METRIC = "reward/mean"


def main() -> None:
    """Print the coverage over all runs, and where the command abstains."""
    with tempfile.TemporaryDirectory() as folder:
        alike: dict[tuple[str, str], list[RunDir]] = {}
        for label in store.read_labels():
            if label["fault"] == "healthy" and label["steps"] > 2 * BLOCKS:
                run = RunDir(store.unpack(store.stored(store.DATA, label), Path(folder) / label["run"]))
                if run.metrics():
                    alike.setdefault((label["task"], label["algorithm"]), []).append(run)
        runs = [run for several in alike.values() for run in several]
        known = [width for run in runs if (width := needed_width(*points(run, METRIC))) is not None]
        held = sum(width <= 1 for width in known)
        print(f"the bootstrap alone: {held} of {len(known)} ends ({held / len(known):.0%})")
        kept = coverage(known)
        print(f"widened by {widened(known):.2f}: {kept} of {len(known)} ends ({kept / len(known):.0%}), nominal 80 %")
        for (task, algorithm), (first, *others) in alike.items():
            told = forecast_run(first, widths_on(others, first, METRIC), METRIC)
            said = told.reason or f"a forecast; its intervals held {told.covered} of {told.tried} ends"
            print(f"{task}, {algorithm}, {len(others) + 1} runs: {said}", flush=True)


if __name__ == "__main__":
    main()
