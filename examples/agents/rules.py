"""Print what rules without a model reach on the held-out problems, and what is in reach of a better choice.

python rules.py
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
from calculator import FORMS, calculate
from searcher import RESULTS, f1, library, new_results, picked, plan, ranked, title


def show(name: str, scores) -> None:
    draws = np.random.default_rng(0).choice(np.array(scores, float), (2000, len(scores))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    print(f"{name:58s} {np.mean(scores):.3f} [{low:.3f}, {high:.3f}]")


def both(first: list[str], query: str) -> list[str]:
    """Return what a first search found, and then a second one."""
    return [*first, *new_results(query, first)]


def main() -> None:
    requests = library()[0].heldout
    print(f"{len(requests)} requests, F1 [95 % interval]")
    relevant = [set(request.relevant) for request in requests]
    lists = [ranked(request.text, 10) for request in requests]
    firsts = [names[:RESULTS] for names in lists]
    pairs = list(zip(firsts, relevant, strict=True))

    def measure(name, answers):
        show(name, [f1(answer, wanted) for answer, wanted in zip(answers, relevant, strict=True)])

    for count in (1, 3, 5, 10):
        measure(f"the first {count} of a ranked search with the request", [names[:count] for names in lists])
    names = [title(first[0]) if first else "" for first in firsts]
    measure("rule of one query: 1", [picked(name, first) for name, first in zip(names, firsts, strict=True)])
    measure("rule of two queries: 1, then 1", [picked(n, both(f, n)) for n, f in zip(names, firsts, strict=True)])
    for searches, how in ((False, "one query"), (True, "two queries")):
        titles = [plan(first, frozenset(wanted), searches) or "" for first, wanted in pairs]
        found = [both(first, name) if searches else first for first, name in zip(firsts, titles, strict=True)]
        answers = [picked(name, results) for name, results in zip(titles, found, strict=True)]
        measure(f"the best title after {how}, in hindsight", answers)
    measure(f"the relevant of the first {RESULTS}, in hindsight", [set(first) & wanted for first, wanted in pairs])

    stories = [json.loads(line) for line in Path("stories-heldout.jsonl").read_text().splitlines()]
    print(f"\n{len(stories)} word problems, share of right answers [95 % interval]")
    right = Counter()
    for story in stories:
        numbers = re.findall(r"\d+", story["prompt"])
        for form in FORMS:
            if form.count("{}") == len(numbers):
                right[len(numbers), form] += calculate(form.format(*numbers)) == str(story["answer"])
    two, three = (max((f for n, f in right if n == count), key=lambda f: right[count, f]) for count in (2, 3))
    hits = right[2, two] + right[3, three]
    show(f"always {two} and {three} of the numbers", [1] * hits + [0] * (len(stories) - hits))


if __name__ == "__main__":
    main()
