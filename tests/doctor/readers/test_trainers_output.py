"""What trainers print and trackers export, in the forms of their own code: each step, name and value is found."""

import json

import pytest

from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.search import search


def runs_of(tmp_path, text, name="log.txt"):
    path = tmp_path / name
    path.write_text(text)
    return [identify(log) for log in search(path, holds_known_metric).logs]


def points(run, quantity):
    series = run.get(quantity)
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_prime_rl_prints_a_step_in_two_lines_behind_time_and_level(tmp_path):
    text = "".join(
        f"\x1b[32m10:00:0{i}\x1b[0m | \x1b[32mSUCCESS\x1b[0m | Step {i} | Time: 12.30s | Reward: 0.{i} | "
        "Throughput: 5000.1 tokens/s | Seq. Length: 310.5 tokens/sample | Async Level: 1 | Max. Off-Policy Level: 2\n"
        f"10:00:0{i} | SUCCESS | Step {i} | Time: 11.0s | Loss: 0.0{i} | Entropy: 0.5 | Mismatch KL: 0.0004 | "
        "Grad. Norm: 0.25 | LR: 1.00e-06 | Throughput: 5000 tokens/s | MFU: 20.1% | Peak Mem.: 30.1 GiB\n"
        for i in (3, 4)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.trainer == "prime-rl"
    assert points(run, "reward") == {3: 0.3, 4: 0.4}
    assert points(run, "loss") == {3: 0.03, 4: 0.04}
    assert (points(run, "grad_norm"), points(run, "kl_sampler")) == ({3: 0.25, 4: 0.25}, {3: 0.0004, 4: 0.0004})


@pytest.mark.parametrize(
    ("rollout", "step"),
    [
        ("(Train pid=9) data.py:170 - rollout {i}: ", "(Train pid=9) model.py:300 - step {i}: "),  # slime
        ("INFO Global step {i}: ", "INFO Global step {i}: "),  # OpenRLHF
    ],
)
def test_the_step_before_a_dict_is_its_step(tmp_path, rollout, step):
    text = "".join(
        f"{rollout.format(i=i)}{{'rollout/raw_reward': 0.{i}}}\n{step.format(i=i)}{{'train/pg_loss': 0.0{i}}}\n"
        for i in (5, 6)
    )
    (run,) = runs_of(tmp_path, text)
    assert points(run, "reward") == {5: 0.5, 6: 0.6}
    assert points(run, "loss_policy") == {5: 0.05, 6: 0.06}


def test_areal_prints_names_and_values_in_turn_in_a_grid(tmp_path):
    text = "".join(
        f"20261120-10:00:00.1 StatsLogger INFO: Epoch 1/10 Step {i}/9 Train step {i + 9}/90 done.\n"
        "20261120-10:00:00.2 StatsLogger INFO: Stats (1/1):\n╒═══╤═══╤═══╤═══╕\n"
        f"│ ppo_actor/task_reward/avg │ {i}.0000e-01 │ ppo_actor/update/grad_norm │ 2.5000e-01 │\n"
        "├───┼───┼───┼───┤\n"
        "│ ppo_actor/update/lr       │ 1.0000e-06 │                            │            │\n╘═══╧═══╧═══╧═══╛\n"
        for i in (1, 2)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.trainer == "areal"
    assert points(run, "reward") == {10: 0.1, 11: 0.2}
    assert points(run, "grad_norm") == {10: 0.25, 11: 0.25}
    assert points(run, "learning_rate") == {10: 1e-6, 11: 1e-6}


def test_deepspeed_chat_names_the_step_behind_the_epoch(tmp_path):
    text = "".join(
        f"Epoch: 0 | Step: {i}/120 | PPO Epoch: 1 | Actor Loss: 0.{i} | Critic Loss: 0.5 | Unsupervised Loss: 0.0\n"
        "End-to-End => Latency: 5.3s, TFLOPs: 3.2, Samples/sec: 3.0, Batch Size: 16, Total Seq. Length: 512\n"
        f"Average reward score: -0.{i}\n{'-' * 80}\n"
        for i in (7, 8)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.trainer == "deepspeed-chat"
    assert points(run, "loss_policy") == {7: 0.7, 8: 0.8}
    assert points(run, "reward") == {7: -0.7, 8: -0.8}


def test_a_row_of_mlx_averages_the_steps_since_the_last(tmp_path):
    text = "".join(
        f"Iter {i}: Train loss 0.5, Total rewards mean 1.5, Grouped rewards mean 1.5, Tokens/sec 46.0\n"
        for i in (10, 20, 30)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.averaged_over == 10


def test_charts_that_w_and_b_exports_hold_a_run_for_each_name_before_the_metric(tmp_path):
    names = [
        f"{run} - train/{metric}" for metric in ("reward", "reward_std", "completions/mean_length") for run in "ab"
    ]
    header = ",".join(['"Step"', *(f'"{name}{end}"' for name in names for end in ("", "__MIN", "__MAX"))])
    rows = [
        ",".join(map(str, [step, *(v for name in names for v in ([step * (2 if name < "b" else 3)] * 3))]))
        for step in (1, 2, 3)
    ]
    first, second = runs_of(tmp_path, "\n".join([header, *rows]), "export.csv")
    assert (first.path.partition("#")[2], second.path.partition("#")[2]) == ("a", "b")
    assert points(first, "reward") == {1: 2.0, 2: 4.0, 3: 6.0}
    assert points(second, "reward") == {1: 3.0, 2: 6.0, 3: 9.0}
    assert (first.trainer, first.unknown) == ("trl-grpo", ())


@pytest.mark.parametrize(
    ("run", "key"), [("run_id", "key"), ("Run", "metric"), ("run", "tag"), (None, "name")], ids=lambda name: str(name)
)
def test_a_table_with_a_metric_in_each_row_is_read(tmp_path, run, key):
    header = ",".join([*([run] if run else []), key, "value", "step", "timestamp"])
    rows = [
        ",".join([*([one] if run else []), name, f"{step}.5", str(step), "17"])
        for one in ("x", "y" if run else "x")[: 2 if run else 1]
        for name in ("reward", "kl")
        for step in (1, 2)
    ]
    found = runs_of(tmp_path, "\n".join([header, *rows]), "metrics.csv")
    assert len(found) == (2 if run else 1)
    for one in found:
        assert points(one, "reward") == points(one, "kl_ref") == {1: 1.5, 2: 2.5}


@pytest.mark.parametrize("name", ["both.csv", "both.jsonl"])
def test_rows_that_name_their_run_make_a_run_for_each_name(tmp_path, name):
    rows = [(step, run, step + at + 0.5) for step in (1, 2, 3) for at, run in enumerate("xy")]
    keys = ("step", "run_name", "reward")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    table = [",".join(map(str, row)) for row in [keys, *rows]]
    first, second = runs_of(tmp_path, "\n".join(table if name == "both.csv" else lines), name)
    assert (first.path.partition("#")[2], second.path.partition("#")[2]) == ("x", "y")
    assert points(first, "reward") == {1: 1.5, 2: 2.5, 3: 3.5}
    assert points(second, "reward") == {1: 2.5, 2: 3.5, 3: 4.5}


def test_a_csv_that_goes_on_under_another_header_is_one_run(tmp_path):
    (run,) = runs_of(tmp_path, "step,reward\n1,1.5\n2,2.5\n3,3.0\nstep,kl,reward\n2,0.5,2.0\n3,0.5,3.5\n", "log.csv")
    assert points(run, "reward") == {1: 1.5, 2: 2.0, 3: 3.5}
    assert points(run, "kl_ref") == {2: 0.5, 3: 0.5}


def test_lists_of_equal_rows_side_by_side_in_a_document_are_runs(tmp_path):
    rows = [{"step": i, "reward": i / 2} for i in (1, 2, 3)]
    text = json.dumps({"lr": 1e-5, "a": rows, "b": rows[:2], "samples": [{"text": "x"}]})
    first, second = runs_of(tmp_path, text, "runs.json")
    assert (first.path.partition("#")[2], second.path.partition("#")[2]) == ("a", "b")
    assert (points(first, "reward"), points(second, "reward")) == ({1: 0.5, 2: 1.0, 3: 1.5}, {1: 0.5, 2: 1.0})
    assert first.settings["learning_rate"] == second.settings["learning_rate"] == 1e-5


@pytest.mark.parametrize("before", ["2026-01-01 10:00:00,123 INFO ", "10:00:00 SUCCESS "])
def test_a_step_stands_behind_the_level_of_a_logger(tmp_path, before):
    (run,) = runs_of(tmp_path, "".join(f"{before}Step {i} | Time: 9.5s | Reward: 0.{i}\n" for i in (3, 6, 9)))
    assert points(run, "reward") == {3: 0.3, 6: 0.6, 9: 0.9}


def test_common_names_of_the_length_of_answers(tmp_path):
    rows = "".join(json.dumps({"step": i, "avg_reward": 0.5, "response_len": 100 + i}) + "\n" for i in (1, 2))
    (run,) = runs_of(tmp_path, rows, "log.jsonl")
    assert points(run, "length") == {1: 101.0, 2: 102.0}


ROWS = [{"loss": 0.5 * i, "reward": 1.0 + i, "kl": 0.25, "step": 10 * i} for i in (1, 2, 3)]
STATE = {"best_metric": None, "global_step": 30, "log_history": ROWS, "max_steps": 90, "logging_steps": 10}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (",\n".join(map(json.dumps, ROWS)), [10, 20, 30]),
        (",\n".join(json.dumps(row, indent=4) for row in ROWS), [10, 20, 30]),
        (json.dumps(STATE, indent=2)[:-100], [10, 20]),
        (json.dumps(STATE)[:-60], [10, 20]),
        (f'"log_history": {json.dumps(ROWS, indent=2)},\n "max_steps": 90', [10, 20, 30]),
        ("My log:\n" + ",\n".join(str(row).replace(", ", ",\n ") for row in ROWS) + "\nAny idea?", [10, 20, 30]),
        (
            "".join(f"Step {row['step']}: {{\n  'reward': {row['reward']},\n  'kl': nan\n}}\n" for row in ROWS),
            [10, 20, 30],
        ),
    ],
    ids=["lines", "indented", "torn", "torn in one line", "a part of a state", "Python over lines", "behind a step"],
)
def test_pasted_parts_of_a_log_and_torn_documents_give_their_whole_rows(tmp_path, text, steps):
    (run,) = runs_of(tmp_path, text)
    assert points(run, "reward") == {step: 1.0 + step / 10 for step in steps}


def test_what_a_torn_document_lost_is_said(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(STATE)[:-60])
    (log,) = search(path, holds_known_metric).logs
    assert log.format == "trainer_state"
    assert log.notes == ("the JSON is torn or a part of one: its whole rows are read, settings are not",)


def test_a_decimal_comma_of_a_spreadsheet_is_read(tmp_path):
    (run,) = runs_of(tmp_path, "step;reward;kl\n1;0,5;-1,25e-2\n2;0,75;nan\n", "excel.csv")
    assert points(run, "reward") == {1: 0.5, 2: 0.75}
    assert points(run, "kl_ref") == {1: -0.0125}


def test_a_torn_row_takes_no_whole_one_with_it(tmp_path):
    text = "{'reward': 0.5, 'kl\n{'reward': 1.5, 'kl': 0.5}\n{'reward': 2.5, 'kl': 0.5}\n"
    (run,) = runs_of(tmp_path, text)
    assert points(run, "reward") == {1: 1.5, 2: 2.5}


def test_words_behind_an_epoch_and_a_step_are_read(tmp_path):
    text = "".join(
        f"[2026-11-20 10:00:0{i},123][INFO] - epoch 0 step {10 * i}: reward 0.{i} | kl 0.0{i} | loss -0.02\n"
        for i in (1, 2)
    )
    (run,) = runs_of(tmp_path, text)
    assert points(run, "reward") == {10: 0.1, 20: 0.2}
    assert points(run, "kl_ref") == {10: 0.01, 20: 0.02}


EPOCHS = [(epoch, step, 0.1 * step + epoch) for epoch in (0, 1) for step in (5, 10, 15)]


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps({"epoch": e, "step": s, "reward": x}) + "\n" for e, s, x in EPOCHS),
        "".join(f"Epoch: {e} | Step: {s}/15 | Reward: {x} | Loss: 0.5\n" for e, s, x in EPOCHS),
        "".join(f"Epoch {e}, Step {s}, Loss: 0.5, Reward: {x}\n" for e, s, x in EPOCHS),
        "epoch,step,reward\n" + "".join(f"{e},{s},{x}\n" for e, s, x in EPOCHS),
    ],
    ids=["JSON", "bars", "words", "CSV"],
)
def test_steps_that_begin_again_with_each_epoch_are_counted_on(tmp_path, text):
    (run,) = runs_of(tmp_path, text, "log.csv" if text.startswith("epoch") else "log.txt")
    expected = {5 * (i + 1): x for i, (_, _, x) in enumerate(EPOCHS)}
    assert points(run, "reward") == pytest.approx(expected)
    assert "times that steps begin again with an epoch, and are counted on: 1" in run.notes


