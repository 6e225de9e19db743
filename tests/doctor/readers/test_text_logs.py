import json
import math

import numpy as np
import pytest

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import append_line, write_json
from steadyrl.doctor.readers.search import search


def read(path):
    """Return the logs of a file or folder, whatever their metrics."""
    return list(search(path, lambda log: True).logs)


def log_of(tmp_path, text, name="log.txt"):
    path = tmp_path / name
    path.write_text(text)
    (log,) = read(path)
    return log


def points(log, name):
    column = log.columns[name]
    assert column.steps.dtype == np.int64 and column.values.dtype == np.float64
    return dict(zip(column.steps.tolist(), column.values.tolist(), strict=True))


@pytest.mark.parametrize("first", [{"kind": "hparams", "beta": 0.5}, {"run": "a", "hparams": {"beta": 0.5}}])
def test_a_first_row_of_settings_is_no_row_of_metrics(tmp_path, first):
    rows = [first, *({"step": i, "reward": i / 4} for i in (3, 4, 5))]
    log = log_of(tmp_path, "\n".join(map(json.dumps, rows)), "log.jsonl")
    assert log.settings["beta"] == 0.5
    assert points(log, "reward") == {3: 0.75, 4: 1.0, 5: 1.25} and "beta" not in log.columns


def test_json_lines_give_one_column_per_number(tmp_path):
    log = log_of(tmp_path, '{"step": 1, "loss": 0.5, "kl": 2}\n{"step": 2, "loss": 0.25}\n{"step": 4, "loss": 1}\n')
    assert log.format == "jsonl"
    assert points(log, "loss") == {1: 0.5, 2: 0.25, 4: 1.0}
    assert points(log, "kl") == {1: 2.0}
    assert set(log.columns) == {"loss", "kl"}
    assert log.path == str(tmp_path / "log.txt")


@pytest.mark.parametrize("key", ["step", "global_step", "_step", "Step", "iteration", "episode", "train/global_step"])
def test_the_step_has_many_names(tmp_path, key):
    log = log_of(tmp_path, "".join(json.dumps({"loss": i, key: 5 * i}) + "\n" for i in (1, 2)))
    assert points(log, "loss") == {5: 1.0, 10: 2.0}


def test_rows_without_a_step_are_numbered(tmp_path):
    log = log_of(tmp_path, '{"loss": 3}\n{"loss": 4}\n')
    assert points(log, "loss") == {1: 3.0, 2: 4.0}
    assert log.notes == ("the rows name no step and are numbered from 1 in the order of writing",)


def test_nested_keys_are_joined(tmp_path):
    log = log_of(
        tmp_path, '{"step": 1, "a": {"b": {"c": 1}, "d": [1, 2]}, "e": {"_type": "image", "width": 3}, "f": 1}\n'
    )
    assert set(log.columns) == {"a/b/c", "f"}


def test_numbers_are_found_in_any_spelling(tmp_path):
    spelled = [
        "NaN",
        "Infinity",
        "-Infinity",
        '"NaN"',
        '"inf"',
        '"-Infinity"',
        '"nan"',
        '"0.5"',
        '"1e-3"',
        "1e999",
        "7",
    ]
    log = log_of(tmp_path, "".join(f'{{"step": {i}, "x": {text}}}\n' for i, text in enumerate(spelled)))
    expected = [math.nan, math.inf, -math.inf, math.nan, math.inf, -math.inf, math.nan, 0.5, 0.001, math.inf, 7]
    np.testing.assert_array_equal(log.columns["x"].values, expected)


def test_words_bools_and_lists_are_left_out(tmp_path):
    log = log_of(
        tmp_path, '{"step": 1, "x": "up", "y": 1}\n{"step": 2, "x": true, "y": [1]}\n{"step": 3, "x": 5, "y": 2}\n'
    )
    assert points(log, "x") == {3: 5.0}
    assert points(log, "y") == {1: 1.0, 3: 2.0}


