"""How often do forecasts hold the end of finished runs? python bench/forecast_coverage.py

The runs are the healthy ones of bench/doctor/data with more than 40 steps, the score is their training reward. Each is
cut in its middle. "Abstains" counts what `steadyrl forecast` would do with each run, tried on the others of its task
and algorithm.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from steadyrl.rundir import RunDir
from steadyrl.studies.forecast import BLOCKS, coverage, forecast_run, needed_width, points, widened

sys.path.insert(0, str(Path(__file__).parent / "doctor"))

import store

METRIC = "reward/mean"


def main() -> None:
    """Print the coverage over all runs, and how often the command abstains."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            RunDir(store.unpack(store.stored(store.DATA, label), Path(folder) / label["run"]))
            for label in store.read_labels()
            if label["fault"] == "healthy" and label["steps"] > 2 * BLOCKS
        ]
        runs = [run for run in runs if run.metrics()]
        known = [width for run in runs if (width := needed_width(*points(run, METRIC))) is not None]
        held = sum(width <= 1 for width in known)
        print(f"the bootstrap alone: {held} of {len(known)} ends ({held / len(known):.0%})")
        kept = coverage(known)
        print(f"widened by {widened(known):.2f}: {kept} of {len(known)} ends ({kept / len(known):.0%}), nominal 80 %")
        told = [forecast_run(run, [other for other in runs if other is not run], METRIC) for run in runs]
    silent = [one for one in told if one.forecast is None]
    print(f"abstains for {len(silent)} of {len(told)} runs:")
    for why, count in Counter(one.why for one in silent).most_common():
        print(f"    {count}: {why}")


if __name__ == "__main__":
    main()
