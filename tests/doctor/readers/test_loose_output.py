"""What training scripts print without a logger: blocks of values after other text, lists of rewards, totals."""

import json

import numpy as np
import pytest

from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.readers.search import search


def read(path, text):
    path.write_text(text, encoding="utf-8")
    (log,) = search(path, lambda log: True).logs
    return log


def test_rows_without_steps_are_numbered_from_the_first_row_of_the_loop(tmp_path):
    before = "num_rows: 900\nreward (high): [2.5]\nreward (low): [-1.5]\nnum_rows: 30\nnum_rows: 7\n"
    loop = "".join(f"{i}it [00:0{i}, 1.5s/it]\nkl: {20 + i}\nloss: 0.{i}\n-----\n" for i in range(1, 9))
    log = read(tmp_path / "run.log", before + loop)
    assert log.columns["kl"].steps.tolist() == log.columns["loss"].steps.tolist() == list(range(1, 9))
    assert log.columns["kl"].values[0] == 21


LISTS = {
    "one line": "time: 1.5s     rewards: tensor([{a}, {b}, {c}], device='cuda:0')\nloss: 0.5\n",
    "several lines": "rewards: tensor([{a}, {b},\n        {c}], dtype=torch.float64)\nloss: 0.5\n",
    "without commas": "rewards = [{a} {b}\n {c}]\nloss = 0.5\n",
    "in a dict": "{{'loss': 0.5, 'rewards': array([{a}, {b}, {c}], dtype=float32)}}\n",
    "in a table": '"[{a}, {b}, {c}]",0.5\n',
}


@pytest.mark.parametrize("form", LISTS)
def test_the_mean_and_the_spread_of_rewards_that_are_printed_as_a_list_are_read(tmp_path, form):
    groups = [(0.5, 1.0, 3.0), (-1.0, -1.0, 2.0), (2.0, 2.0, 2.0)]
    text = "".join(LISTS[form].format(a=a, b=b, c=c) for a, b, c in groups)
    log = read(tmp_path / "run.txt", "rewards,loss\n" * (form == "in a table") + text)
    assert log.columns["rewards/mean"].values.tolist() == [1.5, 0.0, 2.0]
    assert np.allclose(log.columns["rewards/std"].values, [np.sqrt(3.5 / 3), np.sqrt(2), 0])
    assert log.columns["loss"].values.tolist() == [0.5] * 3


def test_a_list_of_which_only_the_ends_are_printed_has_no_mean(tmp_path):
    log = read(tmp_path / "run.log", "rewards: tensor([1., 2., ..., 8., 9.])\nloss: 0.5\nkl: 0.1\n" * 4)
    assert list(log.columns) == ["kl", "loss"]


@pytest.mark.parametrize(("others", "sick"), [((-2.0, -2.0), True), ((3.0, -2.0), False)])
def test_printed_rewards_that_are_all_alike_in_each_group_teach_nothing(tmp_path, others, sick):
    line = "took 3.5s   rewards: tensor([-2., -2., {}, {}])\n"
    (tmp_path / "run.log").write_text(line.format(*others) * 60, encoding="utf-8")
    (diagnosis,) = diagnose(tmp_path / "run.log")
    assert ("no_signal_groups" in diagnosis.harmful) == sick


def logs(path, text):
    path.write_text(text, encoding="utf-8")
    return search(path, lambda log: True).logs


def test_tables_of_json_one_after_another_are_runs(tmp_path):
    courses = {"Easy (9 of 20)": [0.1, 0.2, 0.4, 0.5], "Hard (11 of 20)": [-3.0, -2.5, -2.0, -1.5]}
    tables = (
        f"=====\nTASK: {name}\n=====\n"
        + json.dumps([{"epoch": 8 * i, "average_reward": x} for i, x in enumerate(course)], indent=1)
        for name, course in courses.items()
    )
    tables_read = logs(tmp_path / "out.txt", "Loaded 20 files\n\n" + "\n".join(tables))
    assert [log.columns["average_reward"].values.tolist() for log in tables_read] == list(courses.values())
    assert [log.columns["average_reward"].steps.tolist() for log in tables_read] == [[0, 8, 16, 24]] * 2


def test_text_between_the_rows_of_one_run_parts_none(tmp_path):
    rows = "".join(f"Saving to out/{i}\n{{'epoch': {i}, 'loss': 0.5, 'reward': 0.25}}\n" for i in range(6))
    (log,) = logs(tmp_path / "out.txt", rows)
    assert len(log.columns["reward"].steps) == 6