def test_an_integer_beyond_float_is_infinite(tmp_path):
    log = log_of(tmp_path, f'{{"step": 1, "x": 1{"0" * 400}}}\n{{"step": 2, "x": -1{"0" * 400}}}\n')
    assert points(log, "x") == {1: math.inf, 2: -math.inf}


def test_broken_lines_cost_only_themselves(tmp_path):
    log = log_of(tmp_path, '{"step": 1, "x": 1}\n{"step": 2, "x"\n\n[]\n{"step": 3, "x": 3}\n{"step": 4, "x": 4')
    assert points(log, "x") == {1: 1.0, 3: 3.0}
    assert log.notes[0] == "lines left out, for they are torn or no JSON object: 3"


def test_two_torn_lines_that_parse_together_are_no_rows(tmp_path):
    log = log_of(tmp_path, '{"step": 1, "x": 1}\n{"step": 2, "x": 2}\n{"step": 3, "y": [1\n2], "x": 3}\n')
    assert points(log, "x") == {1: 1.0, 2: 2.0}


def test_the_later_writing_of_a_step_counts(tmp_path):
    rows = [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 3.0), (4, 40.0)]
    log = log_of(tmp_path, "".join(json.dumps({"step": s, "x": x}) + "\n" for s, x in rows))
    assert points(log, "x") == {1: 1.0, 2: 20.0, 3: 3.0, 4: 40.0}
    assert log.notes == ("values written again for the same step, of which the later writing counts: 1",)


def test_rows_of_one_step_are_merged(tmp_path):
    log = log_of(tmp_path, '{"step": 1, "a": 1}\n{"step": 1, "b": 2}\n{"step": 2, "a": 3, "b": 4}\n')
    assert (points(log, "a"), points(log, "b")) == ({1: 1.0, 2: 3.0}, {1: 2.0, 2: 4.0})
    assert log.notes == ()


def test_missing_steps_are_counted(tmp_path):
    steps = [10, 20, 30, 60, 70, 80, 100]
    log = log_of(tmp_path, "".join(f'{{"step": {step}, "x": 1}}\n' for step in steps))
    assert log.notes == ("steps, of every 10th, missing between 10 and 100: 3",)


def test_rows_without_a_whole_step_are_left_out(tmp_path):
    log = log_of(tmp_path, "".join(f'{{"step": {step}, "x": 1}}\n' for step in [*range(40), '"?"', 1.5, "1e300"]))
    assert list(points(log, "x")) == list(range(40))
    assert log.notes == ("rows left out, for they have no whole number under 'step': 3",)


def test_a_line_beyond_the_limit_is_passed_over(tmp_path):
    giant = json.dumps({"step": 2, "x": 2, "text": "a" * (17 << 20)})
    log = log_of(tmp_path, f'{{"step": 1, "x": 1}}\n{giant}\n{{"step": 3, "x": 3}}\n')
    assert points(log, "x") == {1: 1.0, 3: 3.0}
    assert log.notes[0] == "lines left out, for they are longer than 16 MiB: 1"


def test_rows_are_the_same_wherever_a_block_ends(tmp_path):
    pad = "p" * 700
    log = log_of(tmp_path, "".join(f'{{"step": {i}, "x": {i}, "pad": "{pad}"}}\n' for i in range(5000)))
    assert points(log, "x") == {i: float(i) for i in range(5000)}


def test_verl_file_logger_is_read(tmp_path):
    text = '{"step":1,"data":{"actor/ppo_kl":0.1,"actor/grad_norm":null}}\n{"step":2,"data":{"actor/ppo_kl":0.2}}\n'
    log = log_of(tmp_path, text, "experiment.jsonl")
    assert log.format == "verl_file"
    assert points(log, "actor/ppo_kl") == {1: 0.1, 2: 0.2}
    assert math.isnan(points(log, "actor/grad_norm")[1])


