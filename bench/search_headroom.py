"""What queries of a given form could score on the search task, words of the request chosen in hindsight.

    python bench/search_headroom.py

For every held-out request the best query of each form among its seven rarest content words; no model, no learning. It
shows which metric pays for structure: F1 prefers a pair to a single word, `bits` the other way round.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from steadyrl.environments.search.baselines import rarest_words
from steadyrl.environments.search.query import parse
from steadyrl.environments.search.task import SearchTask, measure

WORDS = 7


def main() -> None:
    """Print a table."""
    task = SearchTask(SearchTask.Settings())
    documents = task.index.document_count
    best: dict[str, dict[str, list[float]]] = {}
    for problem in task.problems("heldout"):
        relevant = np.array(sorted(task.index.number_of(i) for i in problem.columns["relevant"]))
        words = rarest_words(problem.columns["request"], task.index)[:WORDS]
        for form, queries in forms(words).items():
            measured = [measure(found(task, query), relevant, documents) for query in queries]
            for metric in ("f1", "bits"):
                value = max((m[metric] for m in measured), default=0.0)
                best.setdefault(form, {}).setdefault(metric, []).append(value)
    print(f"{'best of the form, in hindsight':32} {'F1':>6} {'bits':>6}")
    for form, values in best.items():
        print(f"{form:32} {np.mean(values['f1']):6.3f} {np.mean(values['bits']):6.3f}")


def forms(words: list[str]) -> dict[str, list[str]]:
    """Return all queries of each form."""
    pairs = list(combinations(words, 2))
    fours = [
        f"( {a} OR {b} ) AND ( {c} OR {d} )"
        for four in combinations(words, 4)
        for a, b, c, d in (four, (four[0], four[2], four[1], four[3]), (four[0], four[3], four[1], four[2]))
    ]
    return {
        "one word": words,
        "a AND b": [f"{a} AND {b}" for a, b in pairs],
        "a OR b": [f"{a} OR {b}" for a, b in pairs],
        "( a OR b ) AND ( c OR d )": fours,
    }


def found(task: SearchTask, query: str) -> np.ndarray:
    """Return the documents that a query finds."""
    tree = parse(query).tree
    assert tree is not None, query
    return task.index.search(tree)


if __name__ == "__main__":
    main()
