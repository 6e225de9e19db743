"""The first lines of a user: a model, prompts and a function train, and the run shows itself."""

import pydoc
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

import steadyrl
from steadyrl.core import config
from steadyrl.core.errors import ConfigError, MissingExtraError, RunError
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.loop.train import Watch
from steadyrl.python.result import Run
from steadyrl.python.train import run as run_config
from steadyrl.python.train import train
from steadyrl.show.web.folder import Folder
from steadyrl.show.web.overview import row
from steadyrl.show.web.run_page import score_ends
from tests import needs

LETTERS = [letter * 3 for letter in "abcdefghijklmnopqrst"]
TOY = {"backend": "toy", "steps": 4, "max_new_tokens": 6, "learning_rate": 0.1, "preflight": "off"}


def share_of_a(completion):
    return completion.count("a") / max(1, len(completion))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toy(reward=share_of_a, prompts=LETTERS, **more):
    return train("base", prompts, reward, **{"progress": False, **TOY, **more})


def completions(run):
    return [line for file in sorted((run.path / "rollouts").glob("*.jsonl")) for line in read_lines(file)]


def test_a_model_prompts_and_a_function_train(here, capsys):
    run = train("base", LETTERS, share_of_a, **TOY)
    assert run.status == "finished" and len(run.metrics()) == 4
    for line in completions(run):
        assert line["reward"] == pytest.approx(share_of_a(line["completion"]))
    shown = capsys.readouterr()
    assert "learning_rate=0.1 schedule=linear warmup_steps=3 steps=4 prompts_per_step=16" in shown.err
    assert "trains on 16 problems" in shown.err and "judged by 4 held-out problems" in shown.err
    entry = row(next(place for place in Folder(here / "runs").runs() if place.path == run.path))
    before, after = (
        np.mean([line["answers"]["sampled"]["metric"] for line in read_lines(run.evaluation_file(when))])
        for when in ("before", "after")
    )
    assert (entry.heldout.metric, entry.heldout.score) == ("share_of_a", pytest.approx(after))
    assert entry.heldout.change == pytest.approx(after - before)


def test_a_record_names_the_metric_and_the_model(here):
    run = toy([share_of_a, "length"])
    assert (run.info()["metric"], run.info()["model"]) == ("reward", "toy")  # the weighted total, and no model folder
    assert score_ends(run)[0] == "heldout/reward"


def test_the_config_of_a_run_holds_what_was_set_and_repeats_it(here):
    run = toy(reward=[share_of_a, "length"], overrides={"update": {"minibatches": 2}, "run.seed": 5})
    text = (run.path / "config.toml").read_text()
    settings = tomllib.loads(text)
    assert settings["rewards"] == {f"{__name__}:share_of_a": 1.0, "length": 1.0}
    assert settings["update"] == {
        "epochs": 1, "minibatches": 2, "learning_rate": 0.1, "warmup_steps": 3, "schedule": "linear",
    }  # fmt: skip
    assert config.dump(config.load(run.path / "config.toml")) == run.resolved()
    again = run_config(run.path / "config.toml")
    assert [line["reward/mean"] for line in again.metrics()] == [line["reward/mean"] for line in run.metrics()]
    assert "session" not in text


def test_the_config_says_what_only_the_session_has(here):
    run = toy(reward={"short": lambda completion: -len(completion) / 10, "length": 0.1})
    text = (run.path / "config.toml").read_text()
    assert 'put the function into a module, such as my_rewards.py, and write "my_rewards:short"' in " ".join(
        text.replace("#", "").split()
    )
    assert all(line["parts"]["short"] == -len(line["completion"]) / 10 for line in completions(run))


def test_columns_reach_a_reward_by_their_names_and_held_out_prompts_are_those_given(here):
    rows = [{"question": letter * 3, "wanted": letter} for letter in "abcdef"]

    def wanted_letter(completion, prompt, wanted):
        return float(completion.count(wanted)) + prompt.count(wanted) / 100

    run = toy(wanted_letter, rows, heldout=[{"question": "zzz", "wanted": "z"}], prompt_column="question")
    for line in completions(run):
        assert line["reward"] == line["completion"].count(line["prompt"][0]) + 0.03
    (before,) = run.evaluations()["before"]
    assert before["prompt"] == "zzz" and run.info()["metric"] == "wanted_letter"


