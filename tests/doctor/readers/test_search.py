"""Which logs of a folder are read: every run, no run twice, and nothing left out without a word."""

import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import RunError
from steadyrl.core.rundir import append_line, write_json
from steadyrl.doctor.examine import diagnose
from steadyrl.doctor.names.identify import holds_known_metric, identify
from steadyrl.doctor.readers.search import search
from steadyrl.show.report.diagnosis import write_diagnosis

DATA = Path(__file__).parent / "data"
LEFT_OUT = "left out, for they show the same run or no history of one (name one to see it): "


def values(n, run):
    """Return the rewards of a run; equal runs have equal ones."""
    return np.random.default_rng(run).random(n).round(6).tolist()


def rows(path, run=0, n=10):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": i, "reward": x}) + "\n" for i, x in enumerate(values(n, run))))
    return path


def table(path, run=0, n=10):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("step,reward\n" + "".join(f"{i},{x}\n" for i, x in enumerate(values(n, run))))
    return path


def printed(path, run=0, n=10):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{{'reward': {x:.4f}, 'loss': 1.0}}\n" for x in values(n, run)))
    return path


def state(folder, n=10, run=0):
    history = [{"step": i, "loss": 1.0, "reward": x} for i, x in enumerate(values(n, run))]
    write_json(folder / "trainer_state.json", {"global_step": n, "log_history": history})
    return folder / "trainer_state.json"


