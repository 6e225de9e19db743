import importlib
from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench" / "doctor"))
    return importlib.import_module("metric_names")


@pytest.mark.parametrize(
    ("name", "quantity", "right"),
    [
        ("mean_reward", "reward", True),
        ("mean_reward", "none", False),
        ("gpu_memory_gib", "none", True),
        ("gpu_memory_gib", "length", False),
        ("politeness_reward", "reward_part", True),
    ],
)
def test_a_name_is_right_where_it_is_taken_for_what_it_is(bench, name, quantity, right):
    assert bench.is_right(name, quantity) is right


def test_of_each_quantity_is_said_what_was_not_told(bench, tmp_path, monkeypatch, capsys):
    file = tmp_path / "names.jsonl"
    file.write_text('{"name": "mean_kl", "quantity": "kl"}\n{"name": "zzz", "quantity": "kl"}\n')
    monkeypatch.setattr("sys.argv", ["metric_names.py", str(file)])
    bench.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["kl", "1", "of", "2", "zzz"] in lines and lines[-1][-3:] == ["1", "of", "2"]