def test_metrics_before_a_dict_on_its_line_are_of_its_row(tmp_path):
    line = "09:30:12,5 - train - INFO - rl_loss: 0.{0}, entropy: 1.{0}, data: {{'reward': 2.{0}, 'kl': 0.5}}\n"
    (log,) = logs(tmp_path / "out.log", "".join(map(line.format, range(1, 7))))
    assert log.columns["rl_loss"].values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert log.columns["entropy"].values.tolist() == [1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    assert log.columns["reward"].values.tolist() == [2.1, 2.2, 2.3, 2.4, 2.5, 2.6]


def test_a_total_of_rewards_beside_a_count_is_their_mean(tmp_path):
    batch = "data: {{'total_num': {n}, 'total_reward': {n}, 'total_form_reward': {half}, 'total_time': 9.5}}\n"
    sample = "score: {{'form_reward': 1.0, 'reward': 0.0}}\n"
    text = "".join(batch.format(n=n, half=n / 2) + sample.format() for n in (64, 64, 32, 32, 32, 16))
    (tmp_path / "out.log").write_text(text, encoding="utf-8")
    (diagnosis,) = diagnose(tmp_path / "out.log")
    series = diagnosis.run.series
    assert [x.values.tolist() for x in series["reward"]] == [[1.0] * 6]
    assert [x.values.tolist() for x in series["reward_part/form"]] == [[0.5] * 6]
    assert "total_time" in diagnosis.run.unknown


def test_numbers_in_bold_as_code_or_quoted_are_numbers(tmp_path):
    log = read(
        tmp_path / "notes.md",
        "step 3\n'grad_norm': '0.25'   -> small\n'kl': `0.125`\n- reward: **0.5** (new high)\n"
        "step 4\n'grad_norm': '0.5'   -> small\n'kl': `nan`\n- reward: **0.75** (new high)\n",
    )
    assert log.columns["reward"].values.tolist() == [0.5, 0.75]
    assert log.columns["grad_norm"].values.tolist() == [0.25, 0.5]
    assert log.columns["kl"].values[0] == 0.125
    log = read(tmp_path / "row.md", "{'loss': 0.04, 'grad_norm': `nan`, 'reward': -3.5, 'kl': `nan`}\n")
    assert log.columns["reward"].values.tolist() == [-3.5]
    assert np.isnan(log.columns["grad_norm"].values).all()


def test_a_table_drawn_with_strokes_is_read(tmp_path):
    rows = "\n".join(f"  {step:<3} │    {0.1 + step / 50:.2f}     │ wrote a plan" for step in (1, 5, 9))
    table = f"Step  │ Reward Mean │ Behaviour\n──────┼─────────────┼──────────\n{rows}\n"
    log = read(tmp_path / "table.md", table)
    assert log.columns["Reward Mean"].values.tolist() == [0.12, 0.2, 0.28]


def test_rows_with_a_reward_count_before_a_longer_table_of_a_reward_model(tmp_path):
    table = "| Step | Training Loss | Validation Loss | Accuracy |\n|---|---|---|---|\n"
    table += "".join(f"| {10 * i} | {1.5 - i / 50:.2f} | {1.4 - i / 60:.2f} | 0.625 |\n" for i in range(1, 13))
    table += "".join(f"Evaluation #{i} reward/mean: {1.25 + i / 2}\n" for i in range(6))
    log = read(tmp_path / "both.md", table)
    assert log.columns["reward/mean"].values.tolist() == [1.25, 1.75, 2.25, 2.75, 3.25, 3.75]


def test_lists_of_equal_rewards_are_counted_and_lists_of_which_none_is_equal_say_nothing(tmp_path):
    groups = [[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]
    rows = [{"step": i // 2, "loss": 0.1, "rewards": groups[i % 4]} for i in range(16)]
    path = tmp_path / "groups.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (log,) = search(path, lambda log: True).logs
    assert log.columns["rewards/alike"].values.tolist() == [0.5, 1.0] * 4
    (diagnosis,) = diagnose(path)
    assert diagnosis.run.needed("no_signal").values.tolist() == [0.5, 1.0] * 4
    path.write_text("".join(f"{json.dumps({**row, 'rewards': [0, 1, 0, 2]})}\n" for row in rows))
    (log,) = search(path, lambda log: True).logs
    assert "rewards/alike" not in log.columns
