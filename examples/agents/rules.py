"""Print what rules without a model reach on the held-out problems, and what is in reach of a better choice.

python rules.py
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
from calculator import FORMS, calculate
from searcher import RESULTS, expanded, f1, library, new_results, ranked


def show(name: str, scores) -> None:
    draws = np.random.default_rng(0).choice(np.array(scores, float), (2000, len(scores))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    print(f"{name:58s} {np.mean(scores):.3f} [{low:.3f}, {high:.3f}]")


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
    measure("what belongs to the first result, after a search for it", [expanded(n[0], n) if n else () for n in firsts])
    best = [max((expanded(name, names) for name in names), key=lambda a: f1(a, w), default=()) for names, w in pairs]
    measure("what belongs to the best result, in hindsight", best)
    measure(f"the relevant of the first {RESULTS}, in hindsight", [set(names) & wanted for names, wanted in pairs])
    reached = [max(({*n, *new_results(x, n)} & w for x in n), key=len, default=()) for n, w in pairs]
    measure("the relevant of both searches, in hindsight", reached)

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
