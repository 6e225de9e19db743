"""Where a step of the main job spends its time: `make bench`; writes bench/results/step_time.json too."""

from __future__ import annotations

import json
import os
import platform
import statistics
from datetime import date
from pathlib import Path

from steadyrl.checkpoint import State
from steadyrl.config import load
from steadyrl.train import one_step, open_session

ROOT = Path(__file__).parent.parent
WARM_UP, COUNTED = 3, 20


def main() -> None:
    """Time the steps of examples/search.toml from the base model on."""
    session = open_session(load(ROOT / "examples" / "search.toml"))
    state = State(algorithm=dict(session.algorithm.state))
    records = [one_step(session, state)[1] for _ in range(WARM_UP + COUNTED)][WARM_UP:]
    phases = ("time/rollout", "time/reward", "time/score", "time/update", "time/step")
    result = {
        "date": date.today().isoformat(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "model": session.backend.describe(),
        "rollouts": session.config.rollout.prompts_per_step * session.config.rollout.samples_per_prompt,
        "steps": COUNTED,
        "median": {name: statistics.median(r[name] for r in records) for name in (*phases, "tokens/per_second")},
    }
    for name, value in result["median"].items():
        print(f"{name:20} {value:10.3f}")
    file = ROOT / "bench" / "results" / "step_time.json"
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