def test_verl_console_is_read(tmp_path):
    text = (
        "INFO starting\n{'config': {'a': 1}}\n"
        "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m step:1 - actor/ppo_kl:np.float64(1.5e-05) - "
        "val-core/openai/gsm8k/acc/mean@1:0.5 - perf/mfu:-0.25\n"
        "\rTraining:  10%|# | 1/10\r(TaskRunner pid=123) step:2 - actor/ppo_kl:nan - training/global_step:2 "
        "[repeated 2x across cluster]\nstep:3 - nothing\n"
    )
    log = log_of(tmp_path, text)
    assert log.format == "verl_console"
    assert points(log, "val-core/openai/gsm8k/acc/mean@1") == {1: 0.5}
    assert points(log, "perf/mfu") == {1: -0.25}
    assert points(log, "training/global_step") == {2: 2.0}
    np.testing.assert_array_equal(log.columns["actor/ppo_kl"].values, [1.5e-05, math.nan])


def test_printed_dicts_are_read(tmp_path):
    text = (
        "Loading weights\n"
        "{'loss': '0.5', 'kl': nan, 'reward': np.float64(0.25), 'epoch': '0.1'}\n"
        "  1%|  | 5/500 [00:10<01:00]{'loss': 0.25, 'kl': -inf, 'name': 'nan', 'epoch': '0.2'}\n"
        "{'loss': __import__('os').system('true')}\n"
    )
    log = log_of(tmp_path, text)
    assert log.format == "printed"
    assert points(log, "loss") == {5: 0.5, 10: 0.25}  # the bar after the first row shows how far rows are apart
    assert points(log, "reward") == {5: 0.25}
    np.testing.assert_array_equal(log.columns["kl"].values, [math.nan, -math.inf])


def test_a_table_is_read(tmp_path):
    log = log_of(tmp_path, "step,loss,kl,name\n1,0.5,,a\n2,nan,0.1,b\n3,0.1\n", "progress.csv")
    assert log.format == "csv"
    np.testing.assert_array_equal(log.columns["loss"].values, [0.5, math.nan])
    assert points(log, "kl") == {2: 0.1}
    assert set(log.columns) == {"loss", "kl"}
    assert log.notes == ("rows left out, for they have not 4 cells: 1",)


@pytest.mark.parametrize(
    "before",
    ["# run 7\n# lr=1e-5, seed 0\nstep,loss\n", "\n#\n\nstep,loss\n", "# run 7\n# step,loss\n", "#step,loss\n"],
)
def test_comments_before_a_csv_are_passed_over_and_may_hold_its_header(tmp_path, before):
    log = log_of(tmp_path, before + "1,0.5\n2,0.4\n", "progress.csv")
    assert (log.format, points(log, "loss"), log.notes) == ("csv", {1: 0.5, 2: 0.4}, ())


def test_a_table_may_be_separated_by_tabs(tmp_path):
    assert points(log_of(tmp_path, "Step\tValue\n10\t1\n20\t2\n"), "Value") == {10: 1.0, 20: 2.0}


def test_a_list_of_rows_is_read(tmp_path):
    log = log_of(tmp_path, json.dumps([{"step": 1, "loss": 2}, {"step": 2, "loss": 1}], indent=1), "history.json")
    assert (log.format, points(log, "loss")) == ("jsonl", {1: 2.0, 2: 1.0})


def own_run(folder):
    write_json(folder / "run.json", {"status": "done"})
    write_json(folder / "resolved.json", {"update": {"learning_rate": 0.1}, "rewards": {}})
    rows = [
        {"step": 0, "attempt": 0, "a": 1.0, "b": 1.0},
        {"step": 1, "attempt": 0, "a": 2.0, "b": 2.0},
        {"step": 2, "attempt": 0, "a": 3.0, "b": math.inf},
        {"step": 1, "attempt": 1, "a": 20.0, "c": math.nan, "b": None},
        {"step": 2, "attempt": 1, "a": 30.0, "b": 30.0},
    ]
    for row in rows:
        append_line(folder / "metrics.jsonl", row)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "att')
    return folder


