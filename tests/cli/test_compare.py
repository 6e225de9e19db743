"""`steadyrl compare`: what it prints, what it writes, and one line for what cannot be compared."""

import json
import re
import shutil
import sys

import pytest

from steadyrl.cli.main import main
from steadyrl.core import config
from steadyrl.loop import record
from steadyrl.loop.train import open_session, train
from steadyrl.show.page.records import Answer, Sample
from steadyrl.show.page.terminal import show

CONFIG = """
[run]
steps = 4
checkpoint_every = 2
folder = "runs"
preflight = "off"
[backend]
name = "toy"
[task]
name = "prompts"
args = { path = "prompts.jsonl", heldout = "heldout.jsonl" }
[rewards]
length = 1.0
[sampling]
max_new_tokens = 8
[rollout]
prompts_per_step = 4
[update]
minibatches = 1
learning_rate = 0.3
warmup_steps = 0
kl_old_limit = 10.0
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a folder with a config, prompts and a finished run, once for all tests."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "config.toml").write_text(CONFIG)
    for name, count in (("prompts", 8), ("heldout", 12)):
        lines = (json.dumps({"prompt": f"{name} {i}", "difficulty": i % 2}) + "\n" for i in range(count))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = config.load("config.toml")
        run = record.begin(settings, CONFIG)
        record.close(run, train(open_session(settings), run), settings)
    return folder


@pytest.fixture
def steadyrl(made, tmp_path, monkeypatch, capsys):
    """Run the command line in a copy of that folder; return (exit code, stdout, stderr)."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def run(steadyrl, tmp_path):
    """Return the name of the finished run."""
    (folder,) = (tmp_path / "runs").iterdir()
    return f"runs/{folder.name}"


@pytest.fixture
def refused(steadyrl):
    """Compare what must be refused: exit code 2 and one line; return what stands behind "error: "."""

    def compare(*arguments):
        code, out, err = steadyrl("compare", *arguments)
        assert (code, out) == (2, "")
        last = err.splitlines()[-1]
        assert all(line.startswith("answering ") for line in err.splitlines()[:-1])
        assert last.startswith("error: ")
        return last.removeprefix("error: ")

    return compare


def test_the_verdict_comes_first_with_its_numbers(steadyrl, run):
    code, out, err = steadyrl("compare", "base", run, "--task", "config.toml")
    assert code == 0
    lines = out.splitlines()
    number = r"[+-]?\d+\.\d+"
    what = rf"reward {number} -> {number}, difference {number}, 95 % interval \[{number}, {number}\], 12 problems"
    could_not = rf"could not have shown less than {number} \(80 % power\)"
    undecided = rf"[Uu]ndecided, and this set {could_not}: {what}"
    verdict = rf"{undecided}|B \({run}\) is (better|worse) than A \(base\): {what}"
    assert re.fullmatch(rf"({verdict}); but the doctor calls B \({run}\) sick: truncated\.", lines[0])
    assert re.search(rf"^Greedy answers, one to each problem: ({verdict})\.$", out, re.MULTILINE)
    assert re.search(rf"[Tt]his set {could_not}", out)
    won, tied, lost = map(int, re.search(r"^problems won, tied, lost by B +(\d+), (\d+), (\d+) *$", out, re.M).groups())
    assert won + tied + lost == 12
    assert re.search(r"^chance alone, by flipped signs +p [=<] ", out, re.MULTILINE)
    (row,) = [line.split() for line in lines if line.split()[:2] == ["reward", "12"]]
    assert row[1] == "12"
    assert float(row[3]) - float(row[2]) == pytest.approx(float(row[4]), abs=0.0011)
    assert "By difficulty" in out
    # On a busy machine other lines say what takes long.
    assert [line for line in err.splitlines() if line.startswith("answering")] == [
        "answering 12 problems: A = base (base model 'base'), sampled",
        "answering 12 problems: A = base (base model 'base'), greedy",
        f"answering 12 problems: B = {run} (run, step 4), sampled",
        f"answering 12 problems: B = {run} (run, step 4), greedy",
    ]


def test_json_is_one_object_and_the_report_is_written_from_it(steadyrl, run, tmp_path):
    arguments = ("compare", f"{run}@2", run, "--task", run, "--samples", "2", "--margin", "5", "--json")
    code, out, err = steadyrl(*arguments, "--report", "out")
    assert code == 0
    found = json.loads(out)
    assert found == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (found["samples"], found["decoding"], found["metric"]) == (2, "sampled", "reward")
    assert (found["verdict"]["word"], found["verdict"]["margin"]) == ("equal", 5.0)
    assert [found[side]["what"] for side in "ab"] == ["run, step 2", "run, step 4"]
    assert err.splitlines()[-1] == "report: out/comparison.html"
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "are equal within 5.0" in page
    assert f"B = {run} (run, step 4)" in page


def test_a_checkpoint_folder_problems_decoding_and_overrides_are_obeyed(steadyrl, run):
    checkpoint = f"{run}/checkpoints/000002"
    options = ("--problems", "5", "--decoding", "greedy", "--metric", "tokens", "--json")
    code, out, _ = steadyrl("compare", checkpoint, "base", "--task", "config.toml", *options, "run.seed=3")
    assert code == 0
    found = json.loads(out)
    assert (found["verdict"]["change"]["n"], found["samples"], found["seed"]) == (5, 1, 3)
    assert (found["metric"], found["decoding"]) == ("tokens", "greedy")


