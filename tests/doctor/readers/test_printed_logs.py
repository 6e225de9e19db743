"""What trainers print: each test has a few lines of its own in the form that the trainer writes."""

import gzip
import io
import json
import math
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest

from steadyrl.core.errors import RunError
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.completions import PrintedTables
from steadyrl.doctor.readers.search import search
from steadyrl.doctor.series import Written


def log_of(tmp_path, text, name="log.txt"):
    path = tmp_path / name
    path.write_text(text)
    (log,) = search(path, holds_known_metric).logs
    return log


def points(log, name):
    column = log.columns[name]
    return dict(zip(column.steps.tolist(), column.values.tolist(), strict=True))


def test_deepspeed_chat_prints_a_step_over_two_lines(tmp_path):
    text = "".join(
        f"epoch: 0|step: {i}|ppo_ep: 1|act_loss: 0.{i}|cri_loss: 0.5|unsuper_loss: 0.0\n"
        f"average reward score: -0.{i}\n{'-' * 80}\n"
        for i in (7, 8, 9)
    )
    log = log_of(tmp_path, text)
    assert points(log, "act_loss") == {7: 0.7, 8: 0.8, 9: 0.9}
    assert points(log, "average reward score") == {7: -0.7, 8: -0.8, 9: -0.9}
    assert identify(log).trainer == "deepspeed-chat"


def test_mlx_prints_names_as_words(tmp_path):
    text = "".join(
        f"Iter {i}: Train loss 0.{i}, Total rewards mean 1.5, Grouped rewards std 0.250, KL -0.010, "
        f"len_reward mean 0.5, Learning Rate 1.000e-05, It/sec 0.1, Tokens/sec 46.0, Peak mem 3.5 GB\n"
        for i in (10, 20)
    )
    run = identify(log_of(tmp_path, f"Loading model: 3\n{text}"))
    assert run.trainer == "mlx-lm-lora"
    assert run.get("loss").steps.tolist() == [10, 20]
    assert run.get("loss").values.tolist() == [0.1, 0.2]
    assert run.get("reward_std_within").values.tolist() == [0.25, 0.25]
    assert run.get("kl_ref").values.tolist() == [-0.01, -0.01]
    assert run.get("learning_rate").values.tolist() == [1e-5, 1e-5]
    assert run.with_prefix("reward_part/")["len_reward"].values.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("banner", [True, False])
def test_nemo_rl_prints_a_block_for_each_step(tmp_path, banner):
    text = "".join(
        (f"========================= Step {i}/8 =========================\n" if banner else "")
        + f"📊 Training Results:\n  • Loss: -0.0{i}\n  • Generation KL Error: 0.0010\n  • Avg Reward: 0.{i}\n"
        "  • Mean Generation Length: 201.2\n\n⏱️  Timing:\n  • Total step time: 35.70s\n  • generation: 4.95s (13.9%)\n"
        for i in (1, 2)
    )
    run = identify(log_of(tmp_path, text))
    assert run.trainer == "nemo-rl"
    assert run.get("loss").steps.tolist() == [1, 2]
    assert run.get("reward").values.tolist() == [0.1, 0.2]
    assert run.get("kl_sampler").values.tolist() == [0.001, 0.001]
    assert run.get("time_step").values.tolist() == [35.7, 35.7]


def test_assignments_behind_a_step_are_read_and_other_text_is_not(tmp_path):
    text = "[1] Prompt length: 223 tokens\n[EVAL] Accuracy: 60% (331s)\n" + "".join(
        f"[step {i:04d}] SKIP rewards=[1,1] rollout=97s elapsed={i}s\n"
        if i % 2
        else f"[step {i:04d}] rewards=[0,1] loss=-2.5 kl=-0.25 |scale|=0.02 lr=0.01 update=142.5s\n  answer: x={i}\n"
        for i in range(1, 9)
    )
    log = log_of(tmp_path, text)
    assert points(log, "loss") == dict.fromkeys((2, 4, 6, 8), -2.5)
    assert points(log, "kl") == dict.fromkeys((2, 4, 6, 8), -0.25)
    assert points(log, "rewards/std") == {i: 0.0 if i % 2 else 0.5 for i in range(1, 9)}
    assert points(log, "rewards/mean") == {i: 1.0 if i % 2 else 0.5 for i in range(1, 9)}
    assert "Accuracy" not in log.columns and "Prompt length" not in log.columns