@pytest.mark.parametrize("name", ["", "metrics.jsonl"])
def test_of_our_own_run_the_highest_attempt_of_each_step_counts(tmp_path, name):
    (log,) = read(own_run(tmp_path / "run") / name)
    assert log.format == "steadyrl"
    assert points(log, "a") == {0: 1.0, 1: 20.0, 2: 30.0}
    # Attempt 1 did not know b at step 1: the number of attempt 0 is of a step that was undone.
    assert points(log, "b") == {0: 1.0, 2: 30.0}
    assert math.isnan(points(log, "c")[1])
    assert log.settings == {"update.learning_rate": 0.1, "rewards": {}}
    assert "resumptions of the run: 1" in log.notes


def test_what_held_out_problems_gained_is_read_from_the_evaluations_of_our_own_run(tmp_path):
    def answered(name, rewards, **more):
        for problem, reward in rewards.items():
            append_line(folder / "evaluations" / f"{name}.jsonl", {"problem": problem, "answers": reward, **more})

    folder = own_run(tmp_path / "run")
    assert read(folder)[0].gains == {}
    (folder / "evaluations").mkdir()
    answered(
        "before", {"a": {"sampled": {"reward": 0.25}, "greedy": {"reward": 0.5}}, "b": {"sampled": {"reward": 1.0}}}
    )
    assert read(folder)[0].gains == {}
    answered(
        "after", {"b": {"sampled": {"reward": 0.5}}, "a": {"sampled": {"reward": 1.0}, "greedy": {"reward": None}}}
    )
    answered("after", {"c": {"sampled": {"reward": 1.0}}, "d": "lost", "e": None})
    answered("before", {"d": {"sampled": {"reward": 1.0}}, "e": {"sampled": "lost"}})
    gains = read(folder)[0].gains
    assert {name: values.tolist() for name, values in gains.items()} == {"sampled": [0.75, -0.5]}


def test_the_metric_of_held_out_problems_before_and_after_is_read_for_each_way_of_decoding(tmp_path):
    folder = own_run(tmp_path / "run")
    (folder / "evaluations").mkdir()
    for when, metrics in (("before", (0.5, 1.0, None)), ("after", (0.25, 0.75, 1.0))):
        for problem, metric in enumerate(metrics):
            answers = {"sampled": {"metric": metric, "reward": 9.0}, "greedy": {"metric": None}}
            append_line(folder / "evaluations" / f"{when}.jsonl", {"problem": problem, "answers": answers})
    scores = read(folder)[0].scores
    assert {name: pairs.tolist() for name, pairs in scores.items()} == {"sampled": [[0.5, 1.0], [0.25, 0.75]]}


def test_a_folder_of_runs_gives_each(tmp_path):
    own_run(tmp_path / "b")
    own_run(tmp_path / "a")
    assert [log.path for log in read(tmp_path)] == [str(tmp_path / "a"), str(tmp_path / "b")]


def trainer_state(folder, step):
    write_json(folder / "trainer_state.json", {"global_step": step, "log_history": [{"step": step, "loss": 1.0}]})


def test_of_a_trainer_folder_the_state_with_most_steps_is_read(tmp_path):
    for step in (5, 20, 100):
        trainer_state(tmp_path / f"checkpoint-{step}", step)
    (log,) = read(tmp_path)
    assert points(log, "loss") == {100: 1.0}
    trainer_state(tmp_path, 120)
    (log,) = read(tmp_path)
    assert points(log, "loss") == {120: 1.0}


def test_text_in_utf_16_is_read(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("".join(f'{{"step": {i}, "x": {i}, "pad": "{"ä" * 300}"}}\n' for i in range(2000)), "utf-16")
    (log,) = read(path)
    assert points(log, "x") == {i: float(i) for i in range(2000)}
    assert log.notes == ()


def test_a_folder_of_prompts_is_no_log(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "answer": 1}\n')
    with pytest.raises(RunError, match="holds no log"):
        read(tmp_path)
