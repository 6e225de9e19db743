"""Where a step of the main job spends its time: `make bench`, `make bench-mlx`; writes bench/results/step_time*.json.

"processor" is the processor's time of the whole step: on a busy machine the only figure that can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from datetime import date
from pathlib import Path

from steadyrl.core.config import load
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session, one_step, open_session

ROOT = Path(__file__).parent.parent
WARM_UP, COUNTED = 3, 20


def main() -> None:
    """Time the steps of examples/search.toml from the base model on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("torch", "mlx"), default="torch")
    parser.add_argument("--steps", type=int, default=COUNTED)
    args = parser.parse_args()
    session = open_session(load(ROOT / "examples" / "search.toml", [f"backend.name={args.backend}"]))
    state = State(algorithm=dict(session.algorithm.state))
    records = [_timed(session, state) for _ in range(WARM_UP + args.steps)][WARM_UP:]
    phases = ("processor", "time/rollout", "time/reward", "time/score", "time/update", "time/step")
    result = {
        "date": date.today().isoformat(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "model": session.backend.describe(),
        "rollouts": session.config.rollout.rollouts,
        "steps": args.steps,
        "median": {name: statistics.median(r[name] for r in records) for name in (*phases, "tokens/per_second")},
    }
    for name, value in result["median"].items():
        print(f"{name:20} {value:10.3f}")
    file = ROOT / "bench" / "results" / f"step_time{'' if args.backend == 'torch' else '_mlx'}.json"
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {file.relative_to(ROOT)}")


def _timed(session: Session, state: State) -> dict[str, float]:
    """Make one step; return its metrics, and the processor's time."""
    began = time.process_time()
    record = one_step(session, state)[1]
    return {**record, "processor": time.process_time() - began}


if __name__ == "__main__":
    main()