def test_a_reward_of_another_form_is_refused_with_the_forms_there_are(here):
    with pytest.raises(ConfigError, match=r"too many positional.*\(problem, rollout\).*'completion'.*'completions'"):
        toy(lambda text: 1.0)
    with pytest.raises(ConfigError, match="takes answer, and no problem of the split 'train' has such a column"):
        toy(lambda completion, answer: 1.0)
    assert not list(here.glob("runs/2*"))


@pytest.mark.parametrize(
    "reward",
    [
        lambda problem, rollout: rollout.text.count("a"),
        lambda prompts, completions: [text.count("a") for text in completions],
        lambda completion, **columns: completion.count("a"),
    ],
)
def test_every_form_of_a_reward_scores_alike(here, reward):
    assert all(line["reward"] == line["completion"].count("a") for line in completions(toy(reward, steps=1)))


def test_an_asynchronous_reward_of_a_completion(here):
    async def reward(completion):
        return completion.count("a")

    assert all(line["reward"] == line["completion"].count("a") for line in completions(toy(reward, steps=1)))


def test_a_run_stands_wherever_a_path_does(here):
    run = toy()
    assert [str(found.verdict) for found in steadyrl.diagnose(run)] == [str(run.doctor().verdict)]
    assert steadyrl.write_report(run) == run.report_folder
    assert Run.open(run).path == run.path


@pytest.mark.parametrize("thing", [3, [1]])
def test_a_config_of_another_type_is_refused(here, thing):
    with pytest.raises(
        ConfigError, match=rf"config: got .* \({type(thing).__name__}\); expected a Config, a dict, a path"
    ):
        run_config(thing)


def test_a_function_as_watch_is_refused_before_anything_is_read(here):
    for call in (lambda: toy(watch=print), lambda: run_config({}, watch=print)):
        with pytest.raises(ConfigError, match=r"watch: got .* \(builtin_function_or_method\); expected a Watch"):
            call()
    assert not list(here.iterdir())


def test_a_watch_follows_and_stops_a_run_beside_the_display(here):
    steps = []
    run = toy(watch=Watch(step=lambda line: steps.append(line["step"]), stop=lambda: len(steps) == 2))
    assert steps == [0, 1] and run.status == "interrupted" and run.checkpoints() == [2]
    assert run_config(resume=run).checkpoints()[-1] == 4


def test_an_interrupt_keeps_the_whole_steps_and_returns_the_run(here, capsys):
    scored = []

    def interrupting(completion):
        scored.append(completion)
        if len(scored) == 8 + 3 * 16 * 8 + 5:  # 4 held-out prompts, sampled and greedy; three steps; some of the fourth
            raise KeyboardInterrupt
        return share_of_a(completion)

    run = toy(interrupting, progress=True)
    resume = f"steadyrl.run(resume='{run.path}')"  # `steadyrl train` has no function of this session
    assert f"the policy after 3 steps is saved; go on in this session with: {resume}\n" in capsys.readouterr().err
    assert run.status == "interrupted" and run.checkpoints() == [3] and len(run.metrics()) == 3
    assert repr(run).splitlines()[1] == "    interrupted, 3 of 4 steps"
    whole, resumed = toy(), run_config(resume=run)
    assert [line["reward/mean"] for line in resumed.metrics()] == [line["reward/mean"] for line in whole.metrics()]


