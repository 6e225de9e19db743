"""Problem files and corpora with changed lines, values and bytes: read, or refused by file and line in one line."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from bench.campaign.trial import Failure, changed_lines, changed_text, refused_or_done
from steadyrl.environments.code.published import load_problems
from steadyrl.environments.search.beir import beir_corpus
from steadyrl.loop.tasks.prompts import PromptsTask

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
MBPP = _lines(
    *(
        {
            "task_id": i,
            "text": "Double x.",
            "code": "def f(x):\n    return 2 * x\n",
            "test_list": ["assert f(1) == 2", "assert f(2) == 4"],
            "test_setup_code": "",
        }
        for i in range(4)
    )
)
PROBLEMS = {"prompts": PROMPTS, "own": OWN, "humaneval": HUMANEVAL, "mbpp": MBPP}
# Python that is hard to read: deep, long, large, or with values that cost more than their text.
PYTHON = (
    "(" * 3000 + ")" * 3000,
    "assert f(" + "(" * 3000 + "1" + ")" * 3000 + ") == 1",
    "assert f(" + "-" * 100_000 + "1) == 1",
    "assert f(1) == " + "[" * 3000 + "]" * 3000,
    "assert f(1) == 9**9**9",
    "assert f(1) == 'x' * 10**10",
    "assert f(1) == " + "9" * 5000,
    "assert f(1) == " + "1+" * 20_000 + "1",
    "x = " + "a." * 50_000 + "b",
    "lambda: " * 3000 + "0",
    "assert f('\0') == 1",
    "assert f(1) == '\ud800'",
    "assert f(*[1]) == {**{1: 2}}",
    "assert f(1) == float('nan')",
    "async def check(candidate):\n    pass",
    "def check(candidate):\n" + "".join(" " * i + "if 1:\n" for i in range(1, 120)),
    "def f(x):\n" + "    x = x\n" * 3_000,
    "class f:\n    pass",
    "f = " + "{1: " * 2000 + "1" + "}" * 2000,
    "import os; os.abort()",
    "match x:\n    case " + "[" * 2000 + "]" * 2000 + ":\n        pass",
    "f'" + "{'" * 100,
    "\\" * 9999,
    "\t \t",
    "\f",
    "# " + "x" * 10**6,
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
    kind = rng.choice((*PROBLEMS, "beir"))
    if kind == "beir":
        changed = rng.choice(list(BEIR))
        (folder / "qrels").mkdir()
        for name, text in BEIR.items():
            change = changed_lines if name.endswith("jsonl") and name == changed else changed_text
            (folder / name).write_bytes(change(text, rng) if name == changed else text.encode())
        failure = refused_or_done(lambda: beir_corpus(folder), READ_S)
    else:
        data = _with_python(PROBLEMS[kind], rng) if rng.random() < 0.3 else changed_lines(PROBLEMS[kind], rng)
        path = folder / "data.jsonl"
        if rng.random() < 0.3:
            path, data = folder / "data.jsonl.gz", gzip.compress(data)
            if rng.random() < 0.5:
                data = data[: rng.randrange(len(data))] + bytes(rng.randrange(3)) + data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        failure = refused_or_done(lambda: _read(kind, path), READ_S)
    return f"{kind}: {failure}" if failure else ""


def _with_python(text: str, rng: random.Random) -> bytes:
    """Put Python that is hard to read into a field of one problem."""
    records = [json.loads(line) for line in text.splitlines()]
    record, code = rng.choice(records), rng.choice(PYTHON)
    name = rng.choice([name for name in record if name != "task_id"])
    record[name] = [code] if isinstance(record[name], list) else code + record[name] if rng.random() < 0.3 else code
    return _lines(*records).encode()


def _read(kind: str, path: Path) -> None:
    if kind == "prompts":
        PromptsTask(PromptsTask.Settings(path=str(path)))
    else:
        load_problems(path)