def test_the_answers_that_will_be_used_are_judged_and_the_others_stand_beside(steadyrl, run):
    arguments = ("compare", "base", run, "--task", "config.toml", "--json")
    for overrides, judged, beside in (
        (("evaluate.deploy=greedy",), "greedy", "sampled"),
        (("evaluate.deploy=greedy", "--decoding", "sampled"), "sampled", "greedy"),
    ):
        code, out, _ = steadyrl(*arguments, *overrides)
        assert code == 0
        record = json.loads(out)
        assert (record["decoding"], record["beside"]["decoding"]) == (judged, beside)
        assert record["verdict"]["change"]["mean_after"] != record["beside"]["verdict"]["change"]["mean_after"]
        assert record["doubts"][-1] == f"the doctor calls B ({run}) sick: truncated"
        assert record["sentences"][-1].startswith(f"{beside} answers, one to each problem: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("base", "base", "--task", "absent.toml"), "there is no config file 'absent.toml'"),
        (("base", "base", "--task", "."), "'.' is not a run directory: it has no run.json"),
        (("base", "base", "--task", "config.toml", "update.rate=1"), "update.rate: unknown setting"),
        (
            ("base", "base", "--task", "config.toml", "--metric", "f1"),
            "no reward part is called 'f1'; there are: length",
        ),
        (
            ("base", "base", "base", "--task", "config.toml"),
            "got a third model, 'base'; expected two, A and B. `steadyrl report RUN RUN RUN` draws",
        ),
        (
            ("base", "base", "--task", "config.toml", "--margin", "-1"),
            "--margin is -1; expected a finite number above 0",
        ),
        (
            ("base", "base", "--task", "config.toml", "--margin", "nan"),
            "--margin is nan; expected a finite number above 0",
        ),
        (
            ("base", "base", "--task", "config.toml", "--margin", "inf"),
            "--margin is inf; expected a finite number above 0",
        ),
        (("base", "base", "--task", "config.toml", "--decoding", "greedy", "--samples", "4"), "--samples is 4, but"),
        (
            ("base", "base", "--task", "config.toml", "--problems", "1"),
            "--problems is 1, and one problem has no spread; expected 2 or more",
        ),
        (("base", "runs/absent", "--task", "config.toml"), "there is nothing at 'runs/absent'; expected 'base', a run"),
        (("config.toml", "base", "--task", "config.toml"), "'config.toml' is a file; expected 'base', a run"),
        (("RUN@3", "base", "--task", "config.toml"), "has no checkpoint after step 3; it has 2, 4"),
    ],
)
def test_wrong_input_ends_in_one_line_and_exit_code_2(refused, run, arguments, message):
    assert message in refused(*(argument.replace("RUN", run) for argument in arguments))


def test_a_file_in_place_of_the_folder_of_the_report_is_refused_before_any_answer(steadyrl):
    code, out, err = steadyrl("compare", "base", "base", "--task", "config.toml", "--report", "config.toml")
    assert (code, out) == (2, "") and "answering" not in err
    assert "Invalid value for '--report'" in err and "'config.toml' is a file" in err


@pytest.mark.parametrize("subjects", [("base", "RUN"), ("RUN", "base"), ("base", "RUN@2")])
def test_the_task_of_a_run_is_the_task(steadyrl, run, subjects):
    subjects = [subject.replace("RUN", run) for subject in subjects]
    options = ("--samples", "1", "--json")
    alone, named = (steadyrl("compare", *subjects, *task, *options) for task in ((), ("--task", run)))
    assert alone[0] == 0 and json.loads(alone[1]) == json.loads(named[1])


def test_a_comparison_without_a_run_and_a_task_is_refused(refused):
    message = refused("base", "runs/mistyped")
    assert "neither 'base' nor 'runs/mistyped' is a run directory" in message and "check the paths" in message


def test_an_unfinished_checkpoint_is_named(refused, run, tmp_path):
    (tmp_path / run / "checkpoints" / "000004" / "DONE").unlink()
    message = refused("base", f"{run}/checkpoints/000004", "--task", "config.toml")
    assert "is not finished: it has no file DONE" in message


def test_a_damaged_checkpoint_is_named(refused, run, tmp_path):
    (tmp_path / run / "checkpoints" / "000004" / "toy.npz").write_bytes(b"PK")
    assert "checkpoints/000004/toy.npz" in refused("base", run, "--task", "config.toml")


def test_a_second_subject_that_cannot_be_loaded_is_refused_before_the_first_answers(steadyrl, run, tmp_path):
    (tmp_path / run / "checkpoints" / "000004" / "toy.npz").write_bytes(b"PK")
    code, out, err = steadyrl("compare", "base", run, "--task", "config.toml", "--report", "out")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]*toy\.npz[^\n]*\n", err)
    assert len((tmp_path / "out" / "answers-a.jsonl").read_text().splitlines()) == 1  # what was asked, no answer


def test_a_missing_config_or_subject_is_usage(steadyrl):
    for arguments in (("base",), ("base", "base")):
        code, _, err = steadyrl("compare", *arguments)
        assert code == 2
        assert "Traceback" not in err


def test_what_is_not_printed_on_a_terminal_is_cut_nowhere(capsys):
    words = [f"word{number}" for number in range(30)]
    show([Sample("p", "prompt", (Answer(" ".join(words), " ".join(reversed(words))),))])
    printed = capsys.readouterr().out.split()
    assert all(printed.count(word) == 2 for word in words)


def test_ids_prompts_and_answers_cannot_act_on_the_terminal(capsys):
    wild = "a\x1b]0;title\x07\x9b2J\u202eb"
    show([Sample(wild, wild, [Answer(wild, wild), Answer(wild, wild)])])
    shown = capsys.readouterr().out
    assert shown.count("title") == 6
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
