"""Forms that tables and numbers have in reports that people write: cells without a value, courses, words, blocks."""

import json

import numpy as np
import pytest

from steadyrl.core.errors import RunError
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.readers.tables import STEPLESS

MINUS, ARROW, DASH = "\u2212", "\u2192", "\u2013"


def read(path, text):
    path.write_text(text, encoding="utf-8")
    (log,) = search(path, lambda log: True).logs
    return log


def table(*rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def values(log, name):
    return log.columns[name].values.tolist()


def found(path):
    (diagnosis,) = diagnose(path)
    return {finding.check: finding for finding in diagnosis.findings}


@pytest.mark.parametrize(
    "word",
    ["n/a", "N/A", "na", "NA", "-", DASH, "\u2014", "none", "None", "null", "pending", "TBD", "empty", "", "未测"],
)
@pytest.mark.parametrize("kind", ["md", "csv"])
def test_a_cell_that_says_not_available_holds_no_value(tmp_path, word, kind):
    rows = [("step", "reward", "kl", "acc"), (3, 0.25, 0.5, 0.75), (6, word, 0.75, 0.5), (9, 0.5, 0.25, 0.5)]
    text = table(*rows) if kind == "md" else "\n".join(",".join(map(str, row)) for row in rows)
    log = read(tmp_path / f"run.{kind}", text)
    assert values(log, "reward") == [0.25, 0.5] and log.columns["reward"].steps.tolist() == [3, 9]
    assert values(log, "kl") == [0.5, 0.75, 0.25]
    assert "non_finite" not in found(tmp_path / f"run.{kind}")


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf"])
@pytest.mark.parametrize("kind", ["md", "csv"])
def test_a_number_that_is_none_is_still_a_fault(tmp_path, word, kind):
    rows = [("step", "reward", "kl"), (3, 0.25, 0.5), (6, 0.5, 0.25), *((n, 0.5, word) for n in (9, 12, 15))]
    text = table(*rows) if kind == "md" else "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / f"run.{kind}").write_text(text)
    assert found(tmp_path / f"run.{kind}")["non_finite"].since_step == 9


def unlike_rows():
    """Return rows as of a table of a Trainer's history: of training at every 5th step, of evaluation at every 10th."""
    rows = []
    for step in range(5, 45, 5):
        rows.append({"step": step, "reward": step / 50, "kl": 0.01, "eval_reward": None, "eval_accuracy": None})
        if step % 10 == 0:
            rows.append({"step": step, "reward": None, "kl": None, "eval_reward": 0.4, "eval_accuracy": step / 80})
    return rows


def written(rows, kind):
    names = list(rows[0])
    cells = [["NaN" if row[name] is None else row[name] for name in names] for row in rows]
    if kind == "csv":
        return "\n".join(",".join(map(str, line)) for line in [names, *cells])
    if kind == "md":
        return table(names, *cells)
    if kind == "jsonl":
        return "\n".join(map(json.dumps, rows))
    if kind == "json":
        return json.dumps(rows)
    marked = [("th", names), *(("td", line) for line in cells)]
    lines = ["<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in line) + "</tr>" for tag, line in marked]
    html = "<table>\n" + "\n".join(lines) + "\n</table>"
    output = {"output_type": "display_data", "data": {"text/html": html}}
    return json.dumps({"cells": [{"cell_type": "code", "source": "", "outputs": [output]}], "nbformat": 4})


@pytest.mark.parametrize("kind", ["csv", "md", "jsonl", "json", "ipynb"])
def test_what_rows_of_another_kind_leave_empty_is_no_fault(tmp_path, kind):
    path = tmp_path / f"run.{kind}"
    log = read(path, written(unlike_rows(), kind))
    assert values(log, "reward") == [step / 50 for step in range(5, 45, 5)]
    assert log.columns["eval_accuracy"].steps.tolist() == [10, 20, 30, 40]
    assert "non_finite" not in found(path)


@pytest.mark.parametrize("kind", ["csv", "md", "jsonl", "json", "ipynb"])
def test_a_reward_that_breaks_between_evaluations_is_a_fault(tmp_path, kind):
    rows = [{**row, "reward": None if row["step"] > 20 else row["reward"]} for row in unlike_rows()]
    (tmp_path / f"run.{kind}").write_text(written(rows, kind))
    assert found(tmp_path / f"run.{kind}")["non_finite"].since_step == 25


@pytest.mark.parametrize(
    ("line", "name", "course"),
    [
        (f"KL: {MINUS}0.5 {ARROW} {MINUS}11.25 {ARROW} {MINUS}1,204.5", "KL", [-0.5, -11.25, -1204.5]),
        ("- **Mean reward**: 0.1 -> 0.2 -> 0.35 -> 0.3", "Mean reward", [0.1, 0.2, 0.35, 0.3]),
        ("entropy = 2.5=>1.5=>0.25 (collapsed)", "entropy", [2.5, 1.5, 0.25]),
    ],
)
def test_values_with_arrows_between_them_are_rows_of_one_quantity(tmp_path, line, name, course):
    log = read(tmp_path / "report.md", f"# What happened\n\n```\n{line}\n```\nand so on\n")
    assert values(log, name) == pytest.approx(course)
    assert log.columns[name].steps.tolist() == list(range(1, len(course) + 1))
    assert log.notes[-1] == f"{STEPLESS}{name}"


def test_courses_add_what_the_table_beside_them_lacks(tmp_path):
    text = table(("Step", "Reward", "KL Divergence"), (5, 1.5, 0.1), (10, 1.25, 0.2), (15, 1.0, 0.3))
    text += f"\nKL: 7 {ARROW} 8 {ARROW} 9\nBatch ratios: 1.5 {ARROW} 20.5 {ARROW} 31,250.00\nlr: 1 -> 2\n"
    log = read(tmp_path / "report.md", text)
    assert set(log.columns) == {"Reward", "KL Divergence", "Batch ratios"}
    assert values(log, "Batch ratios") == [1.5, 20.5, 31250.0]
    assert "ratio_off" in found(tmp_path / "report.md")


@pytest.mark.parametrize(
    "line", ["Reward went from 0.2 to 0.5.", "reward: 0.1 -> 0.4", "path: a -> b -> c", f"KL: {'7' * 99} -> 1 -> 2"]
)
def test_two_values_of_a_remark_are_no_rows(tmp_path, line):
    text = table(("Step", "KL"), (5, 0.1), (10, 0.2), (15, 0.3)) + line
    assert set(read(tmp_path / "report.md", text).columns) == {"KL"}


def test_a_table_of_windows_in_chinese_is_read_by_its_words(tmp_path):
    rows = [(f"{n}{DASH}{n + 49}", 0.25 + n / 1000, 0.5, 2.0, 100 + n, 0.125) for n in range(1, 300, 50)]
    log = read(tmp_path / "报告.md", table(("步数", "平均奖励", "熵均值", "梯度范数", "平均长度", "策略损失"), *rows))
    assert log.columns["平均奖励"].steps.tolist() == list(range(1, 300, 50))
    run = identify(log)
    assert {name: run.get(name).source for name in run.series} == {
        "reward": "平均奖励",
        "entropy": "熵均值",
        "grad_norm": "梯度范数",
        "length": "平均长度",
        "loss_policy": "策略损失",
    }


def test_words_of_two_languages_in_one_name_are_understood(tmp_path):
    rows = [
        ("训练步", "reward 均值", "KL 散度（本次）", "截断比例", "验证 reward"),
        (10, 0.5, 0.1, 0.25, 0.3),
        (20, 0.6, 0.2, 0.5, 0.2),
    ]
    run = identify(read(tmp_path / "run.md", table(*rows)))
    assert set(run.series) == {"reward", "kl_ref", "truncated", "heldout/reward"}


def test_rows_of_checkpoints_are_at_their_steps(tmp_path):
    rows = [("Checkpoint", "Reward", "KL"), *((f"checkpoint-{n}", n / 400, 0.5) for n in (100, 200, 300))]
    log = read(tmp_path / "run.md", table(*rows))
    assert log.columns["Reward"].steps.tolist() == [100, 200, 300]


@pytest.mark.parametrize("blocks", [2, 3])
def test_blocks_of_a_table_beside_each_other_are_one_below_the_other(tmp_path, blocks):
    steps = np.arange(1, 4 * blocks).reshape(-1)  # the last block is a row shorter
    rows = [[] for _ in range(4)]
    for place, step in enumerate([*steps, ""]):
        rows[place % 4] += [step, step / 8 if step else "", -0.5 if step else ""]
    log = read(tmp_path / "run.md", table(["Step", "Reward", "Loss"] * blocks, *rows))
    assert log.columns["Reward"].steps.tolist() == steps.tolist() and values(log, "Reward") == (steps / 8).tolist()
    assert set(log.columns) == {"Reward", "Loss"}


def test_cells_with_several_values_are_as_many_columns(tmp_path):
    rows = [("Step", "reward", "advantages max/min", "heldout d2 / d9"), (1, 0.5, "1.5 / -0.5", "0.75 / 0.5")]
    log = read(tmp_path / "run.md", table(*rows, (2, 0.5, "1.25 / -1.0", "**0.5 / 0.25**")))
    assert values(log, "advantages max") == [1.5, 1.25] and values(log, "advantages min") == [-0.5, -1.0]
    assert values(log, "heldout d9") == [0.5, 0.25]
    assert {"advantage_max", "advantage_min", "heldout/d2", "heldout/d9"} <= set(identify(log).series)


def test_a_remark_in_brackets_leaves_a_name_what_it_is(tmp_path):
    rows = [("step", "reward (v7)", "KL (ours)", "entropy (max)"), (1, 0.5, 0.1, 3.0), (2, 0.6, 0.2, 3.5)]
    assert set(identify(read(tmp_path / "run.md", table(*rows))).series) == {"reward", "kl_ref"}
    two = [("step", "loss", "reward (v1)", "reward (v2)"), (1, 0.1, 0.5, 0.1), (2, 0.1, 0.6, 0.2)]
    assert "reward" not in identify(read(tmp_path / "two.md", table(*two))).series


def test_text_below_a_table_with_bars_is_no_row_of_it(tmp_path):
    text = table(("Step", "reward", "loss"), (10, 0.5, 0.25), (20, 0.75, 0.125))
    log = read(tmp_path / "run.md", f"{text}\n1. 4 8\n7 3 of\n| 30 | 1.0 | 0.5 |\n")
    assert log.columns["reward"].steps.tolist() == [10, 20, 30] and values(log, "loss") == [0.25, 0.125, 0.5]


@pytest.mark.parametrize("remark", ["Verdict", "change", "备注"])
def test_of_a_metric_in_each_row_all_steps_are_read_beside_a_column_of_remarks(tmp_path, remark):
    rows = [("metric", "Step 10", "Step 40", "Step 90", remark), ("KL", 0.125, 0.5, 2.0, "grows"), ("Note", 1, 2, 3, 4)]
    log = read(tmp_path / "report.md", table(*rows, ("mean reward", 0.25, "**0.75**", 0.5, "fell")))
    assert log.columns["mean reward"].steps.tolist() == [10, 40, 90]
    assert values(log, "KL") == [0.125, 0.5, 2.0] and values(log, "mean reward") == [0.25, 0.75, 0.5]


def test_a_table_goes_on_in_another_one_at_later_steps(tmp_path):
    first = table(("Step", "Reward", "Entropy"), (0, 0.125, 2.5), (20, 0.25, 2.25))
    later = table(("Step", "Entropy", "Comment"), (40, 1.5, "less"), (60, 0.5, "collapsed"))
    again = table(("Step", "Entropy"), (10, 7.5), (70, 8.5))  # of another run: its steps do not come after
    text = "\n\n".join((f"## Before\n\n{first}", f"## After\n\n{later}", f"## Another run\n\n{again}"))
    log = read(tmp_path / "phases.md", text)
    assert log.columns["Entropy"].steps.tolist() == [0, 20, 40, 60]
    assert values(log, "Entropy") == [2.5, 2.25, 1.5, 0.5] and values(log, "Reward") == [0.125, 0.25]
    assert any(note.startswith("rows of other tables, left out: 2; read is that of") for note in log.notes)


def test_a_line_of_verl_that_a_terminal_wrapped_is_one_row(tmp_path):
    line = " - ".join(["step:31", *(f"actor/m{i}/value:{i}.25" for i in range(40)), "critic/rewards/mean:0.125"])
    wrapped = "\n".join(line[at : at + 97] for at in range(0, len(line), 97))
    text = f"(TaskRunner pid=7) {wrapped}\nsome other text - that is not: 1\nstep:32 - critic/rewards/mean:0.5\n"
    log = read(tmp_path / "console.log", text)
    assert log.columns["critic/rewards/mean"].steps.tolist() == [31, 32]
    assert values(log, "critic/rewards/mean") == [0.125, 0.5]
    assert [values(log, f"actor/m{i}/value") for i in range(40)] == [[i + 0.25] for i in range(40)]


def test_two_values_of_a_course_are_both_read_where_there_is_no_table(tmp_path):
    log = read(tmp_path / "summary.md", f"# Run 5\n\n- Mean reward: 0.25 {ARROW} 0.75\n- KL: 0.5 to 12.5\n")
    assert values(log, "Mean reward") == [0.25, 0.75]
    assert values(log, "KL") == [0.5, 12.5]


@pytest.mark.parametrize(
    ("sentence", "name", "course"),
    [
        ("After step 90 the policy broke: our entropy exploded from 0.75 to 5.25.", "entropy", [0.75, 5.25]),
        (f"All runs (validation reward dropped quickly 0.5 {ARROW} -0.25) ended so", "validation reward", [0.5, -0.25]),
        ("The reward rose from 10% to 25% to 40% in the end.", "reward", [0.1, 0.4]),
        ("The reward of one seed is 0.5 to 0.75 below the others, and the KL divergence grew to 2.", "", []),
        ("KL coefficients from 0.25 to 0.5 were tried, a reward (0 to 1) was paid, lengths of 10 to 20", "", []),
    ],
)
def test_a_sentence_says_the_course_of_a_metric(tmp_path, sentence, name, course):
    log = read(tmp_path / "post_mortem.md", f"# Run 5\n\n- Loss: 1 {ARROW} 2\n\n{sentence}\n")
    assert set(log.columns) == {"Loss"}
    stated = [(of.name, [of.before, of.after]) for of in log.evaluations if of.course]
    assert stated == [(name, course)] * bool(name)


@pytest.mark.parametrize(
    ("sentence", "levels"),
    [
        (
            "1. `completions/clipped_ratio` is very high (`~0.7\u20130.8`), so that much is wasted",
            {"completions/clipped_ratio": 0.75},
        ),
        (
            "In all 60 steps `frac_reward_zero_std: 1`, and grad_norm was 0.",
            {"frac_reward_zero_std": 1.0, "grad_norm": 0.0},
        ),
        ("The file rewards/step.py has it, and reward_model v2.5 was 3 times slower", {}),
    ],
)
def test_prose_says_the_level_of_a_metric_whose_name_is_no_word(tmp_path, sentence, levels):
    log = read(tmp_path / "notes.md", f"# Run 5\n\n- Loss: 1 {ARROW} 2\n\n{sentence}\n")
    assert {name: values(log, name) for name in log.columns if name != "Loss"} == {
        name: [pytest.approx(level)] for name, level in levels.items()
    }


def test_levels_in_a_console_are_its_rows(tmp_path):
    (tmp_path / "run.log").write_text("".join(f"step {i}\nmean_reward: 0.{i}\ngrad_norm: 1.{i}\n" for i in range(1, 9)))
    (log,) = search(tmp_path / "run.log", lambda log: True).logs
    assert values(log, "mean_reward") == [i / 10 for i in range(1, 9)]


@pytest.mark.parametrize(
    ("shares", "quantity"), [((0.625, 0.5, 0.25, 0.125), "truncated"), ((0.125, 0.0625, 0.03125, 0.0), "clip_fraction")]
)
def test_a_clip_ratio_that_begins_high_and_goes_with_the_length_is_of_texts(tmp_path, shares, quantity):
    rows = [(20 * i, 0.25, 900 - 200 * i, share) for i, share in enumerate(shares, 1)]
    run = identify(read(tmp_path / "notes.md", table(("step", "reward", "mean length", "clip ratio"), *rows)))
    assert run.get(quantity).values.tolist() == list(shares)
    assert len({"truncated", "clip_fraction"} & run.series.keys()) == 1


@pytest.mark.parametrize("names", [("first 50", "last 50"), ("Steps 1-50", "Steps 250-300"), ("초반", "최근")])
def test_a_table_of_the_start_and_the_end_has_two_rows(tmp_path, names):
    rows = [("metric", *names, "change"), ("reward", 0.75, 0.25, "-67 %"), ("**KL**", 0.125, "**2.5**", "up")]
    log = read(tmp_path / "windows.md", table(*rows, ("entropy", 1.5, 0.5, "-67 %")))
    assert values(log, "reward") == [0.75, 0.25] and values(log, "KL") == [0.125, 2.5]
    two_runs = table(("metric", "run A", "run B"), ("reward", 0.75, 0.25), ("KL", 0.125, 2.5), ("entropy", 1.5, 0.5))
    with pytest.raises(RunError, match="no log"):  # of two runs a column is no course
        read(tmp_path / "runs.md", two_runs)


def test_a_notebook_with_a_sweep_holds_a_run_for_each_training(tmp_path):
    def shown(slope, rows):
        cells = [("Step", "Training Loss", "reward"), *((10 * i, 0.5 / i, slope * i) for i in range(1, rows + 1))]
        lines = ["".join(f"<td>{cell}</td>" for cell in line) for line in cells]
        page = "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
        return {"output_type": "display_data", "data": {"text/html": page}}

    # The third output shows more of the second run; the last one was stopped after two rows.
    outputs = [shown(0.125, 6), shown(-0.25, 4), shown(-0.25, 8), shown(0.5, 2)]
    (tmp_path / "sweep.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": "", "outputs": outputs}]})
    )
    logs = search(tmp_path / "sweep.ipynb", lambda log: True).logs
    assert [values(log, "reward") for log in logs] == [
        [0.125 * i for i in range(1, 7)],
        [-0.25 * i for i in range(1, 9)],
    ]
    assert len({log.path for log in logs}) == 2