def test_words_and_numbers_in_turn_behind_a_step_of_so_many_are_metrics(tmp_path):
    rows = [(n, 1e-6 * n, 0.8 + n / 100) for n in (7, 8, 9)]
    text = "".join(f"pass 1/4 step {n}/64 lr {lr:.3e} reward {reward:.3f}\nSaved in 3 s\n" for n, lr, reward in rows)
    log = log_of(tmp_path, text)
    assert points(log, "reward") == {7: 0.87, 8: 0.88, 9: 0.89}
    assert points(log, "lr") == pytest.approx({7: 7e-6, 8: 8e-6, 9: 9e-6})


def test_a_table_by_rollouts_and_one_with_chinese_headings_are_read(tmp_path):
    table = "| rollout | raw_reward | kl |\n|--:|--:|--:|\n| 0 | 4.38% | +0.01 |\n| 1 | 4.84% | +0.02 |\n"
    log = log_of(tmp_path, table, "run.md")
    assert points(log, "raw_reward") == pytest.approx({0: 0.0438, 1: 0.0484})
    log = log_of(tmp_path, "| step | 奖励 | 截断比 | KL |\n|---|---|---|---|\n| 5 | 0.5 | 1.00 | 0.1 |\n", "chinese.md")
    run = identify(log)
    assert (run.needed("reward").values.item(), run.needed("truncated").values.item()) == (0.5, 1.0)


def test_a_dict_that_lost_its_braces_is_read(tmp_path):
    log = log_of(tmp_path, "'loss': 0.5, 'reward': nan, 'kl': 1e-3\n'loss': 0.25, 'reward': 2.0, 'kl': 0.5\n")
    assert points(log, "loss") == {1: 0.5, 2: 0.25}
    assert math.isnan(points(log, "reward")[1])


BAR = "\r {share:3d}%|##  | {at}/{total} [00:10<01:00,  2.5s/it]"


def rows(n):
    return [f"{{'loss': {i / 8}, 'reward': 0.5, 'epoch': {i / 100}}}" for i in range(1, n + 1)]


