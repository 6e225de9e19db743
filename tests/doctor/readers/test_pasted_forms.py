"""Forms that logs have where people paste them: notebooks, tables of typesetters, summaries, mixed lines."""

import json

import numpy as np
import pytest

from steadyrl.core.errors import RunError
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.readers.spelling import spelled


def read(path, text):
    path.write_text(text, encoding="utf-8")
    (log,) = search(path, lambda log: True).logs
    return log


def values(log, name):
    return log.columns[name].values.tolist()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\u22127.25", -7.25),
        ("**12.5**", 12.5),
        ("`3e-4`", 3e-4),
        ("*\u22120.5*", -0.5),
        ("12.5%", 0.125),
        ("1,234,567.5", 1234567.5),
        ("12,34", None),
        ("%", None),
        ("**", None),
        ("tensor(2.5)", 2.5),
    ],
)
def test_numbers_as_people_write_them(text, value):
    assert spelled(text) == value


def test_a_table_with_typeset_signs_emphasis_and_a_row_of_dashes_keeps_all_its_cells(tmp_path):
    log = read(
        tmp_path / "issue.md",
        "| Step | Reward | KL |\n|---|---|---|\n| 0 | \u2014 | \u2013 |\n| 5 | \u22120.25 | 0.5 |\n"
        "| **10** | **1.5** | *\u22122.5* |\n| 15 | 2.5 | 1,024.5 |\n",
    )
    assert log.columns["Reward"].steps.tolist() == [5, 10, 15]
    assert values(log, "Reward") == [-0.25, 1.5, 2.5]
    assert values(log, "KL") == [0.5, -2.5, 1024.5]


def notebook(*outputs):
    cells = [{"cell_type": "markdown", "source": ["| Step | loss |\n"]}]
    cells += [{"cell_type": "code", "execution_count": 7, "source": [], "outputs": [output]} for output in outputs]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4})


def test_the_table_of_a_notebook_is_in_the_html_of_its_outputs(tmp_path):
    rows = [f"<tr><td>{step}</td><td>{step / 4}</td><td>0.5</td></tr>\n" for step in (2, 4, 6)]
    page = ["<table>\n", "<tr><th>Step</th><th>reward</th><th>kl</th></tr>\n", *rows, "</table>"]
    log = read(tmp_path / "run.ipynb", notebook({"output_type": "display_data", "data": {"text/html": page}}))
    assert log.columns["reward"].steps.tolist() == [2, 4, 6]
    assert values(log, "reward") == [0.5, 1.0, 1.5]


def test_dicts_that_a_notebook_printed_are_rows_whatever_cell_printed_them(tmp_path):
    texts = [f"{{'loss': 0.{n}, 'reward': {n}.5, 'kl': 0.01}}\n" for n in range(1, 6)]
    streams = [{"output_type": "stream", "name": "stdout", "text": part} for part in (texts[:2], "".join(texts[2:]))]
    assert values(read(tmp_path / "run.ipynb", notebook(*streams)), "reward") == [1.5, 2.5, 3.5, 4.5, 5.5]


def test_a_notebook_without_outputs_is_refused(tmp_path):
    (tmp_path / "run.ipynb").write_text(notebook({"output_type": "stream", "text": ["hello\n"]}))
    with pytest.raises(RunError, match=r"run\.ipynb' is no log that steadyrl can read"):
        search(tmp_path / "run.ipynb", lambda log: True)


def test_a_few_lines_with_a_step_do_not_replace_the_rows_around_them(tmp_path):
    lines = []
    for n in range(40):
        lines.append(f"Epoch:[1/2]({n}/90), Reward: {n}.5, KL_ref: 0.25, Actor Loss: 0.125")
        if n % 15 == 14:
            lines.append(f"[INFO] step={n}, dumping sample[3], text length: 17")
    log = read(tmp_path / "train.log", "\n".join(lines))
    assert values(log, "Reward") == [n + 0.5 for n in range(40)]
    assert any("lines that name a step among 40 rows" in note for note in log.notes)


def test_lines_below_a_line_with_a_step_are_of_that_step(tmp_path):
    text = "".join(f"step: {n}\n  reward: {n}.5\n  kl: 0.25\n" for n in range(10, 40, 10))
    log = read(tmp_path / "train.log", text)
    assert log.columns["reward"].steps.tolist() == [10, 20, 30] and values(log, "reward") == [10.5, 20.5, 30.5]


