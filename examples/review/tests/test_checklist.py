"""The points of the review, on metrics whose outcome is known by hand, and on a run."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from checklist import CHECKS, Review, main

from steadyrl.core.errors import SteadyError
from steadyrl.core.types import Finding
from steadyrl.doctor.check import judged
from steadyrl.show.review.epochs import epoch_table


def records(rewards, per_epoch=2, **more):
    """Steps of a run with so many steps to an epoch; more metrics as one number or one per step."""
    lines = []
    for step, reward in enumerate(rewards):
        line = {"step": step, "attempt": 0, "data_epoch": (step + 1) / per_epoch, "reward/mean": reward}
        line["time/step"] = 2.0
        for name, value in more.items():
            line[name.replace("_of_", "/")] = value[step] if isinstance(value, list) else value
        lines.append(line)
    return lines


def finding(check, since, severity="warning"):
    return Finding(check, severity, since, "unknown", "it is off", (), "mend it")


def words(lines, findings=()):
    return [point.state for point in judged(CHECKS, Review(epoch_table(lines, findings), lines, findings))]


RNG = np.random.default_rng(0)
NOISE = RNG.normal(0, 0.02, 70)


def healthy(**more):
    """Seven epochs of ten steps, rising from 0.3 to 0.6."""
    rising = [0.3 + 0.3 * i / 69 + x for i, x in enumerate(NOISE)]
    usual = {
        "loss_of_total": 0.1, "loss_of_policy": [-0.2 + float(x) for x in NOISE],
        "loss_of_kl": [0.05 * float(np.exp(x)) for x in NOISE],
        "reward_of_std": 0.2, "reward_of_std_within": 0.1, "groups_of_best": [r + 0.1 for r in rising],
    }  # fmt: skip
    return records(rising, per_epoch=10, **(usual | more))


def test_a_healthy_run_passes_every_point():
    assert words(healthy()) == ["ok"] * 6


def growth(**parts):
    lines = healthy(**parts)
    return judged(CHECKS, Review(epoch_table(lines, []), lines, []))[0]


def by_epoch(*levels):
    return [level * factor for level in levels for factor in (0.99, 1.01) * 5]


def test_a_loss_that_grows_by_more_than_30_percent_in_an_epoch_fails():
    """The losses of the review's own run: 0.4562 to 0.8188 and 0.5512 to 0.7412 are the spikes that it names."""
    point = growth(loss_of_total=by_epoch(0.4562, 0.8188, 0.8910, 0.7003, 0.6166, 0.5512, 0.7412))
    assert (point.check, point.state, point.severity) == ("losses_grow", "found", "warning")
    assert point.message.startswith("total 0.456 → 0.819 in epoch 2 (+79%)")
    assert "total 0.551 → 0.741 in epoch 7 (+34%)" in point.message
    assert "epoch 3" not in point.message


def test_a_policy_loss_that_grows_below_zero_grows_too():
    levels = (-0.09, -0.09, -0.09, -0.09, -0.09, -0.091, -0.143)
    assert growth(loss_of_policy=by_epoch(*levels)).message == "policy -0.091 → -0.143 in epoch 7 (+57%)"
    assert growth(loss_of_policy=by_epoch(*levels[::-1])).state == "ok"


def test_a_growth_within_the_noise_is_neither_passed_nor_failed():
    """A policy loss near 0 doubles and halves with the noise."""
    point = growth(loss_of_policy=[float(x) for x in NOISE])
    assert point.state == "unknown"
    assert point.message.startswith("more than 30%, but within the noise of its steps: policy")
    assert words(records([0.1] * 70, per_epoch=10))[0] == "unknown"  # no loss was logged


def test_a_part_that_passes_says_how_much_it_grew():
    assert growth(loss_of_total=by_epoch(1, 1, 1, 1.2, 1, 1, 1)).message.startswith(
        "the most is total 1 → 1.2 in epoch 4"
    )


def test_the_kl_may_grow_as_the_policy_learns():
    assert growth(loss_of_kl=by_epoch(0.01, 0.02, 0.04, 0.05, 0.06, 0.07, 0.08)).state == "ok"


def test_a_spike_of_one_part_fails_only_if_another_step_confirms_it():
    kl = healthy()
    alone = [line["loss/kl"] for line in kl]
    alone[50] *= 3
    assert words(healthy(loss_of_kl=alone))[1] == "ok"
    alone[51] *= 3
    lines = healthy(loss_of_kl=alone)
    point = judged(CHECKS, Review(epoch_table(lines, []), lines, []))[1]
    assert (point.state, point.message) == ("found", "the KL part at step 50, 51")


def test_the_policys_part_spikes_where_the_doctor_says_so():
    """It has both signs: a value of fifty times the last one is no spike of 5000 %."""
    policy = [float(x) for x in NOISE]
    policy[40:42] = [1.0, -1.0]
    assert words(healthy(loss_of_policy=policy))[1] == "ok"
    assert words(healthy(), [finding("policy_loss_spikes", 40)])[1] == "found"
    assert words(healthy(), [finding("policy_loss_spikes", 40, "info")])[1] == "ok"


def test_too_few_steps_do_not_tell_of_spikes():
    assert words(records([0.1, 0.2, 0.3, 0.4]))[1] == "unknown"


def test_a_reward_that_falls_or_falls_back_fails_and_a_flat_one_cannot_tell():
    falling = [0.6 - 0.3 * i / 69 + x for i, x in enumerate(NOISE)]
    back = [0.3 + 0.3 * i / 69 - (0.2 if 50 <= i < 60 else 0) + x for i, x in enumerate(NOISE)]
    flat = [0.3 + x for x in NOISE]
    assert [words(records(r, per_epoch=10))[2] for r in (falling, back, flat)] == ["found", "found", "unknown"]
    lines = records(back, per_epoch=10)
    assert "epoch 6 is below the previous one" in judged(CHECKS, Review(epoch_table(lines, []), lines, []))[2].message


def test_the_marks_of_variance_gap_and_time():
    assert words(healthy(reward_of_std=0.25))[3] == "found"  # 0.0625
    assert words(healthy(groups_of_best=0.9))[4] == "found"  # the last epoch earns about 0.58
    slow = healthy()
    for line in slow:
        line["time/step"] = 301.0
    assert words(slow)[5] == "found"  # ten of them are 50.2 minutes
    assert words(records([0.1] * 70, per_epoch=10))[3:5] == ["unknown"] * 2


def test_the_program_prints_every_point_of_a_run_and_says_whether_one_fails(tmp_path, capsys):
    def review(lines):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return main([str(tmp_path)]), capsys.readouterr().out.splitlines()[1:]

    code, lines = review(healthy())
    assert (code, [line[:4] for line in lines]) == (0, ["ok  "] * 6)
    code, lines = review(healthy(reward_of_std=0.25))
    assert (code, lines[3]) == (1, "warn  reward_variance: 0.062 in the last epoch")
    assert lines[4:6] == ["        cause: spread", lines[5]] and lines[5].startswith("        remedy: Train longer.")
    with pytest.raises(SteadyError, match="fewer than two epochs"):
        review(records([0.1] * 5, per_epoch=10))
    with pytest.raises(SteadyError, match="no run is named"):
        main([])