def bar(at, total=40):
    return BAR.format(share=100 * at // total, at=at, total=total)


def test_the_bar_before_a_row_says_its_step(tmp_path):
    lines = ["Map: 100%|##| 7473/7473 [00:01<00:00]", "Loading shards: 50%|##| 1/2 [00:01<00:00]"]
    for i, row in enumerate(rows(4), 1):
        lines += [bar(10 * i - 1), bar(10 * i), row, "  5%|# | 2/50 [00:01<00:10]", bar(10 * i)]
    log = log_of(tmp_path, "\n".join(lines))
    assert list(points(log, "loss")) == [10, 20, 30, 40]
    assert log.notes == ()
    assert identify(log).averaged_over == 1  # the names are of no trainer whose rows are means


def test_one_bar_shows_how_far_rows_are_apart(tmp_path):
    first, *rest = rows(4)
    assert list(points(log_of(tmp_path, "\n".join([first, bar(10), *rest])), "loss")) == [10, 20, 30, 40]


def test_of_a_complete_run_the_planned_steps_are_shared_out(tmp_path):
    end = "{'train_runtime': 100.0, 'train_loss': 9.0, 'reward': 9.0, 'epoch': 1.0}"
    bars = "\n".join(bar(at, 42) for at in range(1, 43))
    log = log_of(tmp_path, "\n".join([bars, *rows(4), end]))
    assert points(log, "loss") == {10: 1 / 8, 20: 2 / 8, 30: 3 / 8, 40: 4 / 8}
    assert 9.0 not in points(log, "reward").values()
    # Where the end is missing, the run may have had any length.
    assert list(points(log_of(tmp_path, "\n".join([bars, *rows(4)])), "loss")) == [1, 2, 3, 4]


def test_a_dict_of_token_ids_is_no_row(tmp_path):
    text = "tokens were aligned: {'eos_token_id': 7, 'pad_token_id': None}.\n{'num_cpus': 8}\n" + "\n".join(rows(2))
    log = log_of(tmp_path, text)
    assert points(log, "loss") == {1: 1 / 8, 2: 2 / 8}
    assert set(log.columns) == {"loss", "reward", "epoch"}
    assert log.settings["eos_token_id"] == 7 and log.settings["pad_token_id"] is None


def test_json_among_other_text_is_read(tmp_path):
    text = "".join(f'2026-01-01 INFO trainer: {{"step": {i}, "loss": {i}.5, "reward": null}}\n' for i in (3, 6))
    assert points(log_of(tmp_path, text), "loss") == {3: 3.5, 6: 6.5}


@pytest.mark.parametrize(
    "row",
    [
        "'loss': {loss}, 'done': False",  # no JSON, even with other quotes
        "'loss': {loss}, 'note': \"it's so\"",
        "'loss': {loss}, 'note': 'a \"word\"'",
        "'loss': {loss}, 'grad_norm': nan",
        "'loss': {loss}, 'shape': (2, 3)",
        '"loss": {loss}, "note": "it\'s so"',
        "'loss': {loss}",
    ],
)
def test_a_printed_dict_is_read_with_either_quotes(tmp_path, row):
    text = "".join(
        f"{{'step': {i}, {row.format(loss=i / 4)}}}\n".replace("'step'", row[0] + "step" + row[0]) for i in (1, 2)
    )
    log = log_of(tmp_path, text)
    assert points(log, "loss") == {1: 0.25, 2: 0.5}
    assert "nan" not in row or all(map(math.isnan, points(log, "grad_norm").values()))


VERL_CONFIG = """\
\x1b[36m(TaskRunner pid=46086)\x1b[0m {'actor_rollout_ref': {'actor': {'_target_': 'verl.FSDPActorConfig',
\x1b[36m(TaskRunner pid=46086)\x1b[0m                                  'checkpoint': {'load_contents': ['model',
\x1b[36m(TaskRunner pid=46086)\x1b[0m                                                                   'extra']},
\x1b[36m(TaskRunner pid=46086)\x1b[0m                                  'grad_clip': 1.0,
\x1b[36m(TaskRunner pid=46086)\x1b[0m                                  'optim': {'betas': [0.9, 0.999],
\x1b[36m(TaskRunner pid=46086)\x1b[0m                                            'lr': 1e-05},
\x1b[36m(TaskRunner pid=46086)\x1b[0m                                  'use_kl_loss': False},
\x1b[36m(TaskRunner pid=46086)\x1b[0m                        'rollout': {'n': 1, 'temperature': 0.9,
{other}\x1b[36m(TaskRunner pid=46086)\x1b[0m                                    'top_p': 1}},
\x1b[36m(TaskRunner pid=46086)\x1b[0m  'algorithm': {'adv_estimator': 'grpo',
\x1b[36m(TaskRunner pid=46086)\x1b[0m                'use_kl_in_reward': False},
\x1b[36m(TaskRunner pid=46086)\x1b[0m  'data': {'max_response_length': 128, 'train_batch_size': 16}}
\x1b[36m(TaskRunner pid=46086)\x1b[0m step:1 - actor/pg_loss:0.5 - critic/score/mean:0.25
"""


@pytest.mark.parametrize("other", ["", "some other line\n"])
def test_verls_printed_config_is_its_settings(tmp_path, other):
    run = identify(log_of(tmp_path, VERL_CONFIG.replace("{other}", other)))
    assert run.algorithm == "grpo"
    expected = {
        "samples_per_prompt": 1,
        "temperature": 0.9,
        "top_p": 1,
        "learning_rate": 1e-05,
        "max_grad_norm": 1.0,
        "max_new_tokens": 128,
        "batch_size": 16,
    }
    assert {name: run.settings.get(name) for name in expected} == expected
    assert (run.traits.critic, run.traits.grouped, run.traits.kl_place) == (False, True, "none")


def test_a_setting_whose_parent_was_cut_out_is_left_out(tmp_path):
    lines = [line for line in VERL_CONFIG.replace("{other}", "").splitlines(True) if "'rollout'" not in line]
    run = identify(log_of(tmp_path, "".join(lines)))
    assert (run.algorithm, run.settings["learning_rate"]) == ("grpo", 1e-05)
    assert not {"top_p", "samples_per_prompt"} & set(run.settings)


@pytest.mark.parametrize(
    "printed",
    [
        "GRPOConfig(\nbeta=0.04,\nlearning_rate=1e-06,\nnum_generations=8,\nlogging_steps=5,\n)",
        "Config: GRPOConfig(beta=0.04, learning_rate=1e-06, num_generations=8, logging_steps=5)",
        "GRPO: num_generations=8, beta=0.04, learning_rate=1e-06, logging_steps=5",
        "python train.py --beta 0.04 --learning-rate=1e-06 --num_generations 8 --logging_steps 5",
    ],
)
def test_arguments_that_were_printed_are_settings(tmp_path, printed):
    metrics = "{'loss': 0.5, 'reward': 1.0, 'reward_std': 0.5, 'completions/mean_length': 9.0}\n"
    run = identify(log_of(tmp_path, f"{printed}\n{metrics * 3}"))
    found = {name: run.settings.get(name) for name in ("kl_coef", "learning_rate", "samples_per_prompt")}
    assert found == {"kl_coef": 0.04, "learning_rate": 1e-06, "samples_per_prompt": 8}
    assert (run.averaged_over, run.keys["samples_per_prompt"]) == (5, "num_generations")


def test_overrides_on_a_command_line_are_settings(tmp_path):
    text = (
        "Running with ['actor_rollout_ref.rollout.n=4', '+data.max_response_length=64']\nstep:1 - actor/pg_loss:1.0\n"
    )
    run = identify(log_of(tmp_path, text))
    assert (run.settings["samples_per_prompt"], run.settings["max_new_tokens"]) == (4, 64)


MARKDOWN = (
    "See:\n\nStep | Training Loss | reward | kl\n-- | -- | -- | --\n10 | 0.5 | 1.5 | nan\n20 | 0.4 | No Log | 2.0\n"
)
BOXED = "| Step | Training Loss | reward | kl |\n|---|---|:--|---|\n| 10 | 0.5 | 1.5 | nan |\n| 20 | 0.4 |  | 2.0 |\n"
SPACED = "Step\tTraining Loss\treward\tkl\n10\t0.5\t1.5\tnan\n20\t0.4\tNo Log\t2.0\n"
WIDE = "  Step   Training Loss   reward   kl\n  10   0.5   1.5   nan\n  20   0.4   No Log   2.0\nthe end\n"
SINGLE = "Step Training Loss reward kl\n10 0.5 1.5 nan\n20 0.4 - 2.0\n"
PANDAS = "   Step   Training Loss   reward   kl\n0   10   0.5   1.5   nan\n1   20   0.4   None   2.0\n"
HTML = (
    "<p>Progress</p><table border=1>\n<thead><tr style='x'><th>Step</th><th>Training Loss</th>\n<th>reward</th>"
    "<th>kl</th></tr></thead>\n<tr><td>10</td><td>0.5</td><td>1.5</td><td>nan</td></tr>"
    "<tr><td>20</td><td>0.4</td><td>No Log</td><td>2.0</td></tr></table>\n"
)


@pytest.mark.parametrize("text", [MARKDOWN, BOXED, SPACED, WIDE, SINGLE, PANDAS, HTML])
def test_tables_from_notebooks_are_read(tmp_path, text):
    run = identify(log_of(tmp_path, text))
    loss, kl = run.get("loss"), run.series["kl_ref"][0]
    assert (loss.steps.tolist(), loss.values.tolist()) == ([10, 20], [0.5, 0.4])
    assert run.get("reward").steps.tolist()[0] == 10
    assert math.isnan(kl.values[0]) and kl.values[1] == 2.0


def test_a_table_of_something_else_is_no_log(tmp_path):
    (tmp_path / "x.md").write_text("name | age | town\n-- | -- | --\nann | 30 | Ulm\nbob | 40 | Jena\n")
    with pytest.raises(RunError, match="is no log"):
        search(tmp_path / "x.md", holds_known_metric)


def test_rows_deep_in_a_document_are_read_and_the_rest_are_settings(tmp_path):
    history = [{"step": i, "loss": i / 2, "reward": 1.0} for i in (1, 2)]
    document = {"lr": 3e-5, "model": {"name": "x"}, "trace": [0.1, 0.2, 0.3], "step_log": history}
    log = log_of(tmp_path, json.dumps(document, indent=1), "run.json")
    assert points(log, "loss") == {1: 0.5, 2: 1.0}
    assert log.settings == {"lr": 3e-5, "model.name": "x"}


def test_several_runs_of_a_document_are_several(tmp_path):
    document = {
        "seed": 1,
        "runs": {name: {"lr": lr, "log": [{"step": 1, "reward": lr}]} for name, lr in {"a": 0.1, "b": 0.2}.items()},
    }
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(document))
    found = search(path, holds_known_metric).logs
    assert [log.path for log in found] == [f"{path}#runs.a", f"{path}#runs.b"]
    assert [points(log, "reward") for log in found] == [{1: 0.1}, {1: 0.2}]
    assert [log.settings["lr"] for log in found] == [0.1, 0.2]


