"""Print what rules without a model reach on the held-out requests, and what is in reach of a better choice.

python rules.py
"""

import numpy as np
from searcher import RESULTS, expanded, f1, library, new_results, ranked


def main() -> None:
    requests = library()[0].heldout
    print(f"{len(requests)} requests, F1 [95 % interval]")
    relevant = [set(request.relevant) for request in requests]
    lists = [ranked(request.text, 10) for request in requests]

    def show(name, answers):
        scores = np.array([f1(set(answer), wanted) for answer, wanted in zip(answers, relevant, strict=True)])
        draws = np.random.default_rng(0).choice(scores, (2000, len(scores))).mean(1)
        low, high = np.quantile(draws, [0.025, 0.975])
        print(f"{name:58s} {scores.mean():.3f} [{low:.3f}, {high:.3f}]")

    for count in (1, 3, 5, 10):
        show(f"the first {count} of a ranked search with the request", [names[:count] for names in lists])
    firsts = [names[:RESULTS] for names in lists]
    show("what belongs to the first result, after a search for it", [expanded(n[0], n) if n else () for n in firsts])
    pairs = list(zip(firsts, relevant, strict=True))
    best = [max((expanded(name, names) for name in names), key=lambda a: f1(a, w), default=()) for names, w in pairs]
    show("what belongs to the best result, in hindsight", best)
    show(f"the relevant of the first {RESULTS}, in hindsight", [set(names) & wanted for names, wanted in pairs])
    reached = [max(({*n, *new_results(x, n)} & w for x in n), key=len, default=()) for n, w in pairs]
    show("the relevant of both searches, in hindsight", reached)


if __name__ == "__main__":
    main()