def test_steps_with_remarks_are_read_beside_an_accuracy_and_courses_have_signs(tmp_path):
    rows = [("step", "accuracy", "margin"), ("0 (untrained)", "61.5%", f"{MINUS}0.4 {ARROW} +0.1")]
    rows += [("20", "**64.0%**", "0.1 to -0.3"), ("40 (last)", "70.5%", f"+0.2 {ARROW} 0.6")]
    log = read(tmp_path / "notes.md", "# On held-out problems\n\n" + table(*rows))
    assert log.columns["accuracy"].steps.tolist() == [0, 20, 40]
    assert values(log, "accuracy") == pytest.approx([0.615, 0.64, 0.705])
    assert values(log, "margin") == [0.1, -0.3, 0.6]


def test_a_table_with_steps_is_the_runs_before_one_of_phases_that_names_a_reward_in_words(tmp_path):
    phases = table(("Phase", "reward function", "step 90 exact"), ("A", "exact match", 0.31), ("B", "five grades", 0.4))
    steps = table(
        ("step", "reward", "tokens"), (1, 0.25, 300), (30, 0.5, 420), ("60-65 (resumed)", "0.25-0.75", "500+")
    )
    log = read(tmp_path / "report.md", f"{phases}\n{steps}")
    assert values(log, "reward") == [0.25, 0.5, 0.5]
    assert "step 90 exact" not in log.columns