def test_columns_as_lists_are_read(tmp_path):
    document = {"step": [5, 10], "loss": [0.5, None], "avg_exact_kl": [1.0, "NaN"], "dev_acc": {"10": 0.75}, "odd": [1]}
    log = log_of(tmp_path, json.dumps(document, indent=1), "metrics.json")
    assert points(log, "loss")[5] == 0.5 and math.isnan(points(log, "loss")[10])
    assert points(log, "dev_acc") == {10: 0.75}
    assert "odd" not in log.columns
    assert identify(log).series["kl_ref"][0].estimator == "exact"


def test_of_lists_of_two_lengths_those_that_one_step_tore_are_read_and_shorter_ones_named(tmp_path):
    document = {
        "step": [3, 6, 9, 12, 15, 18],
        "loss": [2.0] * 6,
        "reward": [0.5] * 5,
        "eval": [0.25] * 3,
        "betas": [0.9, 1],
    }
    for key in ("step", None):
        lists = {name: values for name, values in document.items() if name != "step" or key}
        log = log_of(tmp_path, json.dumps(lists), "metrics.json")
        assert list(points(log, "reward")) == ([3, 6, 9, 12, 15] if key else [1, 2, 3, 4, 5])
        assert "eval" not in log.columns and "betas" not in log.columns
        assert log.notes[0] == "lists left out, for they are shorter than others, and of unknown steps: eval"