def test_what_wandb_prints_at_the_end_is_one_row(tmp_path):
    text = "wandb: Run history:\nwandb:  critic/score/mean \u2581\u2585\u2588\nwandb: Run summary:\n"
    text += "wandb:  critic/score/mean 0.75\nwandb:  actor/grad_norm 2e9\nwandb:  note done\n"
    log = read(tmp_path / "tail.txt", text)
    assert (values(log, "critic/score/mean"), values(log, "actor/grad_norm")) == ([0.75], [2e9])


def test_names_of_several_words_between_bars_stay_apart(tmp_path):
    text = "".join(f"Epoch {n}: mean policy loss=0.{n} | mean value loss={n}.5 | reward={n}\n" for n in (3, 4, 5))
    log = read(tmp_path / "train.log", text)
    assert log.columns["mean policy loss"].steps.tolist() == [3, 4, 5]
    assert values(log, "mean value loss") == [3.5, 4.5, 5.5] and values(log, "reward") == [3, 4, 5]


def test_an_epoch_that_is_rounded_is_no_step(tmp_path):
    text = "".join(f"{{'loss': 0.{n}, 'reward': {n}.0, 'epoch': 0.0}}\n" for n in (1, 2))
    assert values(read(tmp_path / "train.log", text), "reward") == [1.0, 2.0]


def test_training_and_evaluation_of_an_epoch_are_one_step(tmp_path):
    text = "".join(f"{{'loss': 0.{n}, 'epoch': {n}}}\n{{'eval_reward': {n}.5, 'epoch': {n}}}\n" for n in (1, 2, 3))
    log = read(tmp_path / "train.log", text)
    assert log.columns["loss"].steps.tolist() == log.columns["eval_reward"].steps.tolist() == [1, 2, 3]
    assert not np.isnan(log.columns["loss"].values).any()


def table(names, rows):
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{cells}</table><p>"


@pytest.mark.parametrize("supervised", [["Step", "Training Loss"], ["Step", "Training Loss", "Validation Loss"]])
def test_of_the_tables_of_a_notebook_the_one_with_a_reward_is_read_to_its_last_row(tmp_path, supervised):
    shown = [
        table(supervised, [[5 * i, *[2.5 / i] * (len(supervised) - 1)] for i in range(1, 8)]),
        table(["Step", "Training Loss", "reward"], [[i, 0.01, i / 8] for i in range(1, 5)]),
    ]
    outputs = [{"output_type": "display_data", "data": {"text/html": page}} for page in shown]
    outputs.append({"output_type": "stream", "text": ["saved the adapter\n"]})
    log = read(tmp_path / "run.ipynb", notebook(*outputs))
    assert log.columns["reward"].steps.tolist() == [1, 2, 3, 4]
    assert values(log, "reward") == [0.125, 0.25, 0.375, 0.5]
    assert any(note.startswith("rows of other tables, left out: 7; read is that of") for note in log.notes)


def test_rows_of_a_training_without_rewards_before_the_one_with_them_are_left_out(tmp_path):
    before = [f"{{'loss': {2 - i / 4}, 'entropy': 1.5, 'epoch': {i}}}" for i in range(1, 4)]
    after = [f"{{'loss': 0.0, 'reward': {i / 8}, 'entropy': 0.25, 'epoch': {i / 100}}}" for i in range(1, 5)]
    ended = "{'train_runtime': 12.5, 'train_loss': 1.25, 'epoch': 3.0}"
    log = read(tmp_path / "run.log", "\n".join([*before, ended, *after]))
    assert values(log, "reward") == [0.125, 0.25, 0.375, 0.5]
    assert values(log, "entropy") == [0.25] * 4
    assert "rows of a training without rewards before it, left out: 3" in log.notes
    # Rows without a reward of one training, between those with one, stay.
    assert values(read(tmp_path / "one.log", "\n".join([*before, *after])), "entropy") == [1.5] * 3 + [0.25] * 4


def test_a_dict_of_lengths_with_a_share_cut_off_is_a_row_of_metrics(tmp_path):
    line = "perf 0: {'rollout/response_len/mean': 812.5, 'rollout/truncated_ratio': 0.375}\n"
    assert values(read(tmp_path / "run.log", line), "rollout/truncated_ratio") == [0.375]


