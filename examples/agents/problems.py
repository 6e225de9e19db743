"""Write the problems of both agents: what is trained on, and what is held out.

python problems.py
"""

import importlib.util
import json
from pathlib import Path

from steadyrl.environments.math.generated import generate
from steadyrl.environments.search.cache import stdlib_with_index

STORIES = (5, 6)  # levels of the task math: word problems of one step, and of two
TRAINING, HELD_OUT = 600, 100  # of each level


def write(path: str, rows) -> None:
    lines = [json.dumps(row) for row in rows]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} problems")


def requests(of):
    return [{"prompt": request.text, "id": request.id, "relevant": list(request.relevant)} for request in of]


def animals(count: int, seed: int):
    """Yield word problems of reasoning-gym: how many legs some animals have."""
    gym = importlib.import_module("reasoning_gym")
    legs = importlib.import_module("reasoning_gym.arithmetic.leg_counting").ANIMALS
    for entry in gym.create_dataset("leg_counting", size=count, seed=seed, min_animals=2, max_animals=4):
        terms = [f"{number} * {legs[animal]}" for animal, number in entry["metadata"]["animals"].items()]
        yield {"prompt": entry["question"], "answer": int(entry["answer"]), "expression": " + ".join(terms)}


def main() -> None:
    corpus, _ = stdlib_with_index()
    write("search-train.jsonl", requests(corpus.train))
    write("search-heldout.jsonl", requests(corpus.heldout))
    stories = [generate(level, TRAINING + HELD_OUT, seed=0) for level in STORIES]
    for path, part in (("stories-train.jsonl", slice(HELD_OUT, None)), ("stories-heldout.jsonl", slice(HELD_OUT))):
        write(path, [{"prompt": text, "answer": answer} for level in stories for text, answer in level[part]])
    if importlib.util.find_spec("reasoning_gym"):
        # Entries follow from seed + number, so these do not meet.
        write("legs-train.jsonl", animals(2 * TRAINING, seed=0))
        write("legs-heldout.jsonl", animals(2 * HELD_OUT, seed=1_000_000))


if __name__ == "__main__":
    main()