def test_columns_by_the_number_of_the_row_are_read(tmp_path):
    """As ``DataFrame.to_json`` writes them."""
    columns = {"global_step": [8, 16, 24], "reward": [0.5, 0.75, None], "note": ["a", "b", "c"]}
    document = {name: {str(i): value for i, value in enumerate(values)} for name, values in columns.items()}
    log = log_of(tmp_path, json.dumps(document), "frame.json")
    assert list(points(log, "reward")) == [8, 16, 24] and points(log, "reward")[16] == 0.75
    assert list(points(log_of(tmp_path, json.dumps({"kl": {"2": 0.5, "4": 0.75}}), "kl.json"), "kl")) == [2, 4]


@pytest.mark.parametrize("document", [{"reward": [[0.5, 1], [0.75, 2]]}, [[0.5], [0.75]], {"log_history": []}])
def test_a_document_without_rows_says_what_rows_look_like(tmp_path, document):
    with pytest.raises(RunError, match=r"is a log without a number \(in rows, as \[.*, or in columns, as \{"):
        log_of(tmp_path, json.dumps(document), "pairs.json")


def test_where_no_row_has_a_step_that_is_a_number_the_error_says_so(tmp_path):
    text = "".join(json.dumps({"step": 10**19 + i, "reward": 0.5}) + "\n" for i in range(7))
    with pytest.raises(RunError, match=r"without a number \(rows left out, .*'step': 7\)"):
        log_of(tmp_path, text, "far.jsonl")


def test_a_date_is_no_step(tmp_path):
    dated = "".join(json.dumps({"update": f"2025-03-{i:02d} 08:30", "reward": i / 9}) + "\n" for i in range(1, 9))
    assert list(points(log_of(tmp_path, dated, "dated.jsonl"), "reward")) == [*range(1, 9)]


def test_a_table_with_a_value_in_each_row_is_one_run_in_any_order(tmp_path):
    """As ``DataFrame.melt`` writes it, metric by metric and with an index; MLflow's has the step before."""
    cells = [(metric, 4 * i, (i + place) / 8) for place, metric in enumerate(("kl", "reward")) for i in range(6)]
    for order in (cells, sorted(cells, key=lambda cell: cell[1])):
        table = "".join(f"{i},{step},{metric},{value}\n" for i, (metric, step, value) in enumerate(order))
        log = log_of(tmp_path, f",iteration,metric,value\n{table}", "long.csv")
        assert points(log, "kl") == {4 * i: i / 8 for i in range(6)}
        assert points(log, "reward") == {4 * i: (i + 1) / 8 for i in range(6)}


def test_a_table_with_one_name_twice_says_which_column_counts(tmp_path):
    log = log_of(tmp_path, "step,kl,kl,reward\n1,0.5,0.25,1\n2,0.5,0.125,1\n", "twice.csv")
    assert points(log, "kl") == {1: 0.25, 2: 0.125}
    assert "of columns with one name the last one counts: kl" in log.notes


def test_a_summary_of_the_whole_run_is_no_row(tmp_path):
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 2, "train_runtime": 9.0, "reward": 5.0}]
    for name, text in {
        "a.jsonl": "\n".join(map(json.dumps, rows)),
        "b.json": json.dumps({"log_history": rows}),
    }.items():
        log = log_of(tmp_path, text, name)
        assert set(log.columns) == {"loss"} and points(log, "loss") == {1: 1.0, 2: 2.0}


@pytest.mark.parametrize(
    ("key", "values", "steps"),
    [
        ("current_steps", [10, 20, 30], [10, 20, 30]),
        ("global_step/max_steps", ["1/50", "2/50", "3/50"], [1, 2, 3]),
        ("epoch", [1, 2, 3], [1, 2, 3]),
        ("epoch", [0, 0, 0], [1, 2, 3]),  # several rows of one epoch
    ],
)
def test_a_step_has_many_names(tmp_path, key, values, steps):
    text = "".join(json.dumps({key: value, "loss": 0.5 * i}) + "\n" for i, value in enumerate(values))
    assert list(points(log_of(tmp_path, text, "log.jsonl"), "loss")) == steps