def test_a_level_in_words_stands_beside_a_table_that_does_not_hold_it(tmp_path):
    rows = table(("steps", "mean reward"), (1, 0.06), (90, 0.12), (180, 0.13))
    log = read(
        tmp_path / "note.md", f"{rows}\nEvery group scores alike (frac_reward_zero_std 0.97), so nothing moves.\n"
    )
    assert values(log, "frac_reward_zero_std") == [0.97] and len(values(log, "mean reward")) == 3


def test_the_cells_of_a_table_are_no_names_and_values_and_its_rows_no_steps(tmp_path):
    arms = table(("arm", "reward", "loss", "note"), ("A", 0.4, 0.2, "x"), ("B", 0.7, 0.1, "y"))
    course = [(10 * i, 0.25 + i / 20, 0.5) for i in range(1, 9)]
    text = f"Final loss: 0.25, reward_std=0 would be bad\n\n{arms}\n{table(('step', 'reward', 'entropy'), *course)}"
    log = read(tmp_path / "report.md", text)
    assert log.columns["reward"].steps.tolist() == [step for step, *_ in course]
    assert not {"A", "B"} & log.columns.keys()


def test_the_rows_of_a_training_with_rewards_count_before_those_of_one_on_pairs(tmp_path):
    pairs = table(("step", "loss", "reward margin"), *((5 * i, 0.7 / i, i / 2) for i in range(1, 9)))
    rewards = table(("step", "mean reward"), *((4 * i, 0.5 + i / 50) for i in range(1, 6)))
    log = read(tmp_path / "both.md", f"## Pairs\n\n{pairs}\n## RLOO\n\n{rewards}")
    assert list(log.columns) == ["mean reward"] and len(values(log, "mean reward")) == 5
    assert any("left out: 8; read is that of step, mean reward" in note for note in log.notes)