def torn_state(folder):
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"log_history": [{"st')
    return folder / "trainer_state.json"


def own_run(folder, n=10):
    """Write a run directory with the files beside its metrics that have steps, too."""
    write_json(folder / "run.json", {"status": "done"})
    write_json(folder / "resolved.json", {"rewards": {}})
    for i in range(n):
        append_line(folder / "metrics.jsonl", {"step": i, "attempt": 0, "reward/mean": 0.5})
        append_line(folder / "findings.jsonl", {"step": i, "state": "raised", "reward": 1.0})
        append_line(folder / "rollouts" / f"{i:06d}.jsonl", {"step": i, "reward": 1.0})
    write_json(folder / "checkpoints" / "000003" / "state.json", {"step": 3, "tokens": 5})
    return folder


def events(folder):
    shutil.copytree(DATA / "tensors", folder)
    return next(folder.iterdir())


def wandb(folder):
    shutil.copytree(DATA / "offline-run-20261120_130921-short", folder)
    return next(folder.glob("*.wandb"))


def found(folder):
    return search(folder, holds_known_metric)


def paths(result):
    return [log.path for log in result.logs]


def test_runs_of_every_kind_are_read_wherever_they_lie(tmp_path):
    expected = [
        state(tmp_path / "a"),
        rows(tmp_path / "b" / "metrics.jsonl", run=1),
        table(tmp_path / "c" / "progress.csv", run=2),
        printed(tmp_path / "d" / "train.log", run=3),
        events(tmp_path / "e" / "deep"),
        own_run(tmp_path / "f"),
    ]
    # All trackers' files here are of the same short run, so that one of them is enough.
    again = [wandb(tmp_path / "g"), Path(shutil.copytree(DATA / "mlruns", tmp_path / "h"))]
    result = found(tmp_path)
    assert paths(result) == list(map(str, expected))
    assert result.logs[4].notes[-1].startswith(f"{LEFT_OUT}{again[0]}, {again[1]}")
    assert result.unreadable == {}


def test_a_run_directory_is_one_run_and_its_own_files_are_no_others(tmp_path):
    run = own_run(tmp_path / "run")
    (log,) = found(run).logs
    assert (log.path, log.notes) == (str(run), ())


def test_two_runs_in_one_folder_are_two(tmp_path):
    good, bad = rows(tmp_path / "a.jsonl"), tmp_path / "b.txt"
    bad.write_text("".join(f"step:{i} - actor/pg_loss:nan - critic/score/mean:nan\n" for i in range(10)))
    result = found(tmp_path)
    assert paths(result) == [str(good), str(bad)]
    assert np.isnan(result.logs[1].columns["critic/score/mean"].values).all()
    assert not any(LEFT_OUT in note for log in result.logs for note in log.notes)


def test_another_run_beside_a_run_directorys_files_is_read_too(tmp_path):
    run = own_run(tmp_path / "run")
    other = table(run / "export.csv")
    assert paths(found(run)) == [str(run), str(other)]


def test_of_a_trainers_folder_the_newest_state_counts_and_other_logs_of_it_are_named(tmp_path):
    for step in (5, 20):
        newest = state(tmp_path / f"checkpoint-{step}", step)
    same = [printed(tmp_path / "train.log", n=20), rows(tmp_path / "export" / "rows.jsonl", n=20)]
    another = rows(tmp_path / "logs" / "rows.jsonl", run=1, n=20)
    result = found(tmp_path)
    assert paths(result) == [str(newest), str(another)]
    assert result.logs[0].notes == (f"{LEFT_OUT}{', '.join(map(str, same))}",)


def test_a_table_and_printed_output_of_the_same_run_are_one(tmp_path):
    log_file, again, console = rows(tmp_path / "x.jsonl"), table(tmp_path / "y.csv"), printed(tmp_path / "z.log")
    result = found(tmp_path)
    assert paths(result) == [str(log_file)]
    assert result.logs[0].notes == (f"{LEFT_OUT}{again}, {console}",)


def test_what_a_tracker_wrote_of_the_same_run_is_no_second_one(tmp_path):
    run = shutil.copytree(DATA / "mlruns", tmp_path / "a" / "mlruns")
    other = wandb(tmp_path / "a" / "wandb" / "run")
    (log,) = found(tmp_path).logs
    assert log.path.startswith(str(run))
    assert log.notes[-1] == f"{LEFT_OUT}{other}"


def test_samples_and_saved_states_below_a_log_are_no_runs_but_another_log_is(tmp_path):
    log_file = rows(tmp_path / "log.jsonl")
    samples, saved = tmp_path / "samples" / "3.jsonl", tmp_path / "saved" / "state.json"
    saved.parent.mkdir()
    saved.write_text('{"step": 3, "reward": 1.0}')
    samples.parent.mkdir()
    samples.write_text('{"step": 3, "reward": 1.0}\n' * 5)
    another = rows(tmp_path / "second" / "log.jsonl", run=1)
    result = found(tmp_path)
    assert paths(result) == [str(log_file), str(another)]
    assert result.logs[0].notes == (f"{LEFT_OUT}{samples}, {saved}",)


def test_samples_beside_a_log_are_no_run(tmp_path):
    log_file, samples = rows(tmp_path / "log.jsonl"), tmp_path / "samples.jsonl"
    samples.write_text("".join(f'{{"step": 3, "reward": {i}.5, "completion": "c"}}\n' for i in range(5)))
    result = found(tmp_path)
    assert paths(result) == [str(log_file)]
    assert result.logs[0].notes == (f"{LEFT_OUT}{samples}",)


def test_runs_that_stand_still_are_not_one(tmp_path):
    expected = [tmp_path / "a.jsonl", tmp_path / "b.csv"]
    expected[0].write_text("".join(f'{{"step": {i}, "reward": 0.0, "lr": {i}e-6}}\n' for i in range(9)))
    expected[1].write_text("step,reward,lr\n" + "".join(f"{i},0.0,{i}e-6\n" for i in range(9)))
    assert paths(found(tmp_path)) == list(map(str, expected))


def test_a_database_is_no_run_of_its_folder_and_runs_in_it_without_a_known_metric_are_named(tmp_path):
    connection = sqlite3.connect(tmp_path / "all.db")
    connection.execute("CREATE TABLE metrics (id INTEGER, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)")
    calls = [(1, "2025", "a", 0, '{"age": 1}'), (2, "2026", "b", 0, '{"reward": 1}')]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", calls)
    connection.commit()
    connection.close()
    run, log_file = own_run(tmp_path / "run"), rows(tmp_path / "second" / "log.jsonl")
    result = found(tmp_path)
    assert paths(result) == [f"{tmp_path}/all.db#b", str(run), str(log_file)]
    note = f"left out of the same file, for they hold no known metric: {tmp_path}/all.db#a"
    assert result.logs[0].notes == (note,)


def test_what_cannot_be_read_is_named_and_hides_nothing(tmp_path):
    torn, good = torn_state(tmp_path / "a"), state(tmp_path / "b")
    result = found(tmp_path)
    assert paths(result) == [str(good)]
    assert list(result.unreadable) == [str(torn)] and "is torn" in result.unreadable[str(torn)]


def test_where_a_trainers_state_is_torn_the_other_log_of_the_run_is_read(tmp_path):
    torn, other = torn_state(tmp_path / "out"), events(tmp_path / "out" / "runs")
    result = found(tmp_path)
    assert (paths(result), list(result.unreadable)) == ([str(other)], [str(torn)])


def test_a_run_directory_without_metrics_says_so_and_no_state_is_taken_for_its_log(tmp_path):
    run = own_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    result = found(run)
    assert result.logs == ()
    assert "has no metrics yet" in result.unreadable[str(run)]


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("people.csv", "name,age\nann,30\nbob,40\n", "age"),
        ("state.json", '{"step": 3, "tokens": 5}', "tokens"),
        ("log.jsonl", '{"step": 1, "b": 1, "a": 1, "epoch": 1}\n{"step": 2, "b": 1, "a": 1, "epoch": 1}\n', "a, b"),
    ],
)
def test_a_file_without_a_known_metric_is_no_log(tmp_path, name, text, names):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=f"no known metric in '{tmp_path}/{name}': found {names}.*docs/doctor/names.md"):
        found(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.jsonl", '{"step": 4, "kl": null, "reward": null}\n{"step": 5, "kl": null}\n'),
        ("log.json", '[{"step": 4, "reward": null, "kl": null, "epoch": 0.5}]'),
    ],
)
def test_a_log_whose_metrics_are_all_null_is_said_to_be_so(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=r"null or empty in every row: (kl, reward|reward, kl); in all: 2"):
        found(tmp_path / name)