def test_several_rows_of_one_step_are_averaged_and_a_later_attempt_replaces_them(tmp_path):
    rows = [(1, 0.0), (1, 1.0), (2, 3.0), (2, 5.0), (3, 1.0), (2, 7.0), (2, 9.0), (3, 4.0)]
    log = log_of(tmp_path, "".join(json.dumps({"step": s, "reward": x}) + "\n" for s, x in rows))
    assert points(log, "reward") == {1: 0.5, 2: 8.0, 3: 4.0}
    assert any("written again for the same step" in note and note.endswith(": 3") for note in log.notes)
    assert "values that are means over several rows of the same step: 2" in log.notes


def test_a_gzipped_log_is_read_and_never_unpacked_beyond_a_limit(tmp_path, monkeypatch):
    text = "".join(f'{{"step": {i}, "reward": {i}.5}}\n' for i in range(5000)).encode()
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(text))
    (log,) = search(path, holds_known_metric).logs
    assert points(log, "reward") == {i: i + 0.5 for i in range(5000)}
    path.write_bytes(gzip.compress(text)[:-30])
    (log,) = search(path, holds_known_metric).logs
    assert "is torn or damaged after" in log.notes[0]
    monkeypatch.setattr("steadyrl.doctor.readers.lines.MAX_UNPACKED", 1 << 20)
    path.write_bytes(gzip.compress(b'{"step": 1, "reward": 1}\n' + b'{"x": 1}\n' * (1 << 20)))
    (log,) = search(path, holds_known_metric).logs
    assert "unpacks to more than 1 MiB; the rest is left out" in log.notes[0]


@pytest.mark.parametrize(
    ("name", "first", "row"),
    [
        ("log.jsonl", "", '{{"step": {0}, "reward": 1}}\n'),
        ("log.csv", "step,reward\n", "{0},1\n"),
        ("log.md", "| step | reward |\n|--|--|\n", "| {0} | 1 |\n"),
        ("log.log", "", "{{'reward': 1.0, 'loss': {0}}}\n"),
        ("log.csv", "run,step,reward\n", "run,{0},1\n"),
    ],
)
def test_a_log_of_more_rows_than_any_run_has_is_refused(tmp_path, monkeypatch, name, first, row):
    path = tmp_path / name
    path.write_text(first + "".join(row.format(i) for i in range(6000)))
    assert len(search(path, holds_known_metric).logs) == 1
    monkeypatch.setattr("steadyrl.doctor.readers.rows.MAX_ROWS", 5000)
    with pytest.raises(RunError, match="more than 5,000 rows"):
        search(path, holds_known_metric)


def test_a_table_with_one_value_in_each_row_may_have_many(tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    path.write_text("run_id,key,value,step\n" + "".join(f"a,reward,{i},{i}\n" for i in range(6000)))
    monkeypatch.setattr("steadyrl.doctor.readers.rows.MAX_ROWS", 5000)
    (log,) = search(path, holds_known_metric).logs
    assert len(points(log, "reward")) == 6000
    monkeypatch.setattr("steadyrl.doctor.readers.rows.MAX_POINTS", 5000)
    with pytest.raises(RunError, match="more than 5,000 rows"):
        search(path, holds_known_metric)


@pytest.mark.parametrize(
    ("name", "first", "row"),
    [
        ("log.jsonl", "", '{{"run": "r{0}", "step": 1, "reward": 1}}\n'),
        ("log.csv", "run,step,reward\n", "r{0},1,1\n"),
    ],
)
def test_a_log_that_names_more_runs_than_are_read_is_refused(tmp_path, name, first, row):
    path = tmp_path / name
    path.write_text(first + "".join(row.format(i) for i in range(1001)))
    with pytest.raises(RunError, match="more than 1,000 runs"):
        search(path, holds_known_metric)


def test_a_database_that_names_more_runs_than_are_read_is_refused(tmp_path):
    path = tmp_path / "trackio.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE metrics (run_name, step, metrics, timestamp)")
        rows = ((f"r{i}", 1, '{"reward": 1}', i) for i in range(1001))
        connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    with pytest.raises(RunError, match="more than 1,000 runs"):
        search(path, holds_known_metric)


