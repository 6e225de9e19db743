import json

import numpy as np
import pytest

from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Finding
from steadyrl.loop.train import train
from steadyrl.show.report.rows import epochs_view
from steadyrl.show.report.write import write_report
from steadyrl.show.review.epochs import epoch_table, split


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


def cells(table, heading):
    """A column of a table of records."""
    return [row[[head.name for head in table.heads].index(heading)] for row in table.rows]


def finding(check, since, severity="warning"):
    return Finding(check, severity, since, "unknown", "it is off", (), "mend it")


def test_the_means_of_an_epoch_by_hand():
    lines = records(
        [0.2, 0.4, 0.6, 0.8],
        loss_of_total=[1.0, 3.0, 5.0, 7.0],
        loss_of_kl=0.5,
        reward_of_std=[0.1, 0.3, 0.2, 0.2],
        reward_of_std_within=0.1,
        groups_of_best=[0.5, 0.9, 0.9, 0.9],
        grad_norm=[1.0, 2.0, 3.0, 4.0],
    )
    first, second = epoch_table(lines, [])["rows"]
    assert (first["name"], first["first"], first["last"], second["first"]) == ("1", 0, 1, 2)
    expected = {
        "reward": 0.3, "loss": 2.0, "loss_kl": 0.5, "variance": 0.05, "within": 0.01, "best": 0.7, "gap": 0.4,
        "grad_norm": 1.5, "seconds": 4.0,
    }  # fmt: skip
    assert {key: first[key] for key in expected} == pytest.approx(expected)
    assert first["between"] is None  # not measured, and so unknown
    assert first["loss_policy"] is None
    assert second["change"][0] == pytest.approx(0.4)
    assert first["change"] is None


def test_a_change_within_the_noise_has_an_interval_around_nothing():
    """Steps 0 and 1, then 0.5 and 1.5: errors of the means 0.5 each, so 0.5 +- t(2 degrees) * sqrt(0.5)."""
    change = epoch_table(records([0.0, 1.0, 0.5, 1.5]), [])["rows"][1]["change"]
    assert change == pytest.approx([0.5, 0.5 - 4.30265 * 0.5**0.5, 0.5 + 4.30265 * 0.5**0.5], rel=1e-4)


def test_a_step_over_two_epochs_belongs_to_the_one_with_most_of_it():
    """Ten problems, four a step: 0.4, 0.8, 1.2 (half of it in each: the next), 1.6, 2.0."""
    parts = split(records([0] * 5, per_epoch=2.5))
    assert [(name, [line["step"] for line in lines]) for name, lines in parts] == [("1", [0, 1]), ("2", [2, 3, 4])]


def test_long_runs_have_several_epochs_to_a_row():
    parts = split(records([0] * 60, per_epoch=2))
    assert [name for name, _ in parts][:2] == ["1-3", "4-6"]
    assert len(parts) == 10
    assert [name for name, _ in split(records([0] * 31, per_epoch=1))][-1] == "31"


def test_steps_of_more_than_an_epoch_have_no_table():
    """29 problems and 1,000 prompts a step: rows called "17-20" and "49-52" held 34 epochs each."""
    assert split(records([0.1] * 4, per_epoch=0.5)) is None
    assert epoch_table(records([0.1] * 2, per_epoch=29 / 1000), []) is None
    assert [name for name, _ in split(records([0.1] * 3, per_epoch=1))] == ["1", "2", "3"]


@pytest.mark.parametrize("lines", [records([0.1] * 3), [{"step": 0, "reward/mean": 1.0}], []])
def test_fewer_than_two_epochs_or_uncounted_ones_have_no_table(lines):
    assert split(lines) is None
    assert epoch_table(lines, []) is None


def test_the_doctor_speaks_in_the_epoch_in_which_it_begins():
    found = [finding("kl_runaway", 2), finding("loss_reading", 2, "info"), finding("non_finite", 3, "critical")]
    first, second = epoch_table(records([0.1] * 4), found)["rows"]
    assert (first["status"], first["findings"]) == ("fine", [])
    assert (second["status"], second["findings"]) == ("critical", ["kl_runaway", "non_finite"])


def raised(check, step, since=None, state="raised", severity="warning"):
    """A line of findings.jsonl."""
    return {"check": check, "cause": "unknown", "severity": severity, "since_step": since, "step": step, "state": state}


def statuses(findings, live):
    rows = epoch_table(records([0.1] * 8), findings, live)["rows"]  # steps 0-1, 2-3, 4-5, 6-7
    return [": ".join([row["status"], *row["findings"]]) for row in rows]


