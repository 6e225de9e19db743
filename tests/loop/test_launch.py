"""The front door: what a program gets of a run, what a run may change on resuming, and that one process writes it."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from pathlib import Path

import pytest

import steadyrl
from steadyrl.core import config
from steadyrl.core.errors import ConfigError, DataError, RunError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.core.types import Problem
from steadyrl.environments.search.cache import cache_folder
from steadyrl.loop import checkpoint, record
from steadyrl.loop.launch import digest, run, sample
from steadyrl.loop.preflight.run import preflight
from steadyrl.loop.tasks.check import check_task
from steadyrl.loop.tasks.prompts import PromptsTask
from steadyrl.loop.train import Watch, joined, open_session
from steadyrl.show.report.write import write_report
from tests import needs

# A program of its own that trains on and on, for what only a second process can show.
TRAINER = "import sys, json, steadyrl; steadyrl.run(json.loads(sys.argv[1]))"


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(8)))
    return {
        "run": {"steps": 4, "checkpoint_every": 2, "folder": str(tmp_path / "runs"), "preflight": "off"},
        "backend": {"name": "toy"},
        "task": {"name": "prompts", "args": {"path": str(tmp_path / "prompts.jsonl")}},
        "rewards": {"length": 1.0},
        "sampling": {"max_new_tokens": 4},
        "rollout": {"prompts_per_step": 4},
        "update": {"minibatches": 1},
    }


def test_a_program_trains_reads_what_came_of_it_and_samples(settings):
    found = steadyrl.run(settings, ["run.steps=3"])
    assert found.status == "finished"
    assert [line["step"] for line in found.metrics()] == [0, 1, 2]
    assert set(found.evaluations()) == {"after", "before"}
    assert all("answers" in line for line in found.evaluations()["after"])
    assert found.findings() == [] and found.checkpoints() == [2, 3]
    answers = steadyrl.sample(found, "say 9", samples=2)
    assert [answer.text for answer in answers] == [answer.text for answer in sample(found.path, "say 9", samples=2)]
    assert len(sample(found, "say 9", greedy=True)) == 1


def test_a_policy_is_asked_without_the_key_of_its_judge(settings):
    found = run(settings)
    resolved = json.loads(found.resolved_file.read_text())
    address = {"base_url": "http://localhost:1/v1", "model": "m", "key_env": "NOT_SET_ANYWHERE"}
    resolved["rewards"]["judge"] = address
    found.resolved_file.write_text(json.dumps(resolved))
    assert len(sample(found, "say 9", samples=2)) == 2


def test_the_recorded_command_is_one_that_a_shell_reads_as_it_was_given(settings, monkeypatch):
    words = ["train", "a config.toml", 'task.args.prompt="<b> {request} | $HOME\\n"', "run.steps=3"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/steadyrl", *words])
    command = record.begin(config.resolve(settings), "").info()["command"]
    assert shlex.split(command) == ["steadyrl", *words]


def test_a_file_a_mapping_and_a_config_give_the_same_run(settings, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(
        f"run = {{steps = 4, checkpoint_every = 2, folder = '{tmp_path}/runs', preflight = 'off'}}\n"
        f"backend.name = 'toy'\ntask = {{name = 'prompts', args = {{path = '{tmp_path}/prompts.jsonl'}}}}\n"
        "rewards.length = 1.0\nsampling.max_new_tokens = 4\nrollout.prompts_per_step = 4\nupdate.minibatches = 1\n"
    )
    runs = [run(path), run(settings), run(config.resolve(settings))]
    rewards = [[line["reward/mean"] for line in found.metrics()] for found in runs]
    assert rewards[0] == rewards[1] == rewards[2]
    assert runs[0].config_file.read_text() == path.read_text()


def test_a_run_that_a_watch_stopped_goes_on_to_the_same_end(settings):
    whole, seen = run(settings), []
    stopped = run(settings, watch=Watch(step=seen.append, stop=lambda: len(seen) == 2))
    assert stopped.status == "interrupted"
    resumed = run(resume=stopped)
    assert resumed.status == "finished" and resumed.info()["attempt"] == 1
    one, other = ([{"reward": m["reward/mean"], "grad": m["grad_norm"]} for m in r.metrics()] for r in (whole, resumed))
    assert one == other


def test_the_processor_time_of_all_attempts_is_recorded_and_unknown_where_one_was_killed(settings, monkeypatch):
    # Of a process and its children: when an attempt and its training begin, and after it.
    clock = iter((1.0, 1.0, 4.0, 10.0, 10.0, 12.5, 20.0, 20.0, 21.0))
    monkeypatch.setattr(record.os, "times", lambda: (next(clock), 0.0, 0.0, 0.0, 99.0))
    seen = []
    found = run(settings, watch=Watch(step=seen.append, stop=lambda: len(seen) == 2))
    assert found.info()["processor_s"] == 3.0
    found = run(resume=found)
    assert found.info()["processor_s"] == 5.5
    assert 2**25 < found.info()["memory"]["peak"] < found.info()["memory"]["total"]
    found.info_file.write_text(json.dumps({**found.info(), "status": "running", "ended": None}))
    assert run(resume=found, overrides="run.steps=5").info()["processor_s"] is None


def test_a_backend_that_does_not_read_the_checkpoints_is_refused_and_the_run_stays_as_it_was(settings, tiny_models):
    stopped = run(settings | {"model": {"path": str(tiny_models["llama"])}})
    before = stopped.resolved_file.read_text()
    with pytest.raises(ConfigError, match=r"backend\.name=toy wrote; resume with backend\.name=toy, or start") as found:
        run(resume=stopped, overrides=["run.steps=5", "backend.name=torch"])
    assert "delete" not in str(found.value) and "earlier" not in str(found.value)
    assert stopped.resolved_file.read_text() == before
    assert run(resume=stopped, overrides=["run.steps=5"]).checkpoints()[-1] == 5


def test_a_watch_may_take_apart_the_lines_that_it_gets(settings):
    """As in wandb.log(line, step=line.pop("step"))."""
    untouched = run(settings)
    assert [line["step"] for line in run(settings, watch=Watch(step=dict.clear)).metrics()] == [0, 1, 2, 3]
    for count in (0, -2):
        with pytest.raises(ConfigError, match=f"samples: got {count}; expected 1 or more"):
            sample(untouched, "say 9", samples=count)


def test_a_watch_hears_what_happens_before_the_steps_and_how_many_there_are(settings):
    heard, opened, totals = [], [], []

    class Inside:
        def __enter__(self):
            totals.append("in")

        def __exit__(self, *error):
            totals.append("out")

    watch = Watch(note=heard.append, opened=opened.append, steps=lambda total: totals.append(total) or Inside())
    found = run(settings, ["run.preflight=warn"], watch=watch)
    assert totals == [4, "in", "out"]
    assert any(line.startswith("preflight: ") for line in heard)
    assert [run.path for run in opened] == [found.path]


def test_how_long_a_run_took_is_measured_by_a_clock_that_nobody_sets(settings, monkeypatch):
    day, clock = 86_400.0, time.time
    steps = []
    monkeypatch.setattr(time, "time", lambda: clock() - 3 * day * len(steps))
    found = run(settings, watch=Watch(step=steps.append))
    assert found.info()["ended"] - found.info()["started"] < -9 * day and 0 < found.info()["elapsed_s"] < 600


def test_what_is_wrong_leaves_no_run_directory(settings, tmp_path):
    with pytest.raises(ConfigError, match="the preflight failed: completions, rewards"):
        run(settings, ["run.preflight=stop", "sampling.max_new_tokens=1"])
    with pytest.raises(ConfigError, match=r"update\.learning_rat: unknown setting"):
        run(settings, ["update.learning_rat=1"])
    with pytest.raises(ConfigError, match="give a config file"):
        run()
    assert not (tmp_path / "runs").exists()


def test_a_run_is_resumed_with_its_own_config_alone(settings):
    found = run(settings)
    with pytest.raises(ConfigError, match="either a config or a run to resume"):
        run(settings, resume=found)
    with pytest.raises(
        ConfigError,
        match=r"'update.epochs=1' cannot change on resuming; only backend.args, ",
    ):
        run(overrides=["update.epochs=1"], resume=found)
    with pytest.raises(RunError, match=r"is finished: 4 of 4 steps; add run.steps=N"):
        run(resume=found)
    assert len(run(overrides=["run.steps=6"], resume=found).metrics()) == 6


def test_a_run_is_not_resumed_to_fewer_steps_than_its_curves_show(settings):
    seen = []
    found = run(settings, ["run.checkpoint_every=1"], watch=Watch(step=seen.append, stop=lambda: len(seen) == 3))
    with pytest.raises(RunError, match=r"has made 3 steps, and with these settings it would have 2: .*run.steps=N"):
        run(overrides=["run.steps=2"], resume=found)
    assert run(overrides=["run.steps=3"], resume=found).status == "finished"


def test_a_run_that_trains_longer_ended_with_no_evaluation_until_it_ends_again(settings):
    found = run(settings)
    after = found.evaluations()["after"]
    killed = Watch(step=lambda line: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(overrides=["run.steps=6"], resume=found, watch=killed)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "after" not in found.evaluations() and found.evaluations()["000004"] == after
    run(resume=found)
    assert {"after", "000004"} <= set(found.evaluations())


def test_a_run_killed_between_its_last_evaluation_and_its_end_leaves_the_files_of_an_unbroken_one(settings):
    found = run(settings)
    files, after = sorted(found.path.rglob("*")), found.evaluations()["after"]
    write_json(found.info_file, {**found.info(), "status": "running", "ended": None})
    assert run(resume=found).status == "finished"
    assert sorted(found.path.rglob("*")) == files and found.evaluations()["after"] == after


def test_data_that_changed_stops_a_resume_unless_it_is_accepted(settings, tmp_path):
    found = run(settings)
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "something else"}) + "\n")
    before = found.info_file.read_bytes()
    with pytest.raises(RunError, match=r"changed since it began \(.*train: \d problems then, \d now.*--accept-changed"):
        run(overrides=["run.steps=6"], resume=found)
    assert found.info_file.read_bytes() == before
    assert run(overrides=["run.steps=6"], resume=found, accept_changed_data=True).status == "finished"


def test_data_that_were_accepted_once_are_accepted_for_good_and_others_are_not(settings, tmp_path):
    texts = {name: "".join(json.dumps({"prompt": f"{name} {i}"}) + "\n" for i in range(9)) for name in ("tell", "ask")}
    first, data = (tmp_path / "prompts.jsonl").read_text(), tmp_path / "prompts.jsonl"
    found, began = run(settings), time.time()
    data.write_text(texts["tell"])
    run(overrides=["run.steps=6"], resume=found, accept_changed_data=True)
    (entry,) = found.info()["accepted_data"]
    assert entry["step"] == 4 and began <= entry["time"] <= time.time()
    assert entry["data"]["train"]["sha256"] != found.info()["data"]["train"]["sha256"]
    for steps, text in enumerate([texts["tell"], first], start=7):
        data.write_text(text)
        run(overrides=[f"run.steps={steps}"], resume=found, accept_changed_data=steps == 7)
    assert found.info()["accepted_data"] == [entry]
    data.write_text(texts["ask"])
    with pytest.raises(RunError, match=r"changed since they were accepted .*--accept-changed-data"):
        run(overrides=["run.steps=9"], resume=found)
    write_report(found)
    assert "other data from step 4 on, accepted 20" in (found.report_folder / "report.md").read_text()


@pytest.mark.parametrize("call", ["note", "opened", "step", "steps", "ended"])
def test_an_error_of_a_watch_ends_the_run_as_failed_unless_it_has_ended(settings, tmp_path, call):
    def fail(*arguments):
        raise LookupError("no such cell")

    watch = Watch(**{call: fail})
    with pytest.raises(LookupError, match="no such cell"):
        run(settings, watch=watch)
    (directory,) = (tmp_path / "runs").iterdir()
    found = RunDir(directory)
    ended = ("finished", None) if call == "ended" else ("failed", "LookupError: no such cell")
    assert (found.status, found.info()["error"]) == ended and found.info()["ended"]
    if call != "note":  # which a resume without changes has none of
        with pytest.raises(LookupError):
            run(overrides=["run.steps=5"], resume=found, watch=watch)
        assert (found.status, found.info()["error"]) == ended
    assert run(overrides=["run.steps=6"], resume=found).status == "finished"


def test_a_run_whose_config_was_edited_says_that_a_resume_does_not_read_it(settings):
    found, heard = run(settings), []
    rate = found.resolved()["update"]["learning_rate"]
    run(overrides=["run.steps=5"], resume=found, watch=Watch(note=heard.append))
    assert not [line for line in heard if "config.toml" in line]
    found.config_file.write_text(found.config_file.read_text() + "\n[update]\nlearning_rate = 0.5\n")
    run(overrides=["run.steps=6"], resume=found, watch=Watch(note=heard.append))
    assert [line for line in heard if line.startswith("config.toml changed since the run began, and a resume does not")]
    assert found.resolved()["update"]["learning_rate"] == rate


@pytest.mark.parametrize(("lost", "line"), [([6], "checkpoint is that of step 4"), ([2, 4, 6], "is no checkpoint")])
def test_a_run_whose_checkpoints_were_not_copied_along_says_which_steps_are_made_again(settings, lost, line):
    copied = steadyrl.run(settings, ["run.steps=6", "run.keep_checkpoints=3"])
    for step in lost:
        shutil.rmtree(copied.checkpoint_folder(step))
    heard = []
    steadyrl.run(resume=copied, overrides=["run.steps=7"], watch=steadyrl.Watch(note=heard.append))
    assert [
        text for text in heard if text.endswith(f"{line}, and 6 steps had been made: those behind it are made again")
    ]
    steadyrl.run(resume=copied, overrides=["run.steps=8"], watch=steadyrl.Watch(note=heard.append))
    assert len([text for text in heard if "made again" in text]) == 1


def test_settings_that_were_edited_by_hand_are_named_once_and_other_spellings_by_steadyrl_are_not(settings):
    found, heard = run(settings, ["run.steps=2"]), []
    for steps in (3, 4):  # which a resume writes into resolved.json itself
        run(overrides=[f"run.steps={steps}"], resume=found, watch=Watch(note=heard.append))
    assert not [line for line in heard if "resolved.json" in line]
    write_json(found.resolved_file, {**found.resolved(), "sampling": {"max_new_tokens": 5}})
    for steps in (5, 6):
        run(overrides=[f"run.steps={steps}"], resume=found, watch=Watch(note=heard.append))
    assert len([line for line in heard if line.startswith("resolved.json was edited since the run last began")]) == 1


@pytest.mark.parametrize(
    ("ask", "show", "shows"),
    [(None, None, None), (Problem("x", "a"), None, ()), (Problem("x", "a"), [7, "b"], ("7", "b"))],
)
def test_what_a_task_makes_of_a_request_and_shows_of_an_answer_is_looked_at(settings, monkeypatch, ask, show, shows):
    found = run(settings, ["run.steps=1"])
    for name, value in (("ask", ask), ("show", show)):
        monkeypatch.setattr(PromptsTask, name, lambda self, text, value=value: value)
    if ask is None:
        with pytest.raises(DataError, match="the task 'prompts': ask returned None; expected a Problem"):
            sample(found, "say 3")
    else:
        assert [answer.shows for answer in sample(found, "say 3", samples=2)] == [shows] * 2


def test_an_error_of_recorded_settings_names_their_file(settings):
    found = run(settings)
    write_json(found.resolved_file, {**found.resolved(), "update": {"learning_speed": 2.0}})
    for use in (lambda: run(overrides=["run.steps=6"], resume=found), lambda: sample(found, "say 3")):
        with pytest.raises(ConfigError, match=r"^'.*resolved\.json': update\.learning_speed: unknown setting"):
            use()


def test_numbers_of_an_algorithm_that_a_checkpoint_has_not_begin_as_in_a_new_run(settings):
    found = run({**settings, "algorithm": {"name": "grpo"}})
    write_json(found.resolved_file, {**found.resolved(), "algorithm": {"name": "ppo"}})
    resumed = run(overrides=["run.steps=6"], resume=found)
    assert len(resumed.metrics()) == 6 and checkpoint.read_state(resumed, 6).algorithm["kl_coef"] == 0.05


def test_the_steps_of_a_watch_may_return_nothing_and_what_is_no_context_is_refused_before_an_evaluation(settings):
    seen = []
    assert run(settings, watch=Watch(steps=seen.append)).status == "finished" and seen == [4]
    for watch in (Watch(steps=lambda total: total), joined(Watch(), Watch(steps=lambda total: total))):
        phases = []
        with pytest.raises(ConfigError, match=r"Watch\.steps returned 4; expected a context for `with`, or None"):
            run(settings, watch=joined(watch, Watch(phase=phases.append)))
        assert not [line for line in phases if "evaluating" in line]


def test_settings_through_a_pipe_are_read_once_and_recorded(settings, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = config.to_toml(settings)
    writer = subprocess.Popen(["sh", "-c", 'printf %s "$1" > "$2"', "sh", text, str(tmp_path / "pipe")])
    found = run(tmp_path / "pipe")
    assert writer.wait(10) == 0
    assert config.load(found.config_file).rewards == {"length": 1.0}


def test_a_run_goes_on_where_its_data_moved_and_with_the_threads_and_trackers_of_another_machine(settings, tmp_path):
    found = run(settings)
    moved = (tmp_path / "prompts.jsonl").rename(tmp_path / "moved.jsonl")
    with pytest.raises(DataError, match=r"there is no file .*prompts\.jsonl; .*say where to: task\.args\.path=PATH"):
        run(overrides=["run.steps=5"], resume=found)
    with pytest.raises(DataError, match=r"there is no file .*prompts\.jsonl; check the path"):
        run(overrides=["run.steps=5"], resume=found)
    resumed = run(overrides=["run.steps=5", f"task.args.path={moved}", "backend.threads=1"], resume=found)
    assert resumed.status == "finished" and resumed.resolved()["task"]["args"]["path"] == str(moved)
    assert "run.trackers" in config.free_on_resume(config.resolve(settings))
    moved.write_text(moved.read_text().replace("say 3", "say x"))
    other = moved.rename(tmp_path / "other.jsonl")
    with pytest.raises(RunError, match="texts or columns differ"):
        run(overrides=["run.steps=6", f"task.args.path={other}"], resume=found)


def test_a_text_that_changed_is_noticed_at_equal_counts(settings, tmp_path):
    found = run(settings)
    (tmp_path / "prompts.jsonl").write_text((tmp_path / "prompts.jsonl").read_text().replace("say 3", "say x"))
    with pytest.raises(RunError, match="texts or columns differ"):
        run(overrides=["run.steps=6"], resume=found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Decimal("1.5"), Decimal("1.6")),
        (date(2026, 1, 1), date(2026, 1, 2)),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=UTC)),
        (clock(12), clock(13)),
        (timedelta(1), timedelta(2)),
        (b"one", b"two"),
        ([{"image": b"one"}], [{"image": b"two"}]),
    ],
)
def test_a_column_of_parquet_that_changed_is_noticed_whatever_its_kind(settings, tmp_path, before, after):
    arrow, parquet = needs.package("pyarrow", "data"), needs.package("pyarrow.parquet", "data")
    path = tmp_path / "prompts.parquet"

    def write(value):
        rows = [{"prompt": f"say {i}", "answer": value} for i in range(8)]
        parquet.write_table(arrow.Table.from_pylist(rows), path)

    write(before)
    found = run(settings, [f"task.args.path={path}"])
    write(before)
    assert run(overrides=["run.steps=5"], resume=found).status == "finished"
    write(after)
    with pytest.raises(RunError, match="texts or columns differ"):
        run(overrides=["run.steps=6"], resume=found)


def test_the_digest_of_plain_columns_stays_what_it_was_in_earlier_runs():
    class Own:
        pass

    columns = {"b": [1, 2.5, None], "a": {"x": "é", "y": True}, "own": Own()}
    said = '{"a": {"x": "\\u00e9", "y": true}, "b": [1, 2.5, null], "own": "Own"}'
    line = json.dumps(["p", "say", said, {"role": "user", "content": "say"}])
    expected = hashlib.sha256(line.encode()).hexdigest()
    assert digest([Problem("p", "say", columns, ({"role": "user", "content": "say"},))]) == expected


def test_one_process_writes_a_run(settings, tmp_path):
    long = {**settings, "run": {**settings["run"], "steps": 100_000}}
    writer = subprocess.Popen([sys.executable, "-c", TRAINER, json.dumps(long)])
    try:
        deadline = time.monotonic() + 60
        while not (runs := list((tmp_path / "runs").glob("*/metrics.jsonl"))) and time.monotonic() < deadline:
            time.sleep(0.1)
        found = RunDir(runs[0].parent)
        with pytest.raises(RunError, match=rf"another process is training .* \(process {writer.pid} on "):
            run(resume=found)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        resumed = run(resume=found, watch=Watch(stop=lambda: True))
        assert resumed.status == "interrupted"
    finally:
        writer.kill()
        writer.wait()


def test_a_run_is_named_after_its_algorithm_however_the_config_names_it(settings):
    for name in ("ppo", "steadyrl.algorithms.ppo"):
        found = run(settings, [f"algorithm.name={name}", "run.steps=1"])
        assert "-ppo-prompts-s0" in found.path.name


def test_what_trains_and_what_judges_is_said_in_one_line_everywhere(settings, tmp_path):
    folder = tmp_path / "sums"
    folder.mkdir()
    for split, count in {"train": 5, "test": 4}.items():
        rows = [{"prompt": f"{split} {i}" if i else "both"} for i in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings["task"]["args"]["path"] = str(folder)
    settings["evaluate"] = {"problems": 4}
    notes = []
    found = run(settings, watch=Watch(note=notes.append))
    line = (
        f"trains on 5 problems ({folder}: train), judged by 4 held-out problems ({folder}: test); "
        "1 of the held-out prompts are trained on too"
    )
    assert line in notes
    data = found.info()["data"]
    assert (data["train"]["problems"], data["heldout"]["source"]) == (5, f"{folder}: test")
    sent = line.replace(str(folder), "sums")  # a report is read elsewhere
    assert f"| data | {sent}" in (write_report(found.path) / "report.md").read_text().replace("\\", "")
    (checked,) = [c for c in check_task(config.resolve(settings)) if c.check == "problems"]
    (looked,) = [f for f in preflight(open_session(config.resolve(settings))) if f.check == "data"]
    assert (checked.message, checked.state, looked.message, looked.state) == (line, "ok", line, "ok")


def test_a_run_whose_json_counts_problems_alone_goes_on(settings):
    found = run(settings)
    info = found.info()
    for split in info["data"].values():
        for name in ("source", "prompts", "of", "trained_on_too"):
            split.pop(name, None)
    found.info_file.write_text(json.dumps(info))
    assert run(resume=found, overrides=["run.steps=5"]).status == "finished"


def test_a_run_stays_in_its_folder_where_a_reward_changes_the_current_one(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    (tmp_path / "d.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    settings |= {"task": {"name": "prompts", "args": {"path": "d.jsonl", "heldout": "d.jsonl"}}}
    settings |= {"rewards": {"toy_rewards:changes_the_folder": 1.0}, "rollout": {"prompts_per_step": 2}}
    settings["run"] |= {"folder": "runs", "preflight": "warn", "rollouts_every": 1}
    before = {path.name for path in Path(__file__).parent.iterdir()}
    found = run(settings)
    again = run(resume=RunDir(os.path.relpath(found.path)), overrides=["run.steps=6"])
    assert Path.cwd() == tmp_path and {path.name for path in Path(__file__).parent.iterdir()} == before
    assert again.path == found.path == next((tmp_path / "runs").iterdir())
    assert again.status == "finished" and again.checkpoints()[-1] == 6 and len(again.metrics()) == 6
    assert len(list((found.path / "rollouts").glob("*.jsonl"))) == 6 and set(again.evaluations()) >= {"before", "after"}


def lengthened(settings, schedule, *overrides, steps=6):
    """Return the rates of a finished run of six steps that goes on to twelve, and what was noted."""
    update = {"schedule": schedule, "warmup_steps": 0, "learning_rate": 1e-3, "epochs": 1, "minibatches": 1}
    notes, ended = [], []
    watch = Watch(step=ended.append, stop=lambda: len(ended) == steps)
    found = run({**settings, "update": update, "run": {**settings["run"], "steps": 6, "doctor_every": 0}}, watch=watch)
    run(resume=found, overrides=["run.steps=12", *overrides], watch=Watch(note=notes.append))
    return [round(line["learning_rate"], 6) for line in found.metrics()], notes


def test_a_run_that_is_lengthened_under_a_falling_schedule_is_told_how_its_rate_jumps(settings):
    rates, notes = lengthened(settings, "linear")
    assert rates[5:8] == [0.000167, 0.0005, 0.000417]  # 1/6, then 6/12 and 5/12 of it
    assert notes == [
        "the learning rate goes from 0.000167 (step 5) to 0.0005 (step 6), for update.schedule = 'linear' now falls "
        "over 12 steps; to keep the rate as it was, resume with update.schedule_steps=6"
    ]


def test_the_offer_keeps_the_rate_and_no_more_is_said(settings):
    rates, notes = lengthened(settings, "linear", "update.schedule_steps=6")
    assert (rates[5:], notes) == ([0.000167] * 7, [])
    rates, notes = lengthened(settings, "linear", "update.schedule_steps=6", steps=3)
    assert (rates[3:7], notes) == ([0.0005, 0.000333, 0.000167, 0.000167], [])


@pytest.mark.parametrize(("schedule", "steps"), [("constant", 6), ("cosine", 3)])
def test_a_jump_is_told_wherever_there_is_one(settings, schedule, steps):
    rates, notes = lengthened(settings, schedule, steps=steps)
    told = [f"from {rates[steps - 1]:.3g} (step {steps - 1}) to {rates[steps]:.3g} (step {steps})"]
    assert [told[0] in note for note in notes] == ([] if schedule == "constant" else [True])


def test_a_user_without_a_home_is_answered_and_nothing_is_written_into_a_folder_called_tilde(tmp_path, monkeypatch):
    def no_entry(user):
        raise KeyError(user)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    with pytest.raises(ConfigError, match=r"there is no config file '~/c\.toml'"):
        run("~/c.toml")
    with pytest.raises(RunError, match="there is no run directory '~/runs/x'"):
        run(resume="~/runs/x")
    with pytest.raises(OSError):
        cache_folder().mkdir(parents=True)
    assert list(tmp_path.iterdir()) == []


KEY = "plain-text-7"
HIDDEN = [
    {"model": {"template_args": {"api_key": KEY}}},
    {"model": {"template_args": {"note": "Bearer abcdef0123456789abcdef"}}},
    {"model": {"template_args": {"note": f"Bearer {KEY}"}}},
    {"model": {"template_args": {"sk-proj-0123456789abcdefXYZ": 1}}},
    {"rewards": {"judge": {"model": "m", "base_url": "http://h/v1/9f8e7d6c5b4a39281f0e/chat"}}},
    {
        "rewards": {
            "judge": {
                "model": "m",
                "base_url": "http://h/v1",
                "request": {"extra_headers": {"X-Team": "9f8e7d6c5b4a3928"}},
            }
        }
    },
    {"sampler": {"engine": "vllm", "args": {"url": f"http://user:{KEY}@h:8000"}}},
    {"sampler": {"engine": "vllm", "args": {"url": [f"http://h:8000?token={KEY}"]}}},
    {"task": {"name": "odd:Task", "args": {"client_secret": KEY}}},
]


@pytest.mark.parametrize("data", HIDDEN)
def test_a_key_anywhere_in_a_config_is_refused_before_anything_shows_it(settings, tmp_path, data):
    with pytest.raises(ConfigError, match="holds a key, a password or what looks like one") as caught:
        run({**settings, **data})
    assert not any(part in str(caught.value) for part in (KEY, "9f8e", "abcdef", "sk-proj"))
    assert not (tmp_path / "runs").exists()


def test_keys_in_comments_of_a_config_do_not_reach_the_run(settings, tmp_path):
    data = settings["task"]["args"]["path"]
    file = tmp_path / "c.toml"
    file.write_text(
        f"# export OPENAI_API_KEY={KEY}\n# curl http://me:{KEY}@host\n"
        f'task = {{ name = "prompts", args = {{ path = "{data}" }} }}\nbackend.name = "toy"\nrewards.length = 1.0\n'
        f'run = {{ steps = 1, preflight = "off", folder = "{tmp_path / "runs"}" }}\n'
    )
    found = run(file, ["update.minibatches=1", "rollout.prompts_per_step=4"])
    assert "# export OPENAI_API_KEY=[key]" in found.config_file.read_text()
    assert all(KEY.encode() not in path.read_bytes() for path in found.path.rglob("*") if path.is_file())
