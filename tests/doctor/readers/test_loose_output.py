"""What training scripts print without a logger: blocks of values after other text, lists of rewards, totals."""

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