def test_a_search_of_a_folder_says_what_is_searched_and_how_far_it_is(tmp_path):
    for i in range(7):
        rows(tmp_path / f"{i % 2}" / f"log{i}.jsonl", run=i)
    counts, phases = [], []
    with heard_by(lambda *count: counts.append(count), phases.append):
        found(tmp_path)
    assert phases == [f"searching '{tmp_path}' for logs"]
    assert [done for what, done, _ in counts if what == "files searched"] == [0, 4, 7]
    assert (f"files read in '{tmp_path / '1'}'", 2, 3) in counts


@pytest.mark.parametrize("name", ["export", "gguf"])
def test_what_a_run_exported_is_no_second_log(tmp_path, name):
    append_line(tmp_path / "metrics.jsonl", {"step": 0, "attempt": 0, "reward/mean": 0.5})
    (tmp_path / "run.json").write_text("{}")
    rows(tmp_path / name / "scores.jsonl", run=3)
    assert [log.path for log in found(tmp_path).logs] == [str(tmp_path)]


TRAINERS_ARGS = {
    "output_dir": "out",
    "learning_rate": 2e-6,
    "beta": 0.02,
    "num_generations": 4,
    "max_steps": 300,
    "bf16": True,
}
OWN_ARGS = {"lr": 1e-5, "kl_coef": 0.1, "entropy_coef": 0.0, "batch_size": 16, "steps": 500}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dice.toml", "learning_rate = 1e-5\n"),
        ("ppo_trainer.yaml", "learning_rate: 1e-5\n"),
        ("args.json", json.dumps(TRAINERS_ARGS)),
        ("config.json", json.dumps(TRAINERS_ARGS, indent=2)),
        ("own.json", json.dumps(OWN_ARGS)),
        ("verl.json", json.dumps({"algorithm": {"kl_ctrl": {"kl_coef": 0.01}}, "trainer": {"total_epochs": 3}})),
    ],
)
def test_settings_alone_are_answered_with_what_to_give_instead(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(
        RunError, match=f"{name}' is a file of settings or results, and no log; give the run .*LOG --config .*{name}`"
    ):
        search(tmp_path / name, holds_known_metric)


@pytest.mark.parametrize("row", [{"reward": 0.3, "kl": 0.02}, {"loss": 0.5, "learning_rate": 1e-6, "grad_norm": 1.0}])
def test_one_row_of_metrics_is_a_log(tmp_path, row):
    (tmp_path / "first.jsonl").write_text(json.dumps(row))
    assert len(search(tmp_path / "first.jsonl", holds_known_metric).logs) == 1


def test_one_known_metric_makes_a_log(tmp_path):
    (tmp_path / "log.csv").write_text("step,age,reward\n1,30,0.5\n2,40,0.6\n")
    assert len(found(tmp_path / "log.csv").logs) == 1


def test_a_table_without_a_known_metric_is_named_beside_the_runs_of_a_folder(tmp_path):
    strange = tmp_path / "data" / "ages.csv"
    strange.parent.mkdir()
    strange.write_text("step,age\n1,30\n2,40\n")
    run = state(tmp_path / "run")
    result = found(tmp_path)
    assert (paths(result), result.unreadable) == ([str(run)], {})
    assert result.logs[0].notes == (f"left out in '{tmp_path}', for they hold no known metric: {strange}",)
    run.unlink()
    assert list(found(tmp_path).unreadable) == [str(strange)]


def test_a_document_of_a_folder_is_a_log_only_if_it_holds_steps(tmp_path):
    documents = {
        "comparison.json": {"metric": "reward", "problems": [{"a": 0.1, "b": 0.7}], "reward/a": 0.1},
        "plan.json": {"arms": {"low": {"algorithm.args.kl_coef": [0, 1], "update.epochs": [1, 2], "run.steps": 40}}},
        "range.json": {"points": [{"rate": 1e-4, "kl": 0.1}], "settings": {"rollout.prompts_per_step": 8}},
        "rows.json": {"run": [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]},
        "columns.json": {"steps": [1, 2], "reward": [0.1, 0.3]},
        "long.json": {"reward": [0.1 * i for i in range(12)]},
    }
    for name, document in documents.items():
        (tmp_path / name).write_text(json.dumps(document, indent=1))
    result = found(tmp_path)
    assert (paths(result), result.unreadable) == (
        [str(tmp_path / f"{name}.json") for name in ("columns", "long", "rows")],
        {},
    )
    assert not result.logs[0].notes


def test_folders_too_deep_to_be_searched_are_told_of(tmp_path):
    state(tmp_path / "a")
    state(tmp_path.joinpath("b", *"23456789"))
    (log,) = found(tmp_path).logs
    assert log.notes[0].startswith(f"the search of '{tmp_path}' ended after 20000 files or 8 folders' depth")


def test_what_wandb_says_of_itself_is_no_printed_log(tmp_path):
    run = wandb(tmp_path / "wandb" / "offline-run-20261120_130921-short")
    for name in ("debug-internal.log", "debug.log"):
        (tmp_path / "wandb" / name).write_text("config: {'learning_rate': 1e-05, 'kl': {'coef': 0.05}}\n" * 3)
    assert paths(found(tmp_path)) == [str(run)]
    printed(tmp_path / "other" / "debug.log")  # by itself a log may be called so
    assert str(tmp_path / "other" / "debug.log") in paths(found(tmp_path))


def chart(metrics):
    """A chart as W&B exports it: values of (run, metric), by step."""
    header = ",".join(
        ['"Step"', *(f'"{run} - {name}{end}"' for run, name in metrics for end in ("", "__MIN", "__MAX"))]
    )
    rows = [",".join(map(str, [step, *(value * step for value in metrics.values() for _ in "123")])) for step in (1, 2)]
    return "\n".join([header, *rows])


def test_charts_of_one_run_are_one_log(tmp_path):
    """W&B exports a file for each chart."""
    charts = {
        "a.csv": {("one", "train/reward"): 1.0, ("two", "train/reward"): 2.0},
        "b.csv": {("one", "train/kl"): 3.0, ("two", "train/kl"): 4.0},
        "c.csv": {("one", "train/reward"): 5.0},  # the same metric once more: it is another run of that name
        "below/d.csv": {("one", "train/entropy"): 6.0},
    }
    (tmp_path / "below").mkdir()
    for name, values in charts.items():
        (tmp_path / name).write_text(chart(values), encoding="utf-8")
    logs = found(tmp_path).logs
    held = [{name: column.values[0] for name, column in log.columns.items()} for log in logs]
    assert held == [
        {"train/kl": 3.0, "train/reward": 1.0},
        {"train/kl": 4.0, "train/reward": 2.0},
        {"train/reward": 5.0},
        {"train/entropy": 6.0},
    ]
    assert f"charts of the run 'one' are joined, also that of '{tmp_path / 'b.csv'}'" in logs[0].notes
    assert not any("joined" in note for log in logs[2:] for note in log.notes)


def saved_chart(folder, run, tag, values):
    """Write a chart as TensorBoard's page saves it: the file alone says of what."""
    folder.mkdir(exist_ok=True)
    lines = (f"{1.7e9 + i},{5 * i},{value}\n" for i, value in enumerate(values))
    (folder / f"run-{run}-tag-{tag}.csv").write_text(f"Wall time,Step,Value\n{''.join(lines)}")


def test_charts_saved_from_tensorboard_are_one_log_for_each_run(tmp_path):
    tags = {"train_reward": 0.5, "train_reward_std": 0.1, "train_completions_mean_length": 60.0, "eval_reward": 0.4}
    for run in ("Nov29_host", "other"):
        for tag, value in tags.items():
            saved_chart(tmp_path, run, tag, [value] * 6)
    logs = found(tmp_path).logs
    assert paths(found(tmp_path)) == [f"{tmp_path}#Nov29_host", f"{tmp_path}#other"]
    names = {"train/reward", "train/reward_std", "train/completions_mean_length", "eval/reward"}
    assert [log.columns.keys() for log in logs] == [names, names]
    assert identify(logs[0]).series["length"][0].values.tolist() == [60.0] * 6  # which its own chart does not tell
    (alone,) = found(tmp_path / "run-other-tag-train_reward.csv").logs
    assert alone.columns.keys() == {"train/reward"} and alone.columns["train/reward"].steps.tolist() == [
        *range(0, 30, 5)
    ]


def test_a_saved_chart_of_which_nothing_is_known_is_named_beside_the_others(tmp_path):
    saved_chart(tmp_path, "a", "weather", [1.0, 2.0])
    saved_chart(tmp_path, "b", "train_kl", [0.1, 0.2])
    (log,) = found(tmp_path).logs
    assert log.columns.keys() == {"train/kl"}
    assert any("no known metric" in note and "weather" in note for note in log.notes)
    (tmp_path / "run-b-tag-train_kl.csv").unlink()
    assert "no known metric" in found(tmp_path).unreadable[str(tmp_path / "run-a-tag-weather.csv")]


def test_what_another_log_of_a_run_says_of_its_settings_counts_where_the_surest_is_silent(tmp_path):
    state(tmp_path, run=4)
    told = {"settings": {"learning_rate": 3e-6, "global_step": 99}}
    lines = [told, *({"step": i, "reward": x, "loss": 1.0} for i, x in enumerate(values(10, 4)))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (log,) = found(tmp_path).logs
    assert log.format == "trainer_state"
    assert log.settings == {"learning_rate": 3e-6, "global_step": 10}
    assert f"the settings are those of '{tmp_path / 'metrics.jsonl'}', too" in log.notes


def test_the_reports_of_a_run_are_no_further_runs(tmp_path):
    log = rows(tmp_path / "run.jsonl", n=40)
    page = write_diagnosis(diagnose(log), tmp_path / "seen")
    table = "| step | reward |\n|---|---|\n| 1 | 0.5 |\n| 2 | 0.6 |\n"
    for path in (page.with_suffix(".md"), tmp_path / "notes.md"):
        path.write_text(table)
    page.write_text(
        page.read_text() + "<table><tr><td>step</td><td>reward</td></tr><tr><td>1</td><td>2</td></tr></table>"
    )
    assert paths(found(tmp_path)) == [str(log), str(tmp_path / "notes.md")]
    for path in (page, page.with_suffix(".md")):
        with pytest.raises(RunError, match="is a report of steadyrl; name the log"):
            found(path)


def test_a_pipe_is_read_as_what_is_pasted(tmp_path):
    """As `steadyrl doctor <(zcat log.gz)` names it, whether its text is there already or comes later."""
    log = rows(tmp_path / "log.jsonl").read_bytes()
    for late in (False, True):
        end, start = os.pipe()
        writer = threading.Timer(0.1 if late else 0.0, lambda start=start: (os.write(start, log), os.close(start)))
        writer.start()
        if not late:
            writer.join()
        (found,) = search(Path(f"/dev/fd/{end}"), holds_known_metric).logs
        os.close(end)
        writer.join()
        assert found.path == "-" and found.columns["reward"].values.tolist() == values(10, 0)


def test_an_empty_path_is_no_name_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "run.jsonl").write_text('{"step": 4, "reward": 0.5}\n{"step": 8, "reward": 0.75}\n')
    monkeypatch.chdir(tmp_path)
    assert len(search(".", lambda log: True).logs) == 1
    with pytest.raises(RunError, match="the path is empty; give the log"):
        search("", lambda log: True)
