"""Runs that are killed at random moments end as if nothing had happened; `bench/kill_resume.py` does it with torch."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "bench" / "kill_resume.py"


def test_killed_and_resumed_runs_end_with_the_metrics_of_the_unbroken_run():
    command = [sys.executable, str(SCRIPT), "--backend", "toy", "--runs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 the same" in done.stdout
