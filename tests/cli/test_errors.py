"""Wrong input ends in one line that says what was got, what was expected and what to do, and in exit code 2."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from steadyrl.cli.main import main
from tests import needs

TOY = """
[run]
steps = 2
checkpoint_every = 1
folder = "runs"
[backend]
name = "toy"
[task]
name = "prompts"
args = {{ path = "prompts.jsonl" }}
[rewards]
length = 1.0
[sampling]
max_new_tokens = 4
[rollout]
prompts_per_step = 4
[update]
minibatches = 1
{more}
"""


def write_config(folder, more=""):
    (folder / "config.toml").write_text(TOY.format(more=more))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(8)))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in a folder with a config of the toy backend and prompts; modules found there are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_config(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("users_"):
            del sys.modules[name]


@pytest.fixture
def steadyrl(here, monkeypatch, capsys):
    """Run the command line; return (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def refused(steadyrl):
    """Run a command that must be refused: exit code 2 and one line; return what stands behind "error: "."""

    def run(*arguments):
        code, _, stderr = steadyrl(*arguments)
        assert code == 2
        assert re.fullmatch(r"error: [^\n]+\n", stderr), stderr
        return stderr.removeprefix("error: ").rstrip("\n")

    return run


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    """Train once for all tests that need a finished run."""
    folder = tmp_path_factory.mktemp("one_run")
    write_config(folder)
    code = "from steadyrl.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", code, "train", "config.toml"], cwd=folder, capture_output=True, check=True)
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def finished(one_run, here):
    """Return the directory of a finished run, a copy of its own."""
    return shutil.copytree(one_run, here / "runs" / one_run.name)


def interrupt(run):
    """Make a finished run one that was killed after its last checkpoint."""
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "running"}))