def test_a_resumed_run_is_no_second_epoch(tmp_path):
    rows = [(0.1, 10, 1.0), (0.2, 20, 2.0), (0.3, 30, 9.0), (0.2, 20, 2.5), (0.3, 30, 3.0)]
    text = "".join(json.dumps({"epoch": e, "step": s, "reward": x}) + "\n" for e, s, x in rows)
    (run,) = runs_of(tmp_path, text)
    assert points(run, "reward") == {10: 1.0, 20: 2.5, 30: 3.0}


@pytest.mark.parametrize("between", ["\t", " "])
def test_names_of_a_notebook_have_spaces_around_their_slashes(tmp_path, between):
    names = ["Step", "Training Loss", "reward", "reward_std", "completions / mean_length", "rewards / fmt / mean"]
    text = between.join(names) + "\n" + "".join(between.join([str(i), *["0.5"] * 5]) + "\n" for i in (1, 2))
    (run,) = runs_of(tmp_path, text)
    assert run.trainer == "trl-grpo"
    assert points(run, "length") == points(run, "reward_part/fmt") == {1: 0.5, 2: 0.5}


def lines(steps, offset=0.0):
    return "".join(f"step {i} reward={i + offset} kl=0.5\n" for i in steps)


def test_steps_that_begin_again_at_the_first_are_of_another_run(tmp_path):
    (run,) = runs_of(tmp_path, lines(range(1, 31)) + "\nonce more, with another rate:\n" + lines(range(1, 6), 100.0))
    assert points(run, "reward") == {i: i + 100.0 for i in range(1, 6)}
    assert "rows left out, for the steps begin again at the first: they are of an earlier run: 30" in run.notes