def test_a_level_of_a_sentence_stands_at_the_end_of_the_table_beside_it_and_settings_are_none(tmp_path):
    rows = table(("step", "reward", "entropy"), *((20 * i, 1.0 - i / 10, 0.5) for i in range(1, 8)))
    log = read(tmp_path / "end.md", f"{rows}\nThen frac_reward_zero_std=1.0, with max_grad_norm=0.5.\n")
    assert log.columns["frac_reward_zero_std"].steps.tolist() == [140]
    all_along = read(tmp_path / "all.md", f"{rows}\nclipped_ratio = 0.75 throughout\n").columns["clipped_ratio"]
    assert all_along.steps.tolist() == [20 * i for i in range(1, 8)] and set(all_along.values) == {0.75}
    assert "max_grad_norm" not in log.columns


def test_a_row_whose_last_cell_is_empty_or_a_remark_with_values_is_a_row(tmp_path):
    remarks = ["", "", " best=0.5, loss=0.25, saved"] * 4
    rows = "".join(f" {i} | {0.2 + i / 100:.2f} |{remark}\n" for i, remark in enumerate(remarks, 1))
    log = read(tmp_path / "log.md", f" Step | Reward | Notes\n{rows}")
    assert values(log, "Reward") == pytest.approx([0.2 + i / 100 for i in range(1, 13)])