def test_an_interrupt_before_the_run_is_an_interrupt(here):
    def interrupt(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toy(watch=Watch(note=interrupt))


SCRIPT = """
import sys, time
from steadyrl.python.train import train
def slow(completion):
    time.sleep(0.002)
    return completion.count("a")
settings = {settings}
run = train("base", {letters}, slow, **{{**settings, "steps": 1000}})
print("returned", run.status, len(run.metrics()) == run.checkpoints()[-1] > 0)
"""


@pytest.mark.parametrize(
    ("number", "returns"), [(signal.SIGINT, True), pytest.param(signal.SIGTERM, False, marks=pytest.mark.weekly)]
)
def test_ctrl_c_returns_to_the_script_and_a_request_to_end_ends_it(here, number, returns):
    (here / "script.py").write_text(SCRIPT.format(settings=TOY, letters=LETTERS))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # What a shell runs in the background ignores Ctrl-C, and so would the script.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen([sys.executable, "-u", "script.py"], **options) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 0 "):
                time.sleep(1.0)  # some whole steps
                process.send_signal(number)
    assert (process.returncode == 0) == returns, "".join(lines)
    assert ("returned interrupted True\n" in lines) == returns
    (run,) = (RunDir(path) for path in here.glob("runs/2*"))
    assert run.status == "interrupted" and run.checkpoints()


def test_a_run_shows_itself(here):
    run = toy(steps=30)
    reward = [line["reward/mean"] for line in run.metrics()]
    first, status, heldout, doctor = repr(run).splitlines()
    assert first == f"run {run.path}" and status.strip() == "finished, 30 of 30 steps"
    before, after = (
        sum(share_of_a(line["answers"]["sampled"]["text"]) for line in run.evaluations()[when]) / 4
        for when in ("before", "after")
    )
    assert f"held-out share_of_a {before:.3f} → {after:.3f}" in heldout
    assert doctor.strip().startswith(f"doctor: {run.doctor().verdict}")
    page = run._repr_html_()
    assert page.count("<polyline") == 2 and f">{max(reward):.3g}<" in page and f">{min(reward):.3g}<" in page
    assert f"{before:.3f} → {after:.3f}" in page


def test_a_run_without_a_step_shows_how_many_were_planned(here):
    run = toy(steps=1)
    (run.path / "metrics.jsonl").unlink()
    assert repr(run).endswith("finished, 0 of 1 step") and "<svg" not in run._repr_html_()
    with pytest.raises(RunError, match="there is no step to draw yet"):
        run.plot()


def test_the_picture_of_a_run_has_its_rewards(here):
    run = toy(reward={"short": lambda completion: -len(completion), "length": 0.1})
    figure = run.plot()
    rewards = [line["reward/mean"] for line in run.metrics()]
    assert figure.axes[0].lines[-2].get_ydata().tolist() == pytest.approx(rewards)
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["short", "0.1 x length"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_picture_of_a_run_without_a_kl_has_the_heldout_scores_and_the_entropy(here):
    run = toy(kl_coef=0.0)
    axes = run.plot().axes
    (scores,) = [line for line in axes[0].lines if line.get_label().startswith("held-out")]
    answers = [
        [line["answers"]["sampled"]["reward"] for line in run.evaluations()[when]] for when in ("before", "after")
    ]
    assert list(scores.get_ydata()) == pytest.approx([np.mean(rewards) for rewards in answers])
    assert axes[-1].get_title("left") == "Entropy"


def test_metrics_as_a_table_need_pandas(here, monkeypatch):
    run = toy(steps=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"the package 'pandas' is not installed .*pip install pandas"):
        run.metrics_frame()


def test_metrics_as_a_table(here):
    needs.skip_without_packages("pandas", extra="torch", beside="pandas")
    run = toy(steps=2)
    assert run.metrics_frame()["reward/mean"].tolist() == [line["reward/mean"] for line in run.metrics()]


def test_the_diagnosis_reads_as_lines(here):
    run = toy(steps=30)
    diagnosis = run.doctor()
    lines = repr(diagnosis).splitlines()
    assert lines[0] == f"{run.path}: {diagnosis.run.facts}" and lines[1].strip() == diagnosis.verdict
    for finding in diagnosis.findings:
        assert any(finding.check in line and finding.message in line for line in lines)


def test_an_old_run_opens_as_one_that_shows_itself(here):
    run = toy(steps=1)
    assert repr(Run.open(run.path)) == repr(run)
    assert repr(RunDir(run.path)) == f"RunDir('{run.path}')"


def test_a_loaded_model_trains_and_is_asked(here, tiny_models):
    transformers = needs.package("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"])
    run = train(
        model, ["the red cat", "a small dog", "two old birds"], share_of_a,
        steps=1, max_new_tokens=4, preflight="off", progress=False, device="cpu",
    )  # fmt: skip
    assert run.status == "finished" and run.resolved()["update"]["learning_rate"] == 4e-4
    assert len(run.sample("the red cat", samples=2)) == 2


def test_help_is_one_page():
    page = pydoc.plain(pydoc.render_doc(steadyrl))
    assert 40 < len(page.splitlines()) < 180
    assert "steadyrl.train(" in page


def test_public_types_are_listed_beside_the_functions():
    assert {"Run", "RunDir", "Problem", "SteadyError", "train"} <= set(dir(steadyrl))