def test_a_document_of_too_many_lists_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr("steadyrl.doctor.readers.document.MAX_INNER", 5000)
    path = tmp_path / "log.json"
    path.write_text('{"loss": [' + "[]," * 5001 + "1]}")
    with pytest.raises(RunError, match="more than 5,000 lists and objects"):
        search(path, holds_known_metric)


def test_pasted_rows_are_read_from_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{'loss': 1.0, 'reward': 0.5}\n")))
    (log,) = search("-", holds_known_metric).logs
    assert (log.path, points(log, "reward")) == ("-", {1: 0.5})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    with pytest.raises(RunError, match="'-' is no log"):
        search("-", holds_known_metric)


RICH = """\
╭──────────────────────── Step 42 ────────────────────────╮
│ ┏━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━┳━━━━━━┳━━━━━━━━━━━┓ │
│ ┃ Prompt     ┃ Completion   ┃ Fact ┃ Form ┃ Advantage ┃ │
│ ┡━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━╇━━━━━━╇━━━━━━━━━━━┩ │
│ │ The sky is │  blue,       │ 0.25 │ 0.50 │      0.99 │ │
│ │            │  mostly      │      │      │           │ │
│ ├────────────┼──────────────┼──────┼──────┼───────────┤ │
│ │ The sun is │  in the sky. │ 0.50 │ 0.00 │     -0.78 │ │
│ └────────────┴──────────────┴──────┴──────┴───────────┘ │
╰─────────────────────────────────────────────────────────╯
"""


def test_completions_that_trl_prints_are_read(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"{RICH}{{'loss': 0.5, 'reward': 0.6}}\n{RICH.replace('Step 42', 'Step 43')}")
    first, second = Written(42, "The sky is", "blue,\nmostly", 0.75), Written(42, "The sun is", "in the sky.", 0.5)
    (log,) = search(path, holds_known_metric).logs
    assert list(log.completions)[:2] == [first, second]
    assert [written.step for written in PrintedTables(path)] == [42, 42, 43, 43]
    assert list(identify(log).completions) == list(log.completions)


def test_completions_beside_metrics_are_read(tmp_path):
    row = {"step": 3, "reward": 0.5, "prompt": "p", "completion": "c"}
    log = log_of(tmp_path, json.dumps(row) + "\n", "log.jsonl")
    assert list(log.completions) == [Written(3, "p", "c", 0.5)]


def test_the_completions_that_verl_dumps_are_read(tmp_path):
    (tmp_path / "rollout_data").mkdir()
    for step in (2, 10):
        record = {"input": "p", "output": f"c{step}", "score": 1.0, "step": step}
        (tmp_path / "rollout_data" / f"{step}.jsonl").write_text(json.dumps(record) + "\n")
    log = log_of(tmp_path, "step:1 - actor/pg_loss:0.5\n")
    assert list(log.completions) == [Written(2, "p", "c2", 1.0), Written(10, "p", "c10", 1.0)]
    np.testing.assert_array_equal([w.step for w in log.completions], [2, 10])


def test_rows_that_another_stream_writes_in_bursts_lie_evenly_between_the_bars(tmp_path):
    """A run of 90 planned steps that stopped at 63: every 3rd step is a row, and 4 rows are written at once."""
    lines, written = [], 0
    for at in range(1, 64):
        lines.append(bar(at, 90))
        if at % 12 == 1 and at > 1:  # the burst that ended with the row of the step before
            lines += rows(20)[written : written + 4]
            written += 4
    log = log_of(tmp_path, "\n".join(lines))
    assert list(points(log, "loss")) == [3 * i for i in range(1, 21)]


def test_settings_between_spaces_are_read_where_one_is_a_word_and_metrics_are_none(tmp_path):
    lines = ["[run7] 812 problems | model=acme/Tiny-1B seed=5 rank=16 lr=4e-05", "[run7] connecting"]
    lines += [f"[run7] {i}/3 | loss={i / 4} reward={i / 8} acc={i / 8}" for i in (1, 2, 3)]
    log = log_of(tmp_path, "\n".join(lines))
    assert log.settings == {"model": "acme/Tiny-1B", "seed": 5, "rank": 16, "lr": 4e-05}
    assert list(points(log, "reward").values()) == [0.125, 0.25, 0.375]


def test_a_number_and_a_colon_before_a_metric_are_the_step(tmp_path):
    log = log_of(tmp_path, "".join(f"{5 * i}: reward: {0.125 * i}\n" for i in range(1, 7)), "loop.log")
    assert log.columns["reward"].steps.tolist() == [5, 10, 15, 20, 25, 30]
    assert log.columns["reward"].values.tolist() == [0.125 * i for i in range(1, 7)]