def cut(path):
    """Leave the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def no_runs(here):
    return not (here / "runs").exists()


def test_an_unknown_key_is_answered_with_one_that_exists(refused, here):
    write_config(here, "epoch = 3")
    assert refused("train", "config.toml") == "update.epoch: unknown setting; did you mean 'epochs'?"
    assert no_runs(here)


def test_an_unknown_key_in_an_override_is_answered_too(refused):
    message = refused("train", "config.toml", "algorithm.args.lambda=0.9")
    assert message == "algorithm.args.lambda: unknown setting; did you mean 'lam'?"


def test_a_wrong_type_is_named(refused):
    message = refused("train", "config.toml", "run.steps=many")
    assert message == "run.steps: got 'many'; expected a whole number"


def test_a_value_out_of_range_is_named_with_the_range(refused):
    message = refused("train", "config.toml", "sampling.top_p=1.5")
    assert message == "sampling.top_p: got 1.5; expected a number less than or equal to 1"


def test_all_problems_come_in_one_line(refused):
    message = refused("train", "config.toml", "run.steps=0", "update.epoch=1", "sampling.top_p=x")
    assert all(place in message for place in ("run.steps", "update.epoch", "sampling.top_p"))


def test_a_missing_config_is_named(refused):
    assert "there is no config file 'absent.toml'; expected a TOML file" in refused("train", "absent.toml")
    assert "give a config file" in refused("train")


def test_invalid_toml_is_named_with_its_line(refused, here):
    (here / "config.toml").write_text("[run]\nsteps == 3\n")
    assert re.search(r"config\.toml is not valid TOML: .*line 2", refused("train", "config.toml"))


def test_an_override_that_is_none_is_refused(refused):
    assert "'steps' is no override; expected section.key=value" in refused("train", "config.toml", "steps")


@pytest.mark.parametrize("option", ["--learning-rate=1e-3", "--epochs", "-s"])
def test_an_option_that_is_none_is_told_how_settings_are_given(refused, option):
    for command in ("train", "preflight"):
        message = refused(command, "config.toml", option)
        assert f"`steadyrl {command}` has no option {option.partition('=')[0]};" in message
        assert "no dashes, as in run.steps=200" in message


def test_an_option_like_another_is_answered_with_that_one(steadyrl):
    code, _, stderr = steadyrl("train", "--resum", "somewhere")
    assert code == 2 and "--resume" in stderr and "run.steps=200" not in stderr


@pytest.mark.parametrize(
    "command", [("doctor", "RUN", "--report"), ("compare", "RUN", "RUN", "--report"), ("report", "RUN", "RUN", "--to")]
)
def test_a_file_in_the_place_of_a_reports_folder_is_refused_before_the_work(steadyrl, finished, here, command):
    (here / "mine.txt").write_text("kept")
    words = [finished if word == "RUN" else word for word in command]
    code, stdout, stderr = steadyrl(*words, here / "mine.txt")
    assert (code, stdout) == (2, "") and command[-1] in stderr and (here / "mine.txt").read_text() == "kept"


def test_a_device_without_a_log_is_not_called_missing(refused):
    assert refused("doctor", "/dev/null").startswith("'/dev/null' is no file and no folder; check the path")


def test_an_unknown_task_reward_algorithm_or_backend_is_named(refused, here):
    assert "no task is called 'promts'; did you mean 'prompts'?" in refused("train", "config.toml", "task.name=promts")
    assert "no reward is called 'lenght'; did you mean" in refused("train", "config.toml", "rewards.lenght=1")
    assert "no backend is called 'tpu'; known are" in refused("train", "config.toml", "backend.name=tpu")
    assert "there is no module 'users_absent'" in refused("train", "config.toml", "rewards.users_absent:f=1")
    assert no_runs(here)


@pytest.mark.parametrize("path", ["./absent", "absent/deep/model", "/absent/model"])
def test_a_missing_model_folder_is_named(refused, here, path):
    needs.package("torch")
    message = refused("train", "config.toml", "backend.name=torch", f"model.path={path}")
    assert message.startswith(f"there is no model folder '{path}'; give 'base', a folder in Hugging Face layout, or")
    assert no_runs(here)


def test_a_folder_that_is_no_model_is_named(refused, here):
    needs.package("torch")
    (here / "model").mkdir()
    arguments = ("train", "config.toml", "backend.name=torch", "model.path=./model")
    assert "'./model' is not a model folder: it has no config.json" in refused(*arguments)
    (here / "model" / "config.json").write_text("{}")
    assert "'./model' holds no weights: expected model.safetensors" in refused(*arguments)


def test_a_missing_corpus_folder_is_named(refused, here):
    message = refused("train", "config.toml", "task.name=search", "task.args={corpus = './absent'}")
    assert "task.args.corpus is './absent', and there is no such folder; expected 'stdlib', 'generated', or" in message
    assert no_runs(here)


def corpus(here, name, line):
    """Write a folder in BEIR format whose file ``name`` has a line more."""
    files = {
        "corpus.jsonl": '{"_id": "d1", "text": "red cats"}\n{"_id": "d2", "text": "blue dogs"}\n',
        "queries.jsonl": '{"_id": "q1", "text": "what purrs"}\n{"_id": "q2", "text": "what barks"}\n',
        "qrels/all.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
    }
    (here / "mine" / "qrels").mkdir(parents=True)
    for file, text in files.items():
        (here / "mine" / file).write_text(text + (f"{line}\n" if file == name else ""))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("corpus.jsonl", '{"_id": "d3", "text": "cut of', "line 3: not valid JSON"),
        ("corpus.jsonl", '{"_id": "d3"}', "line 3: 'text' is missing"),
        ("queries.jsonl", '{"_id": "q1", "text": "again"}', "line 3: '_id' is 'q1' like on line 1"),
        ("qrels/all.tsv", "q1\td9\t1", "line 4: no document of corpus.jsonl has the id 'd9'"),
        ("qrels/all.tsv", "q1 d1 1", "line 4: got 1 columns"),
    ],
)
@pytest.mark.parametrize("command", [("train",), ("task", "check")])
def test_a_malformed_corpus_line_is_named_with_its_number(refused, here, command, name, line, message):
    corpus(here, name, line)
    found = refused(*command, "config.toml", "task.name=search", "task.args={corpus = 'mine'}", "rewards.retrieval=1")
    assert f"mine/{name}, {message}" in found


def test_a_malformed_line_of_prompts_is_named_with_its_number(refused, here):
    with (here / "prompts.jsonl").open("a") as file:
        file.write('{"promt": "say 9"}\n')
    assert "prompts.jsonl, line 9: 'prompt' is missing; the row has promt" in refused("train", "config.toml")


def test_a_place_for_the_report_of_one_run_is_refused(refused, finished, here):
    assert "the report of one run is in its own report/" in refused("report", finished, "--to", "out")


@pytest.mark.parametrize("command", [("report",), ("train", "--resume"), ("sample",)])
def test_a_run_directory_that_is_none_is_named(refused, here, command):
    request = ["a request"] if command == ("sample",) else []
    message = refused(*command, "absent", *request)
    assert message == "there is no run directory 'absent'; runs are made by `steadyrl train`, under runs/"
    (here / "trainer_state.json").write_text("{}")
    assert refused(*command, "trainer_state.json", *request).endswith(
        "and `steadyrl doctor` reads logs of other trainers"
    )
    (here / "folder").mkdir()
    assert refused(*command, "folder", *request) == "'folder' is not a run directory: it has no run.json"
    (here / "folder" / "run.json").write_text("{")
    (here / "folder" / "resolved.json").write_text("[]")
    (here / "folder" / "metrics.jsonl").write_text('{"step": 0, "attempt": 0}\n')
    assert re.match("(cannot read )?'.*folder/(run|resolved).json'", refused(*command, "folder", *request))


@pytest.mark.parametrize("name", ["toy.npz", "state.json"])
@pytest.mark.parametrize("command", ["resume", "sample"])
def test_a_truncated_checkpoint_is_named_with_the_way_out(refused, finished, name, command):
    interrupt(finished)
    path = finished / "checkpoints" / "000002" / name
    cut(path)
    arguments = ("train", "--resume", finished) if command == "resume" else ("sample", finished, "a request")
    message = refused(*arguments)
    assert str(path.parent) in message
    assert name in message
    assert "earlier" in message  # one of the two that are kept


def test_after_a_truncated_checkpoint_is_deleted_an_earlier_one_is_resumed(steadyrl, finished):
    interrupt(finished)
    before = (finished / "metrics.jsonl").read_text()
    for path in (finished / "checkpoints" / "000002").iterdir():
        path.unlink()
    (finished / "checkpoints" / "000002").rmdir()
    code, _, stderr = steadyrl("train", "--resume", finished)
    assert code == 0 and stderr.startswith("the newest checkpoint is that of step 1, and 2 steps had been made")
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["attempt"]) for line in lines] == [(0, 0), (1, 0), (1, 1)]
    assert (finished / "metrics.jsonl").read_text().startswith(before)
    assert lines[2]["reward/mean"] == lines[1]["reward/mean"]


def test_a_truncated_checkpoint_of_torch_is_named(steadyrl, refused, here, tiny_models):
    torch = ("backend.name=torch", f"model.path={tiny_models['llama']}", "run.steps=1")
    code, _, stderr = steadyrl("train", "config.toml", *torch)
    assert code == 0, stderr
    (run,) = (here / "runs").iterdir()
    interrupt(run)
    cut(run / "checkpoints" / "000001" / "optimizer.safetensors")
    message = refused("train", "--resume", run)
    assert "checkpoints/000001/optimizer.safetensors' is missing or damaged" in message
    cut(run / "checkpoints" / "000001" / "policy" / "model.safetensors")
    assert "checkpoints/000001/policy/model.safetensors' is missing or damaged" in refused("train", "--resume", run)


def test_a_run_folder_that_is_a_file_is_named(refused, here):
    (here / "runs").write_text("")
    for folder in ("runs", "runs/below"):
        said = refused("train", "config.toml", f"run.folder={folder}")
        assert re.match(rf"cannot write '.*{folder}/.*': '.*runs' is a file; .*, or set run\.folder", said)


@pytest.mark.ordinary_user
def test_a_run_folder_without_write_permission_is_named(refused, here):
    (here / "runs").mkdir(mode=0o500)
    assert re.search(r"/runs/.*': Permission denied; .*, or set run\.folder", refused("train", "config.toml"))


def test_a_run_directory_that_cannot_be_written_any_more_is_named(steadyrl, finished):
    interrupt(finished)
    (finished / "metrics.jsonl").unlink()
    (finished / "metrics.jsonl").mkdir()
    code, _, stderr = steadyrl("train", "--resume", finished, "run.steps=3")
    kept, refusal = stderr.splitlines()
    assert code == 2 and kept.startswith("the policy after 2 steps is saved; go on with: steadyrl train --resume ")
    message = refusal.removeprefix("error: ")
    assert re.fullmatch(r"cannot write '.*/metrics\.jsonl': Is a directory; expected the name of a file", message)
    info = json.loads((finished / "run.json").read_text())
    assert (info["status"], info["error"]) == ("failed", message)


def test_a_report_that_cannot_be_written_is_named(refused, finished):
    for path in (finished / "report").iterdir():
        path.unlink()
    (finished / "report").rmdir()
    (finished / "report").write_text("")
    assert refused("report", finished).startswith(f"cannot write '{finished}/report/")


def test_torch_that_is_not_installed_is_named_with_its_extra(here):
    code = "import sys; sys.modules['torch'] = None; from steadyrl.cli.main import main; main()"
    arguments = [sys.executable, "-c", code, "train", "config.toml", "backend.name=torch"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    expected = "the package 'torch' is not installed but needed here; install it with: pip install 'steadyrl[torch]'"
    assert done.stderr == f"error: {expected}\n"
    assert no_runs(here)


def test_a_finished_run_is_not_resumed(refused, finished):
    message = refused("train", "--resume", finished)
    assert message == (
        f"'{finished}' is finished: 2 of 2 steps; add run.steps=N to train longer, or `steadyrl report` to write its "
        "report again"
    )


def test_a_finished_run_trains_longer_when_asked_and_remembers_it(steadyrl, refused, finished):
    code, _, stderr = steadyrl("train", "--resume", finished, "run.steps=3")
    assert (code, stderr) == (0, "")
    assert "is finished: 3 of 3 steps" in refused("train", "--resume", finished)
    assert json.loads((finished / "resolved.json").read_text())["run"]["steps"] == 3
    assert json.loads((finished / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    "override", ["update.learning_rate=1e-3", "run.seed=4", "run.folder=other", "rewards.length=2"]
)
def test_what_would_make_another_run_of_it_cannot_change_on_resuming(refused, finished, override):
    interrupt(finished)
    message = refused("train", "--resume", finished, override)
    assert message.startswith(f"'{override}' cannot change on resuming; only backend.args, ")
    assert message.endswith("For anything else start a new run")
    assert json.loads((finished / "run.json").read_text())["status"] == "running"


def test_a_config_beside_a_run_to_resume_is_refused_as_one(refused, finished):
    said = refused("train", "config.toml", "--resume", finished)
    assert said.startswith("a run is resumed with its own config; give either a config or a run")


def test_a_run_without_a_step_has_no_report_and_no_policy(refused, finished):
    for path in (finished / "checkpoints").glob("*/DONE"):
        path.unlink()
    (finished / "metrics.jsonl").unlink()
    assert (
        refused("sample", finished, "a request") == f"'{finished}' has no checkpoint yet; the first comes after 1 step"
    )
    assert "has no steps yet" in refused("report", finished)


@pytest.mark.parametrize(
    ("request_", "more", "said"),
    [
        ("\udcff\udcfe", (), "the request is not valid Unicode at character 1"),
        (" ", (), "the request is empty; say what to ask the policy"),
        ("a", ("--greedy", "--samples", "3"), "--samples is 3, but greedy answers are all the same"),
    ],
)
def test_a_request_that_cannot_be_asked_is_refused(refused, finished, request_, more, said):
    assert refused("sample", finished, request_, *more).startswith(said)


def test_an_override_of_other_bytes_than_utf8_is_refused(refused):
    said = refused("train", "config.toml", "task.args.prompt=\udcff")
    assert said == r"'task.args.prompt=\udcff' is not valid UTF-8; expected section.key=value as text in UTF-8"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["doctor", ""], "an argument"),
        (["compare", "runs/a", ""], "an argument"),
        (["study", "run", ""], "an argument"),
        (["report", "runs/a", "--to", ""], "an argument"),
        (["doctor", "log.csv", "--config="], "--config"),
    ],
)
def test_an_empty_path_is_no_name_of_the_current_folder(refused, words, what):
    assert refused(*words).startswith(f"{what} is empty, as a shell leaves a variable that is not set; give the file")


@pytest.mark.parametrize("setting", ["task.args.path", "model.path", "run.folder"])
def test_an_empty_path_in_a_config_is_refused(refused, here, setting):
    (here / "empty.toml").write_text('[task]\nname = "prompts"\n[rewards]\nright = 1\n')
    assert f"{setting}: got ''; expected a path that is not empty" in refused("train", "empty.toml", f"{setting}=''")


def test_a_reward_that_always_fails_is_named_with_what_it_raised(steadyrl, here):
    (here / "users_broken.py").write_text("def good(problem, rollout):\n    return problem.columns['answer']\n")
    code, _, stderr = steadyrl("train", "config.toml", "rewards.users_broken:good=1")
    assert code == 2
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the preflight failed: rewards (")
    assert "good raised KeyError: 'answer'" in line
    code, _, stderr = steadyrl("train", "config.toml", "rewards.users_broken:good=1", "run.preflight=off")
    assert code == 2
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "none of 8 rollouts could be scored; the first reason: good raised KeyError: 'answer'" in line
    assert "Traceback" not in stderr


@pytest.mark.parametrize("arguments", [("train",), ("preflight",), ("task", "check")])
@pytest.mark.parametrize("method", ["__init__", "problems", "rewards"])
def test_what_a_users_task_raises_is_one_line_with_its_place(steadyrl, here, arguments, method):
    module = here / f"users_{method.strip('_')}_task.py"
    text = "from steadyrl.loop.tasks.prompts import PromptsTask\nclass Own(PromptsTask):\n"
    module.write_text(text + f"    def {method}(self, *args):\n        raise LookupError('no index')\n")
    code, _, stderr = steadyrl(*arguments, "config.toml", f"task.name={module.stem}:Own")
    place = f"{module}, line 4, in {method}"
    assert (code, stderr) == (2, f"error: your own code raised LookupError: no index ({place}); fix it\n")


def test_a_reward_that_returns_no_number_is_named(steadyrl, here):
    (here / "users_words.py").write_text("def good(problem, rollout):\n    return 'very'\n")
    code, _, stderr = steadyrl("train", "config.toml", "rewards.users_words:good=1")
    assert code == 2
    assert "error: the reward 'good' returned 'very' (str); expected a number, a dict or None\n" in stderr


@pytest.mark.parametrize("arguments", [("trian",), ("train", "--resum", "x"), ("report",), ("task", "chek")])
def test_a_command_that_is_none_exits_with_2(steadyrl, arguments):
    code, _, stderr = steadyrl(*arguments)
    assert code == 2
    assert "Traceback" not in stderr


def test_an_unsound_task_exits_with_1_and_says_where(steadyrl, here):
    code, stdout, stderr = steadyrl("task", "check", "config.toml")  # by the length reward silence is best
    assert (code, stderr) == (1, "")
    assert "FAIL  empty answer: mean reward 2.000, expected at most 0.05" in stdout


def test_a_run_that_counts_epochs_is_trained_longer_by_epochs(steadyrl, refused, here):
    write_config(here)
    assert steadyrl("train", "config.toml", "run.epochs=1")[0] == 0
    (run,) = (here / "runs").iterdir()
    resolved = json.loads((run / "resolved.json").read_text())["run"]
    steps = resolved["steps"]
    assert resolved["epochs"] == 1
    assert "run.steps = 50 has no effect while run.epochs = 1" in refused("train", "--resume", run, "run.steps=50")
    assert f"is finished: {steps} of {steps} steps; add run.epochs=N" in refused("train", "--resume", run)
    assert steadyrl("train", "--resume", run, "run.epochs=2")[0] == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["data_epoch"] >= 2
    assert len(lines) >= 2 * steps - 1
