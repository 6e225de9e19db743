import json

from steadyrl.core.rundir import append_line, write_json
from steadyrl.doctor.readers.completions import MAX_TEXT, JsonTexts, step_files
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.series import Written


def test_rollouts_of_our_own_run_are_read_by_step(tmp_path):
    write_json(tmp_path / "run.json", {})
    write_json(tmp_path / "resolved.json", {})
    append_line(tmp_path / "metrics.jsonl", {"step": 1, "attempt": 0, "reward/mean": 0.5})
    (tmp_path / "rollouts").mkdir()
    for step in (10, 2):
        record = {"problem": "a", "prompt": "p", "completion": f"c{step}", "reward": 0.25, "note": ""}
        (tmp_path / "rollouts" / f"{step:06d}.jsonl").write_text(json.dumps(record) + "\n{torn\n")
    (log,) = search(tmp_path, lambda log: True).logs
    expected = [Written(2, "p", "c2", 0.25), Written(10, "p", "c10", 0.25)]
    assert list(log.completions) == expected
    assert list(log.completions) == expected  # each loop reads anew


def test_a_text_is_cut_and_a_reward_may_be_unknown(tmp_path):
    (tmp_path / "7.jsonl").write_text(json.dumps({"input": "p", "output": "x" * (MAX_TEXT + 1), "score": None}) + "\n")
    (tmp_path / "notes.jsonl").write_text('{"output": "no step"}\n')
    assert list(JsonTexts(step_files(tmp_path))) == [Written(7, "p", "x" * MAX_TEXT, None)]