def test_warnings_of_trls_ppo_are_numbers_where_nothing_else_is_logged(tmp_path):
    below = "ppo_trainer.py:1190: UserWarning: KL divergence is starting to become negative: {:.2f} - this might be a"
    ratio = "UserWarning: The average ratio of batch ({:.2f}) exceeds threshold 10.00. Skipping batch."
    levels = [-3.5 - n for n in range(30)]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*(below.format(kl) for kl in levels), ratio.format(41.25)]) + "\n", encoding="utf-8")
    (diagnosis,) = diagnose(path)
    assert diagnosis.run.trainer == "trl-ppo-old" and diagnosis.harmful[0] == "negative_kl"
    assert diagnosis.run.get("kl_ref").values.tolist() == levels and diagnosis.run.get("ratio_mean").values[-1] == 41.25
    assert any("warnings alone" in note for note in diagnosis.run.notes)


def test_rows_of_metrics_count_more_than_warnings_between_them(tmp_path):
    rows = [f"{{'loss': 0.5, 'reward': {0.1 + 0.01 * n:.2f}, 'step': {n}}}" for n in range(30)]
    warned = ["UserWarning: KL divergence is starting to become negative: -2.00 - this might be a precursor"] * 40
    path = tmp_path / "train.log"
    path.write_text("\n".join([*warned, *rows]) + "\n", encoding="utf-8")
    (diagnosis,) = diagnose(path)
    assert len(diagnosis.run.get("reward")) == 30 and diagnosis.run.get("kl_ref") is None


def test_runs_of_trl_in_one_notebook_are_parted_where_the_counted_tokens_begin_again(tmp_path):
    def rows(first, length, n):
        tokens = np.cumsum(np.full(n, 4 * length)) + first
        return [f"{{'loss': 0.1, 'reward': {0.2 + 0.01 * (i % 3)}, 'num_tokens': {x}.0}}" for i, x in enumerate(tokens)]

    path = tmp_path / "cells.log"
    between = ["100%|##########| 9/9 [00:10<00:00]", "saving"]
    path.write_text("\n".join([*rows(90, 512, 9), *between, *rows(700, 256, 12)]) + "\n")
    first, second = search(path, lambda log: True).logs
    assert [len(log.columns["reward"].steps) for log in (first, second)] == [9, 12]
    assert second.columns["num_tokens"].values[0] == 1724.0


@pytest.mark.parametrize("separator", [", ", " , ", "; "])
def test_blanks_around_the_cells_of_a_csv_are_of_no_name(tmp_path, separator):
    rows = [["update", "mean_reward", "policy_entropy"], ["4", "-0.25", "1.5"], ["8", "0.75", "1.25"]]
    log = log_of(tmp_path, "".join(f"{separator.join(row)}\n" for row in rows), "log.csv")
    assert points(log, "mean_reward") == {4: -0.25, 8: 0.75}
    assert points(log, "policy_entropy") == {4: 1.5, 8: 1.25}


@pytest.mark.parametrize("form", ["[{step}/96] {name}={value}\n", "episode={step} {name}={value}\n"])
def test_one_metric_beside_a_count_is_a_row(tmp_path, form):
    text = "".join(form.format(step=step, name="score", value=step / 8) for step in (3, 6, 9))
    assert points(log_of(tmp_path, text), "score") == {3: 0.375, 6: 0.75, 9: 1.125}


def test_a_step_before_a_dict_counts_more_than_the_epoch_in_it(tmp_path):
    text = "".join(f"12:00:0{i} INFO update {40 * i}: {{'rewards/mean': {i}.5, 'epoch': 0.0{i}}}\n" for i in (1, 2, 3))
    assert points(log_of(tmp_path, text), "rewards/mean") == {40: 1.5, 80: 2.5, 120: 3.5}


@pytest.mark.parametrize(
    ("names", "trainer"),
    [
        (("reward_std", "completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std"), "trl-grpo"),
        (("reward_std", "completions/mean_length", "frac_reward_zero_std", "actor/pg_clipfrac"), "verl"),
        (("actor/kl_loss", "somebody/speed"), "verl"),
        (("val/somebody/score", "somebody/speed"), "verl"),
        (("loss", "somebody/speed"), "unknown"),
    ],
)
def test_a_format_is_of_its_trainer_unless_all_names_are_of_another(tmp_path, names, trainer):
    rows = (" - ".join((f"step:{i}", f"reward:0.{i}", *(f"{name}:0.{i}" for name in names))) for i in (1, 2, 3))
    text = "".join(f"{row}\n" for row in rows)
    assert identify(log_of(tmp_path, text)).trainer == trainer