@pytest.mark.parametrize("steps", [range(30, 0, -1), [i * 13 % 31 for i in range(1, 31)]])
def test_rows_in_no_order_of_their_steps_are_one_run(tmp_path, steps):
    (run,) = runs_of(tmp_path, lines(steps))
    assert points(run, "reward") == {i: float(i) for i in range(1, 31)}
    assert "rows that stood in no order of their steps, and were sorted: 30" in run.notes


def test_rows_of_another_metric_or_a_late_one_are_no_second_run(tmp_path):
    rows = [{"step": i, "reward": i} for i in (1, 2, 3)] + [{"step": i, "eval_reward": i} for i in (1, 2, 3)]
    (run,) = runs_of(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    assert points(run, "reward") == points(run, "heldout/reward") == {1: 1.0, 2: 2.0, 3: 3.0}
    (run,) = runs_of(tmp_path, lines([1, 2, 3, 1, 4, 5]))
    assert list(points(run, "reward")) == [1, 2, 3, 4, 5]


def test_names_and_values_between_plain_bars_are_read(tmp_path):
    text = "".join(f"--------\n| step   | {i} |\n| reward | 0.{i} |\n| loss   | 1.5 |\n" for i in (4, 8))
    (run,) = runs_of(tmp_path, text)
    assert points(run, "reward") == {4: 0.4, 8: 0.8}


def test_the_last_two_parts_of_a_nested_name_tell_what_it_is(tmp_path):
    rows = [
        {
            "step": i,
            "metrics": {"train": {"reward": {"mean": i, "std": 0.5}, "kl": 0.5}, "critic": {"margin": {"mean": 9}}},
        }
        for i in (1, 2)
    ]
    (run,) = runs_of(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    assert (points(run, "reward"), points(run, "reward_std")) == ({1: 1.0, 2: 2.0}, {1: 0.5, 2: 0.5})
    assert run.unknown == ("metrics/critic/margin/mean",)


def test_the_steps_of_columns_may_stand_above_them(tmp_path):
    document = {"steps": [10, 20], "metrics": {"reward": [0.5, 1.0], "kl": [0.1, 0.2]}}
    (run,) = runs_of(tmp_path, json.dumps(document, indent=1), "run.json")
    assert points(run, "reward") == {10: 0.5, 20: 1.0}