def test_scores_of_stages_in_two_columns_are_no_names_and_values(tmp_path):
    stages = "| Method | Test accuracy |\n|---|---|\n| Zero-shot | 31% |\n| SFT + RLOO | 48% |\n\n"
    log = read(tmp_path / "stages.md", f"{stages}KL: 0.5, reward: 0.25, loss: 0.125\n")
    assert not {"Zero-shot", "SFT + RLOO"} & log.columns.keys()
    settings = "| Metric | Value |\n|---|---|\n| mean reward | 0.75 |\n| kl | 0.125 |\n"
    assert values(read(tmp_path / "values.md", settings), "mean reward") == [0.75]


@pytest.mark.parametrize("line", ["    clip_ratio=0.2,   # as usual", "proxy/gold/KL = 1.5 / 0.75 / 2.5 of both"])
def test_settings_in_code_and_several_values_at_once_are_no_levels(tmp_path, line):
    rows = table(("step", "reward"), *((5 * i, 0.5 + i / 50) for i in range(1, 6)))
    assert list(read(tmp_path / "text.md", f"{rows}\n{line}\n").columns) == ["reward"]


def test_a_mean_with_its_spread_behind_a_sign_is_the_mean(tmp_path):
    lines = [f"[Epoch 0.{i}]  loss=0.0{i}  reward=0.{i}5\u00b10.077  entropy=0.5" for i in range(1, 8)]
    assert values(read(tmp_path / "run.md", "\n".join(lines)), "reward") == [0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75]