def test_no_epoch_is_fine_in_which_the_doctor_warned_while_the_run_went_on():
    """What was cleared before the end is no finding of the whole run, and the table said "fine" in all epochs."""
    live = [raised("reward_flat", 3), raised("reward_flat", 5, state="cleared")]
    assert statuses([], live) == ["fine", "warning: reward_flat", "nothing new", "fine"]
    assert statuses([], [raised("reward_flat", 5, since=2)]) == [
        "fine", "warning: reward_flat", "warning: reward_flat", "nothing new",
    ]  # fmt: skip
    assert statuses([], [raised("loss_reading", 3, severity="info")]) == ["fine"] * 4


def test_an_epoch_after_a_finding_that_still_holds_is_not_fine():
    assert statuses([finding("kl_runaway", 2)], []) == ["fine", "warning: kl_runaway", "nothing new", "nothing new"]
    assert statuses([finding("learning_rate_too_low", None)], [])[:2] == [
        "warning: learning_rate_too_low",
        "nothing new",
    ]


def test_the_loss_trend_is_the_change_of_the_total_since_the_epoch_before():
    """Losses of 1 and 3, 2 and 6: means 2 and 4; a loss that rises has a trend above 0."""
    first, second = epoch_table(records([0.1] * 4, loss_of_total=[1.0, 3.0, 2.0, 6.0]), [])["rows"]
    assert first["loss_change"] is None
    assert second["loss_change"][0] == pytest.approx(2.0)
    assert second["loss_change"][1] < 0.0 < second["loss_change"][2]
    _, losses, *_ = epochs_view(epoch_table(records([0.1] * 4, loss_of_total=[1.0, 1.0, 2.0, 2.0]), []))
    assert cells(losses, "loss trend [95 %]") == ["–", "+1.000 [1.000, 1.000]"]
    assert losses.heads[-1].name == "status"


def test_the_founding_loss_has_a_column():
    _, losses, *_ = epochs_view(epoch_table(records([0.1] * 4, loss_of_reward_nll=0.25), []))
    assert cells(losses, "-r log p")[1] == "0.250"


def test_the_trend_is_per_epoch():
    """0.01 a step are 0.05 in an epoch of 5, without any noise."""
    trend = epoch_table(records([0.01 * i for i in range(40)], per_epoch=5), [])["trends"]["reward"]
    assert trend == pytest.approx([0.05] * 3, abs=1e-9)


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


def test_columns_without_a_number_are_left_out_and_cells_are_text():
    lines = healthy()
    rewards, losses, trends = epochs_view(epoch_table(lines, []))
    headings = [[head.name for head in table.heads] for table in (rewards, losses)]
    assert headings == [
        ["epoch", "reward", "reward trend [95 %]", "variance", "within", "best of N", "gap", "minutes"],
        ["epoch", "loss", "loss trend [95 %]", "policy", "KL", "status"],
    ]
    assert {len(row) for table in (rewards, losses) for row in table.rows} == {8, 6}
    assert trends.text.startswith("Change per epoch, with its 95 % interval: reward +")
    assert epochs_view(None) == []


def test_the_table_of_a_real_run_is_in_terminal_report_and_summary(toy, tmp_path, capsys):
    from steadyrl.cli.report import show, write
    from steadyrl.loop import record

    session = toy(
        "run.epochs=4", "algorithm.name=rlaif", "rollout.prompts_per_step=2", "rollout.samples_per_prompt=4",
        f"run.folder={tmp_path}/here",
    )  # fmt: skip
    run = record.begin(session.config, "")
    record.add_model(run, session)
    train(session, run)
    record.close(run, "finished", session.config)
    folder = write_report(RunDir(run.path).path)
    summary = json.loads((folder / "summary.json").read_text())
    rows, lines = summary["epochs"]["rows"], run.metrics()
    assert [row["name"] for row in rows] == ["1", "2", "3", "4"]
    quarter = lines[: len(lines) // 4]
    assert rows[0]["reward"] == pytest.approx(np.mean([line["reward/mean"] for line in quarter]))
    assert rows[0]["variance"] == pytest.approx(rows[0]["within"] + rows[0]["between"])
    assert rows[0]["gap"] > 0
    for page in ("report.md", "report.html"):
        assert "Epoch by epoch" in (folder / page).read_text()
    write(run)
    show(run)
    printed = capsys.readouterr().out
    assert "best of N" in printed
    assert max(len(line) for line in printed.splitlines() if line.strip().startswith(("epoch", "1 ", "2 "))) <= 110
