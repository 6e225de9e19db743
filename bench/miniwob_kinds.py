"""How often the scripted experts solve each kind of MiniWoB++ page that the browse task plays.

    python bench/miniwob_kinds.py --seeds 10

Prints a table: kind, solved, and the most turns that a solved one took. Experts play at once, so that pages which show
something after a while take more turns of them than of a model.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from steadyrl.core.types import Problem
from steadyrl.environments.browse.miniwob import MiniwobSuite
from steadyrl.environments.browse.miniwob_kinds import EXPERTS
from steadyrl.environments.browse.settings import BrowseSettings

MOST_TURNS = 30


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("kinds", nargs="*", default=sorted(EXPERTS))
    args = parser.parse_args()
    suite = MiniwobSuite(BrowseSettings(suite="miniwob", kinds=args.kinds))
    jobs = [(kind, seed) for kind in args.kinds for seed in range(args.seeds)]
    outcomes = defaultdict(list)
    try:
        with ThreadPoolExecutor(args.workers) as pool:
            for (kind, _), outcome in zip(jobs, pool.map(lambda job: play(suite, *job), jobs), strict=True):
                outcomes[kind].append(outcome)
    finally:
        suite.close()
    print("| kind | solved | turns, at most |\n|---|---|---|")
    for kind, found in outcomes.items():
        turns = [outcome["turns"] for outcome in found if outcome["success"]]
        print(f"| {kind} | {len(turns)} of {len(found)} | {max(turns, default='')} |")
    print(f"\n{sum(o['success'] == 1.0 for found in outcomes.values() for o in found)} of {len(jobs)} solved")


def play(suite: MiniwobSuite, kind: str, seed: int) -> dict:
    """Play one page as its expert; return what it came to."""
    episode = suite.episode(Problem(f"{kind}-{seed}", "", {"kind": kind, "seed": seed}), 0)
    episode.open()
    for _ in range(MOST_TURNS):
        if episode.step(episode.expert()).done:
            break
    return dict(episode.close())


if __name__ == "__main__":
    main()
