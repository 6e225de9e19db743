"""What counts as told rightly of a pair with a known difference."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "bench" / "doctor"
LABEL = {"pair": "x1", "setting": ["rate"], "moved": ["reward"], "not_moved": ["length"], "null": False}


@pytest.fixture
def pairs(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("pairs")


@pytest.fixture
def folder(tmp_path):
    """A pair whose learning rates and rewards differ, and whose lengths do not."""
    rng = np.random.default_rng(8)
    (tmp_path / "x1").mkdir()
    for side, rate, level in (("a", 1e-6, 0.2), ("b", 1e-5, 0.6)):
        rows = [
            {"step": i, "lr": rate, "reward": level + 0.02 * rng.normal(), "response_length": 90 + rng.normal()}
            for i in range(30)
        ]
        (tmp_path / "x1" / f"{side}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "right"),
        ({"setting": ["seed"]}, "misleading"),
        ({"setting": []}, "misleading"),
        ({"moved": ["entropy"]}, "silent"),
        ({"not_moved": ["reward"]}, "wrong"),
    ],
)
def test_the_outcome_follows_from_the_label(pairs, folder, change, outcome):
    told, _, lines = pairs.judge(folder, {**LABEL, **change})
    assert told == outcome
    assert lines[0].startswith("likely: learning_rate is set differently, 1e-06 and 1e-05; reward from step 0")


def test_a_side_that_is_no_log_is_not_readable(pairs, folder):
    (folder / "x1" / "b.jsonl").write_text("prose", encoding="utf-8")
    assert pairs.judge(folder, LABEL)[0] == "not readable"
