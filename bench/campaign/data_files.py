"""Problem files and corpora with changed lines, values and bytes: read, or refused by file and line in one line."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from bench.campaign.trial import Failure, changed_lines, changed_text, refused_or_done
from steadyrl.tasks.code.published import load_problems
from steadyrl.tasks.prompts import PromptsTask
from steadyrl.tasks.search.beir import beir_corpus

READ_S = 2.0  # of processor time, for files of some kilobytes


def _lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


PROMPTS = _lines(*({"id": str(i), "prompt": f"say {i}", "gold": f"{i}", "extra": [i, {"a": None}]} for i in range(6)))
OWN = _lines(
    *(
        {"id": f"p{i}", "prompt": "def f(x):\n    pass\n", "entry_point": "f", "tests": [[[i], 2 * i]], "solution": "x"}
        for i in range(4)
    )
)
HUMANEVAL = _lines(
    *(
        {
            "task_id": f"HumanEval/{i}",
            "prompt": 'def f(x):\n    """Double x."""\n',
            "entry_point": "f",
            "canonical_solution": "    return 2 * x\n",
            "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        }
        for i in range(4)
    )
)
HEADER = "query-id\tcorpus-id\tscore\n"
BEIR = {
    "corpus.jsonl": _lines(*({"_id": f"d{i}", "title": f"title {i}", "text": f"text {i}"} for i in range(6))),
    "queries.jsonl": _lines(*({"_id": f"q{i}", "text": f"what is {i}"} for i in range(4))),
    "qrels/train.tsv": HEADER + "q0\td0\t1\nq1\td1\t1\n",
    "qrels/test.tsv": HEADER + "q2\td2\t1\nq3\td3\t2\n",
}


def attack(rng: random.Random, folder: Path) -> Failure:
    """Read one file or corpus of which something is changed."""
    kind = rng.choice(("prompts", "own", "humaneval", "beir"))
    if kind == "beir":
        changed = rng.choice(list(BEIR))
        (folder / "qrels").mkdir()
        for name, text in BEIR.items():
            change = changed_lines if name.endswith("jsonl") and name == changed else changed_text
            (folder / name).write_bytes(change(text, rng) if name == changed else text.encode())
        failure = refused_or_done(lambda: beir_corpus(folder), READ_S)
    else:
        data = changed_lines({"prompts": PROMPTS, "own": OWN, "humaneval": HUMANEVAL}[kind], rng)
        path = folder / "data.jsonl"
        if rng.random() < 0.3:
            path, data = folder / "data.jsonl.gz", gzip.compress(data)
            if rng.random() < 0.5:
                data = data[: rng.randrange(len(data))] + bytes(rng.randrange(3)) + data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        failure = refused_or_done(lambda: _read(kind, path), READ_S)
    return f"{kind}: {failure}" if failure else ""


def _read(kind: str, path: Path) -> None:
    if kind == "prompts":
        PromptsTask(PromptsTask.Settings(path=str(path)))
    else:
        load_problems(path)
