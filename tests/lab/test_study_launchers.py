"""A study whose runs other processes make: it knows of them what their run directories and a launcher say."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steadyrl.cli.study import app
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir, append_line, write_json
from steadyrl.lab.jobs import Follow, find_run
from steadyrl.lab.launchers.command import Command, Ended, choose
from steadyrl.lab.launchers.processes import LOADED
from steadyrl.lab.study.plan import jobs, read_study
from steadyrl.lab.study.study import RunProgress, folder_of, make_one, run_study
from tests import needs

FILE = """
title = "One"
question = "Does it go on?"
seeds = [0]
[config]
run = {{steps = 16, checkpoint_every = 4, doctor_every = 0, preflight = "off"}}
backend = {{name = "toy"}}
task = {{name = "prompts", args = {{path = "{prompts}"}}}}
rewards = {{"toy_rewards:dies_once" = 1.0}}
sampling = {{max_new_tokens = 4}}
rollout = {{prompts_per_step = 4, samples_per_prompt = 4}}
evaluate = {{problems = 1}}
[launcher]
name = "processes"
[[experiments]]
name = "one"
title = "The only one"
"""


class Elsewhere:
    """A launcher whose machines see another folder: whatever they write, nothing of it is here."""

    def __init__(self):
        self.started = []

    def start(self, commands):
        self.started += commands

    def ended(self):
        return [Ended(command.name, 2, "FAILED") for command in self.started]

    def stop(self):
        self.started = []


@pytest.fixture
def study(tmp_path, monkeypatch):
    tests = Path(__file__).parent.parent
    monkeypatch.syspath_prepend(tests)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": letter * 3}) + "\n" for letter in "abcdefgh"))
    file = tmp_path / "one.toml"
    file.write_text(FILE.format(prompts=prompts))
    return read_study(file)


@pytest.mark.usefixtures("light_server")
def test_a_run_that_is_killed_goes_on_from_its_checkpoint_in_a_new_process(study, tmp_path):
    said = []
    follow = Follow(event=lambda event: said.append(event[1:]))
    assert run_study(study, tmp_path, choose("processes", {}, (), 1), follow) == {}
    assert ("cut", "cut (code -9); it goes on from its last checkpoint") in said
    assert said[-1] == ("end", "finished")
    run = find_run(folder_of(study, tmp_path), jobs(study)[0])
    assert [record["attempt"] for record in run.metrics()] == [0] * 4 + [1] * 12
    assert [step for what, step in said if what == "step"] == list(range(1, 17))


@pytest.mark.usefixtures("light_server")
def test_a_run_that_is_killed_before_its_first_checkpoint_is_given_up(study, tmp_path):
    (tmp_path / "died").write_text("." * 60)
    (job,) = jobs(study)
    failed = run_study(study, tmp_path, choose("processes", {}, (), 1))
    assert failed == {job.key: "it ended: code -9; start the study again to go on"}


def test_what_the_server_of_forks_loads_is_there():
    needs.skip_without_packages("torch", "transformers", extra="torch")
    assert [name for name in LOADED if find_spec(name) is None] == []


def test_a_folder_that_the_machines_do_not_share_is_named(study, tmp_path):
    (job,) = jobs(study)
    folder = tmp_path / "one"
    assert run_study(study, tmp_path, Elsewhere()) == {
        job.key: f"it ended (FAILED) and left neither a run nor a log in '{folder}'; give a --folder on a file system "
        "that all machines see"
    }


def test_a_machine_that_does_not_see_the_folder_makes_no_run(study, tmp_path):
    with pytest.raises(ConfigError, match=r"there is no '.*plan\.json' on .*file system that all machines see"):
        make_one(study, tmp_path, jobs(study)[0].key, lambda: False)
    assert not (tmp_path / "one").exists()


def test_a_machine_makes_the_runs_of_further_seeds_of_the_quick_version(study, tmp_path):
    study.path.write_text(
        study.path.read_text().replace("seeds = [0]", "seeds = [0, 1]").replace("dies_once", "share_of_a")
    )
    quick = read_study(study.path, quick=True, seeds=2)
    machine = Elsewhere()
    run_study(quick, tmp_path, machine)
    for command in machine.started:
        assert CliRunner().invoke(app, command.argv[4:]).exception is None
    assert [find_run(folder_of(quick, tmp_path), job) is not None for job in jobs(quick)] == [True, True]


def test_a_run_is_followed_by_what_it_appends_and_no_step_counts_twice(tmp_path):
    run = RunDir(tmp_path)
    write_json(run.info_file, {"attempt": 1})
    write_json(run.resolved_file, {"run": {"steps": 7, "epochs": 2}})
    command = Command("one", (), tmp_path, tmp_path / "log")
    events = []

    def reported(followed):
        events.clear()
        followed.report(Follow(event=lambda event: events.append(event[1:])))
        return list(events)

    followed = RunProgress(command, lambda: run)
    assert reported(followed) == []
    write_json(run.info_file, {"attempt": 2})
    assert reported(followed) == [("begin", (0, 7))]
    for step in range(3):
        append_line(run.metrics_file, {"step": step, "attempt": 2})
    assert reported(followed) == [("step", 1), ("step", 2), ("step", 3)]
    assert reported(followed) == []
    append_line(run.metrics_file, {"step": 2, "attempt": 3})  # made again from a checkpoint
    append_line(run.metrics_file, {"step": 3, "attempt": 3})
    assert reported(followed) == [("step", 4)]

    went_on = RunProgress(command, lambda: run)
    assert reported(went_on) == []
    write_json(run.info_file, {"attempt": 3})
    assert reported(went_on) == [("begin", (4, 7))]
    append_line(run.metrics_file, {"step": 4, "attempt": 3})
    assert reported(went_on) == [("step", 5)]


class Late:
    """A launcher that makes one run between two looks, so that each is seen only when it has ended."""

    def __init__(self):
        self.waiting = []

    def start(self, commands):
        self.waiting += commands

    def ended(self):
        one = self.waiting.pop(0)
        return [Ended(one.name, CliRunner().invoke(app, one.argv[4:]).exit_code)]

    def stop(self):
        self.waiting.clear()


def test_the_last_steps_of_a_run_are_told_before_its_end_and_none_after_it(study, tmp_path):
    (tmp_path / "died").write_text("." * 100)  # it does not die
    study.path.write_text(study.path.read_text().replace("seeds = [0]", "seeds = [0, 1]"))
    both, said = read_study(study.path), []
    assert run_study(both, tmp_path, Late(), Follow(event=lambda event: said.append(event[:2]))) == {}
    assert len(jobs(both)) == 2
    for job in jobs(both):
        assert [what for key, what in said if key == job.key] == ["begin", *["step"] * 16, "end"]


def test_a_run_of_a_study_that_has_changed_is_refused(study, tmp_path):
    with pytest.raises(ConfigError, match=r"has no run 'one-s0-0'; it has changed since the run was queued"):
        make_one(study, tmp_path, "one-s0-0", lambda: False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--launcher", "sge"], "no launcher is called 'sge'; known are processes, ray, slurm"),
        (["--launcher", "slurm", "--launcher-args", "gpu=1"], "launcher.args.gpu"),
        (["--launcher", "slurm", "--launcher-args", "gpus"], "--launcher-args gpus: expected KEY=VALUE"),
        (["--launcher", "slurm", "--launcher-args", "gpus=many"], "launcher.args.gpus: got 'many'"),
    ],
)
def test_a_wrong_launcher_is_one_line(study, tmp_path, words, said):
    result = CliRunner().invoke(app, ["run", str(study.path), "--folder", str(tmp_path / "s"), *words])
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
    assert not (tmp_path / "s").exists()