def test_a_gradient_norm_may_be_called_grad(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("step,grad\n1,0.5\n2,41250000.0\n")
    diagnosis = diagnose(path)[0]
    assert [(finding.check, finding.cause) for finding in diagnosis.findings] == [("grad_norm", "exploding")]


def test_what_holds_a_loss_and_a_reward_goes_before_what_is_printed_more_surely(tmp_path):
    losses = table(["Step", "Training Loss"], [[i, 0.5] for i in range(1, 5)])
    both = table(["Step", "Training Loss", "reward"], [[i, 0.5, i / 4] for i in range(1, 5)])
    lines = [f"[Step {i}] loss=0.5000 reward={i / 8:.4f} completions/mean_length=96.0\n" for i in range(1, 5)]
    samples = [f"{{'reward/total': {i / 2}, 'log/serial': {i}}}\n" for i in range(1, 9)]

    def shown(page, texts):
        outputs = [{"output_type": "display_data", "data": {"text/html": page}}]
        return notebook(*outputs, {"output_type": "stream", "text": texts})

    assert values(read(tmp_path / "words.ipynb", shown(losses, lines)), "reward") == [0.125, 0.25, 0.375, 0.5]
    assert values(read(tmp_path / "table.ipynb", shown(both, samples)), "reward") == [0.25, 0.5, 0.75, 1.0]


def test_nulls_of_a_table_in_which_no_row_is_complete_were_not_logged(tmp_path):
    def rows(gaps):
        return json.dumps([row for i in range(1, 4) for row in (
            {"step": i, "reward": i / 4, "kl": None, "train/loss": gaps},
            {"step": i, "reward": gaps, "kl": None, "train/loss": i / 8},
        )])  # fmt: skip

    log = read(tmp_path / "wide.json", rows(None))
    assert values(log, "reward") == [0.25, 0.5, 0.75]
    assert values(log, "train/loss") == [0.125, 0.25, 0.375]
    assert "kl" not in log.columns  # what is null throughout was never measured


def test_a_null_is_not_logged_where_numbers_follow_and_no_number_where_none_does(tmp_path):
    rewards = [None, 0.5, 0.25, 0.75, None, None]
    norms = [2.0, None, None, 4.0, None, None]
    rows = [{"step": i, "reward": x, "grad_norm": y} for i, (x, y) in enumerate(zip(rewards, norms, strict=True))]
    log = read(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    np.testing.assert_array_equal(values(log, "reward"), [0.5, 0.25, 0.75, np.nan, np.nan])
    assert log.columns["grad_norm"].steps.tolist() == [0, 3]
    evaluated = [{"step": i, "loss": 1.0 / (i + 1), "eval_loss": 0.5 if i == 3 else None} for i in range(6)]
    log = read(tmp_path / "trainer_log.jsonl", "".join(json.dumps(row) + "\n" for row in evaluated))
    assert values(log, "eval_loss") == [0.5]
    wrapped = "".join(
        json.dumps({"step": row["step"], "data": {"actor/grad_norm": row["grad_norm"]}}) + "\n" for row in rows
    )
    assert np.isnan(values(read(tmp_path / "verl.jsonl", wrapped), "actor/grad_norm")).sum() == 4


def test_ranges_of_steps_units_and_remarks_leave_the_numbers_of_a_table(tmp_path):
    log = read(
        tmp_path / "notes.md",
        "| steps | Reward | Time | Mean Length |\n|---|---|---|---|\n| 1\u201325 | 0.125 | 31.5s | 96.0 (hit max) |\n"
        "| **26\u201350** | 0.25 | 29 s | 48.0 |\n| 51-75 (best) | **0.5** | 30s | 24.5 tokens |\n",
    )
    assert log.columns["Reward"].steps.tolist() == [1, 26, 51]
    assert values(log, "Reward") == [0.125, 0.25, 0.5]
    assert values(log, "Time") == [31.5, 29.0, 30.0]
    assert values(log, "Mean Length") == [96.0, 48.0, 24.5]


def test_a_unit_that_changes_the_size_of_a_number_is_none(tmp_path):
    text = "| Step | Reward | Tokens |\n|---|---|---|\n| 1 | 0.5 | 10k |\n| 2 | 0.75 | 20k |\n"
    assert "Tokens" not in read(tmp_path / "notes.md", text).columns


def test_of_loops_inside_loops_the_longest_counts_the_steps(tmp_path):
    text = "".join(f"Mean Reward: 0.{n}\nIteration 1/2, Step {n}/90, update 1/1, loss: 0.0{n}\n" for n in range(2, 9))
    log = read(tmp_path / "train.log", text)
    assert log.columns["loss"].steps.tolist() == list(range(2, 9))


def test_a_value_may_follow_the_word_is(tmp_path):
    text = "".join(f"At step {n} grpo_loss is -0.{n} and kl is {n}.5, which is {n} more\n" for n in range(1, 9))
    log = read(tmp_path / "train.log", text)
    assert values(log, "grpo_loss") == [-n / 10 for n in range(1, 9)]
    assert values(log, "kl") == [n + 0.5 for n in range(1, 9)]
    assert log.columns["kl"].steps.tolist() == list(range(1, 9))


def test_a_bar_that_redraws_itself_in_one_line_is_a_row_for_each_step(tmp_path):
    drawn = [f" {10 * n:2d}%|#  | {n}/10 [00:0{n}<00:09, 1.0it/s, loss=0.{n}, reward=0.{n}5]" for n in (1, 2, 2, 3)]
    log = read(tmp_path / "bar.txt", "\r".join(drawn) + "\n")
    assert log.columns["reward"].steps.tolist() == [1, 2, 3]
    assert values(log, "reward") == [0.15, 0.25, 0.35]


def test_a_value_in_brackets_behind_its_name_is_read_and_the_mean_comes_before_single_rewards(tmp_path):
    path = tmp_path / "ppo.log"
    path.write_text(
        "".join(f"step {n} -- mean_reward: (-0.{n}) -- samples:\n\t0: a film -- Reward: 3.5\n" for n in range(6))
    )
    (diagnosis,) = diagnose(path)
    assert diagnosis.run.get("reward").values.tolist() == pytest.approx([0.0, -0.1, -0.2, -0.3, -0.4, -0.5])


def test_the_settings_of_a_notebook_are_those_of_its_source(tmp_path):
    first = "%pip install trl\nroom = 640\nconfig = GRPOConfig(learning_rate=5e-6, beta=0.25, max_steps=room * 2)\n"
    second = ["prompt = 128\n", "args = trl.GRPOConfig(beta=0.5, max_completion_length = room - prompt, loss_type=x)"]
    rows = "".join(f"{{'loss': 0.5, 'reward': {i}.5, 'kl': 0.1}}\n" for i in range(3))
    cells = [
        {"cell_type": "code", "source": first, "outputs": []},
        {"cell_type": "code", "source": "SFTConfig(learning_rate=2e-4, max_steps=7)\nif broken:", "outputs": []},
        {"cell_type": "code", "source": second, "outputs": [{"output_type": "stream", "text": rows}]},
    ]
    log = read(tmp_path / "run.ipynb", json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    # Two values of beta: which of them the log is of is not told.
    assert log.settings == {"learning_rate": 5e-6, "max_steps": 1280, "max_completion_length": 512}
    assert any("source of the notebook" in note for note in log.notes)


def test_a_table_with_a_metric_in_each_row_has_its_steps_in_the_header(tmp_path):
    text = (
        "| Metric | Step 0 | Step 50 | Step 100 |\n|---|---|---|---|\n| reward | 0.5 | 0.25 | - |\n| KL | 0 | 2 | 40 |"
    )
    log = read(tmp_path / "issue.md", f"My run:\n\n{text}\n\nWhat is wrong?\n")
    assert log.columns["KL"].steps.tolist() == [0, 50, 100] and values(log, "KL") == [0.0, 2.0, 40.0]
    assert log.columns["reward"].steps.tolist() == [0, 50]


def test_ranges_of_steps_are_rows_at_their_beginning(tmp_path):
    rows = "".join(f"| steps {50 * i}\u2013{50 * i + 50} | 0.{i} |\n" for i in range(1, 5))
    log = read(tmp_path / "issue.md", f"| Steps | Mean reward |\n|---|---|\n{rows}")
    assert log.columns["Mean reward"].steps.tolist() == [50, 100, 150, 200]


def test_of_rewards_of_single_completions_below_their_mean_the_mean_is_the_row(tmp_path):
    text = "".join(
        f"step {i} -- mean_reward: ({i / 4}) -- three samples:\n"
        + "".join(f"\t{j}: some text  -- Reward: {j - 1.5}   \n" for j in range(3))
        for i in range(8)
    )
    log = read(tmp_path / "run.log", "{'label': 1, 'score': 3.5}\n" + text)
    assert values(log, "mean_reward") == [i / 4 for i in range(8)] and list(log.columns) == ["mean_reward"]


def test_a_value_behind_a_tab_and_before_a_remark_is_read(tmp_path):
    text = "".join(
        f"---- STEP {i} ----\nrewards/mean:\t{i}.500000\t<---- higher is better\nobjective/kl:\t0.25\t<---- how far\n"
        for i in range(6)
    )
    log = read(tmp_path / "run.log", text)
    assert values(log, "rewards/mean") == [i + 0.5 for i in range(6)] and values(log, "objective/kl") == [0.25] * 6


def test_evaluations_alone_stand_for_training(tmp_path):
    row = {"eval_loss": 0.0, "eval_reward": 0.0, "eval_reward_std": 0.0, "eval_frac_reward_zero_std": 1.0}
    (diagnosis,) = diagnose_text(tmp_path, str(row))
    assert diagnosis.verdict == "sick" and diagnosis.findings[0].check == "no_signal_groups"
    assert any("eval_reward_std" in note and "stand for it" in note for note in diagnosis.run.notes)


def test_a_log_of_mean_least_and_greatest_follows_the_reward(tmp_path):
    rows = [{"step": i, "mean": 0.25, "min": 0.0, "max": 1.0} for i in range(4)]
    (diagnosis,) = diagnose_text(tmp_path, "\n".join(map(json.dumps, rows)))
    assert diagnosis.run.series["reward"][0].source == "mean"
    assert any("mean as reward" in note for note in diagnosis.run.notes)
    with pytest.raises(RunError, match="no known metric"):
        diagnose_text(tmp_path, "\n".join(json.dumps({"step": i, "mean": 1.0, "median": 2.0}) for i in range(4)))


def diagnose_text(tmp_path, text):
    path = tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8")
    return diagnose(path)


def test_steps_whose_digits_are_torn_keep_their_place(tmp_path):
    steps = [1, 2, 3, 4000, 5, 6, 10, 8, 9, 10, 11, 12, 13]  # 4 and 7 were torn
    log = read(tmp_path / "run.jsonl", "\n".join(json.dumps({"step": s, "reward": i}) for i, s in enumerate(steps)))
    assert log.columns["reward"].steps.tolist() == list(range(1, 14))
    assert values(log, "reward") == list(range(13))
    assert any("out of line" in note and note.endswith(": 2") for note in log.notes)


def test_a_row_of_numbers_is_no_header_of_steps(tmp_path):
    text = "| metric | early | late | change |\n|---|---|---|---|\n"
    with pytest.raises(RunError, match="no log"):
        read(tmp_path / "issue.md", text + "| reward | 0.6 | 0.4 | -35% |\n| kl | 0.1 | 0.2 | 90% |\n")


def test_cells_with_a_course_a_range_or_a_sign_behind_them_are_numbers(tmp_path):
    text = (
        "| 8/24 | a table (step 22, grad) of something else |\n|---|---|\n| 1 | 2 |\n\n"
        "| phase | step | score | entropy | grad_norm |\n|---|---|---|---|---|\n"
        "| start | 1-100 | 0.06\u21920.25 | 0.7-0.8 | 2-4 |\n"
        "| late | 100\u2013200 | 0.5 | \u5230 0.4-0.5 | **7.5** \u26a0 |\n"
        "| end | 200+ | \u22120.25 | 1.5 | 9\u9ad8 |\n"
    )
    log = read(tmp_path / "issue.md", text)
    assert log.columns["score"].steps.tolist() == [1, 100, 200]
    assert values(log, "score") == [0.25, 0.5, -0.25] and values(log, "grad_norm") == [3.0, 7.5, 9.0]
    assert values(log, "entropy") == [0.75, 0.45, 1.5]


def test_a_table_ends_where_the_header_of_the_next_begins(tmp_path):
    rows = [f"| {step} | {0.25 * step} | {step}.5 |" for step in range(1, 7)]
    course = ["| Step | Reward | Rolling Avg |", "|---|:---:|---|", *rows]
    results = ["| | Reward | Completion |", "| - | - | - |", "| 9 | 0.1 | 0.2 |", "| 10 | 0.8 | 0.7 |"]
    log = read(tmp_path / "page.md", "\n".join([*course, "", "Before and after:", "", *results]))
    assert values(log, "Reward") == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5]


def test_a_table_of_results_above_is_not_taken_for_the_course(tmp_path):
    results = ["| Run | Steps | Final Mean Reward |", "|---|---|---|", "| 1 | 50 | 0.39 |"]
    course = ["| Step | Mean Reward |", "|---|---|", *(f"| {10 * i} | {0.1 * i:.1f} |" for i in range(1, 6))]
    log = read(tmp_path / "page.md", "\n".join([*results, "", *course]))
    assert values(log, "Mean Reward") == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_column_of_several_numbers_in_each_cell_is_as_many_columns(tmp_path):
    text = (
        "| step | train reward | holdout easy / hard | KL/entropy | pass / 8 |\n|---|---|---|---|---|\n"
        "| 5 | 0.31 | 0.62 / 0.2 | 0.01 | 3/8 |\n| 10 | 0.45 | **0.58 / 0.1** | 0.02 | 5/8 |\n"
    )
    log = read(tmp_path / "page.md", text)
    assert values(log, "holdout easy") == [0.62, 0.58] and values(log, "holdout hard") == [0.2, 0.1]
    assert values(log, "KL/entropy") == [0.01, 0.02]
    assert not {"8", "pass 8"} & log.columns.keys()


def test_a_step_is_told_by_its_own_line_and_not_by_the_bar_of_a_loop_inside_it(tmp_path):
    def shown(step):
        bars = "".join(f"Iter {step} groups: {k}%|#   | {k}/40 [0:0{k}, loss=7.5, mean_r=0.9]\r" for k in range(1, 9))
        scored = "".join(f"Scored: combined=0.5 step_acc=40% (parse=0.25)\nScored: combined={k}.5\n" for k in range(5))
        line = f"09:1{step} INFO - Iter {step} | loss=0.{step} | reward mean=0.{step}5 std=0.2 | lr=1e-06"
        return f"{bars}\n{scored}{line}\n"

    log = read(tmp_path / "train.log", "".join(map(shown, range(1, 8))))
    assert log.columns["reward mean"].steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert values(log, "reward mean") == [0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75]
    assert values(log, "loss") == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


def test_a_short_word_for_an_episode_names_the_step(tmp_path):
    text = "".join(
        f"Ep {i:03d} | task=sums | mean_ret=-{i}.5 | loss=0.25 | kl=0.{i}\n  -> saved\n" for i in range(3, 8)
    )
    log = read(tmp_path / "out.txt", text)
    assert log.columns["mean_ret"].steps.tolist() == [3, 4, 5, 6, 7]
    assert values(log, "mean_ret") == [-3.5, -4.5, -5.5, -6.5, -7.5]


def test_how_many_steps_each_row_had_is_not_the_step_of_the_row(tmp_path):
    rows = [{"epoch": i, "steps": 40, "reward": i / 8} for i in range(1, 5)]
    log = read(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert log.columns["reward"].steps.tolist() == [1, 2, 3, 4]
    log = read(tmp_path / "log.csv", "steps,reward,kl\n50,0.25,0.5\n50,0.5,0.25\n50,0.75,0.125\n")
    assert values(log, "kl") == [0.5, 0.25, 0.125]
    log = read(tmp_path / "true.csv", "steps,reward,kl\n50,0.25,0.5\n100,0.5,0.25\n150,0.75,0.125\n")
    assert log.columns["kl"].steps.tolist() == [50, 100, 150]


def test_a_column_that_is_null_throughout_was_never_measured(tmp_path):
    rows = [{"step": i, "reward": None, "loss": i / 4, "kl": None if i < 3 else 0.5} for i in range(1, 6)]
    log = read(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert log.columns.keys() == {"loss", "kl"}
    wrapped = "".join(
        json.dumps({"step": i, "data": {"actor/kl_loss": None, "critic/score/mean": 0.5}}) + "\n" for i in (1, 2)
    )
    log = read(tmp_path / "verl.jsonl", wrapped)
    assert np.isnan(values(log, "actor/kl_loss")).all()  # verl's way to write a NaN


def test_the_source_of_a_notebook_that_ran_longer_than_it_says_tells_no_settings(tmp_path):
    def notebook(planned):
        table = "<table><tr><th>Step</th><th>Training Loss</th><th>reward</th></tr>"
        table += "".join(f"<tr><td>{i}</td><td>0.{i}</td><td>1.{i}</td></tr>" for i in range(10, 61, 10)) + "</table>"
        source = f"args = GRPOConfig(learning_rate=2e-6, warmup_steps=30, max_steps={planned})"
        cell = {"cell_type": "code", "source": source, "outputs": [{"data": {"text/html": table}}]}
        return json.dumps({"cells": [cell]})

    assert read(tmp_path / "a.ipynb", notebook(60)).settings["warmup_steps"] == 30
    stale = read(tmp_path / "b.ipynb", notebook(20))
    assert "warmup_steps" not in stale.settings
    assert any("plans 20 steps, and 60 are here" in note for note in stale.notes)
