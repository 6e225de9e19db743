"""A study runs what is missing, goes on with what was cut, and writes what the runs answer."""

import json
import os
import re
import shutil
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steadyrl.cli.study import _Display, app
from steadyrl.core import config as configs
from steadyrl.core.errors import ConfigError, RunError
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir
from steadyrl.lab.jobs import Follow, find_run, folder_of_job, run_job
from steadyrl.lab.launchers.command import choose
from steadyrl.lab.study.outcome import arm_results, claims
from steadyrl.lab.study.plan import jobs, read_study
from steadyrl.lab.study.study import folder_of, make_run, run_study, shorter_run, state_of
from steadyrl.show.report.study import write_study

FILE = """
title = "Rates"
question = "Which rate teaches most?"
seeds = [0, 1]
[config]
run = {{steps = 16, checkpoint_every = 4, doctor_every = 0, preflight = "off"}}
backend = {{name = "toy"}}
task = {{name = "prompts", args = {{path = "{prompts}"}}}}
rewards = {{"toy_rewards:share_of_a" = 1.0}}
algorithm = {{args = {{value_start = "zero"}}}}
sampling = {{max_new_tokens = 4}}
rollout = {{prompts_per_step = 4, samples_per_prompt = 4}}
update = {{learning_rate = 0.0, warmup_steps = 0, kl_old_limit = 10.0}}
[[experiments]]
name = "none"
title = "No rate"
[[experiments]]
name = "high"
title = "A high rate"
from = "none"
change = "update.learning_rate=1.0"
concluded = "A </script> rate teaches | everything."
expect = [{{says = "It learns.", be = "higher"}}]
{more}
"""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": letter * 3}) + "\n" for letter in "abcdefghijkl"))
    return path


@pytest.fixture
def file(prompts, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    path = (str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))  # of the commands of a launcher

    def write(more="", **replaced):
        text = FILE.format(prompts=prompts, more=more)
        for before, after in replaced.items():
            text = text.replace(f"{before} = 0.0", f"{before} = {after}")
        path = tmp_path / "rates.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def finished(prompts, tmp_path_factory):
    """Return the folder of the study with all its runs, made once for all tests."""
    root = tmp_path_factory.mktemp("finished")
    (root / "rates.toml").write_text(FILE.format(prompts=prompts, more=""))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2])
        study = read_study(root / "rates.toml")
        assert run_study(study, root) == {}
    return folder_of(study, root)


@pytest.fixture
def study(finished, file, tmp_path):
    """Return the study of a file in a temporary folder, beside a copy of all its runs."""
    study = read_study(file())
    shutil.copytree(finished, folder_of(study, tmp_path))
    return study


def states(study, root):
    folder = folder_of(study, root)
    return [state_of(find_run(folder, job), study.file.stop) for job in jobs(study)]


def test_a_study_is_cut_goes_on_and_ends_as_if_it_had_never_been_cut(study, tmp_path):
    steps = []
    begun = []
    follow = Follow(
        begin=lambda every, now: begun.append((len(every), len(now))),
        event=lambda event: steps.append(event) if event[1] == "step" else None,
        stop=lambda: len(steps) >= 22,
    )
    assert run_study(study, tmp_path / "a", follow=follow) == {}
    assert states(study, tmp_path / "a") == ["finished", "cut", "missing", "missing"]
    assert (
        run_study(study, tmp_path / "a", follow=Follow(begin=lambda every, now: begun.append((len(every), len(now)))))
        == {}
    )
    assert begun == [(4, 4), (4, 3)]

    def rewards(root):
        runs = [find_run(folder_of(study, root), job) for job in jobs(study)]
        return [[record["reward/mean"] for record in run.metrics()] for run in runs]

    assert rewards(tmp_path / "a") == rewards(tmp_path)
    assert [len(curve) for curve in rewards(tmp_path / "a")] == [16] * 4


@pytest.mark.usefixtures("light_server")
def test_processes_beside_one_another_make_the_same_runs(study, tmp_path):
    heard = set()
    assert (
        run_study(
            study, tmp_path / "b", choose("processes", {}, (), 2), Follow(event=lambda event: heard.add(event[1]))
        )
        == {}
    )
    assert heard == {"begin", "step", "end"}
    alone, beside = (
        [outcome.judged[0].values for outcome in arm_results(study, folder_of(study, root)) if outcome.judged]
        for root in (tmp_path, tmp_path / "b")
    )
    assert alone == beside


def test_a_run_that_another_process_makes_is_left_to_it_until_that_is_no_more(file, tmp_path):
    study, ended, notes = read_study(file()), [], []
    locked = folder_of_job(folder_of(study, tmp_path), jobs(study)[1])
    locked.mkdir(parents=True)
    with ExitStack() as another_process:
        another_process.enter_context(RunDir(locked).writing())

        def event(told):
            ended.extend([told[0]] if told[1] == "end" else [])

        def note(text):
            notes.append((text, len(ended)))
            another_process.close()

        assert run_study(study, tmp_path, follow=Follow(event=event, note=note)) == {}
    assert notes == [("waiting for other processes, which make what is missing (1)", 3)]
    first, second, *others = (job.key for job in jobs(study))
    assert ended == [first, *others, second]


def test_steps_that_are_made_again_from_a_checkpoint_count_once(file, tmp_path):
    job, steps = jobs(read_study(file()))[0], []
    cut = run_job(job, tmp_path, None, lambda event: None, lambda records: len(records) == 10)
    shutil.rmtree(cut.checkpoint_folder(10))  # a kill leaves steps after the last checkpoint, which is that of step 8
    run_job(job, tmp_path, cut, lambda event: None, lambda records: steps.append([r["step"] for r in records]))
    assert steps == [list(range(made + 1)) for made in range(8, 16)]


def test_a_rule_written_before_ends_an_arm_and_the_report_says_so(file, tmp_path):
    rule = '[[stop]]\nmetric = "reward/mean"\nbelow = 2.0\nsteps = 3\nwhy = "nothing is to be learned"\n'
    study, said = read_study(file(rule)), []
    run_study(study, tmp_path, follow=Follow(event=lambda event: said.append(event[2]) if event[1] == "end" else None))
    assert said == ["ended by a rule"] * 4
    assert states(study, tmp_path) == ["ended by a rule"] * 4
    page, _ = write_study(study, tmp_path)
    assert "seed 0 was ended by the rule after step 2: nothing is to be learned" in page.read_text()


def test_what_decides_is_not_changed_after_the_first_run(study, tmp_path):
    path = tmp_path / "rates.toml"
    path.write_text(path.read_text().replace('be = "higher"', 'be = "lower"'))
    for use in (run_study, write_study):  # a report would judge the runs by what was expected after them
        with pytest.raises(RunError, match=r"expect differ from .*plan\.json"):
            use(read_study(path), tmp_path)


@pytest.mark.parametrize("entry", [{"expect": 3}, {"inputs": ["x"]}, {"accepted": 4}])
def test_a_plan_that_no_study_wrote_is_named(study, tmp_path, entry):
    plan = folder_of(study, tmp_path) / "plan.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()) | entry))
    for use in (run_study, write_study):
        with pytest.raises(RunError, match=r"plan\.json' is damaged: .*restore the file"):
            use(study, tmp_path)


def test_new_runs_are_not_compared_with_those_on_other_data(file, prompts, tmp_path):
    own, path = tmp_path / "own.jsonl", file()
    text = path.read_text().replace(str(prompts), str(own))
    own.write_bytes(prompts.read_bytes())
    path.write_text(text.replace("seeds = [0, 1]", "seeds = [4]"))
    assert run_study(read_study(path), tmp_path) == {}
    own.write_text(prompts.read_text().replace("ccc", "cc"))
    assert run_study(read_study(path), tmp_path) == {}  # there is nothing to make
    path.write_text(text.replace("seeds = [0, 1]", "seeds = [4, 7]"))
    with pytest.raises(
        RunError, match=r"the data of none, high changed since .*restore what changed, start a new study"
    ):
        run_study(read_study(path), tmp_path)
    other = (
        '[[experiments]]\nname = "more"\ntitle = "Other data"\nfrom = "high"\nchange = "task.args.heldout_share=0.5"\n'
    )
    path.write_text(text.replace("seeds = [0, 1]", "seeds = [4]") + other)
    with pytest.raises(RunError, match="the data of none, high changed"):
        run_study(read_study(path), tmp_path)
    own.write_bytes(prompts.read_bytes())
    assert run_study(read_study(path), tmp_path) == {}


def test_new_runs_are_not_compared_with_those_of_other_code_but_a_failure_is_mended(file, tmp_path, monkeypatch):
    path, code = file(), tmp_path / "length_of.py"
    text = path.read_text().replace("toy_rewards:share_of_a", "length_of:words")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file of one size and second would be taken for the same

    def begin(seeds, function):
        sys.modules.pop("length_of", None)  # as in a new process
        code.write_text(f"def words(problem, rollout):\n    {function}\n")
        path.write_text(text.replace("seeds = [0, 1]", f"seeds = {seeds}"))
        return run_study(read_study(path), tmp_path)

    assert len(begin([5], "raise RuntimeError('no words')")) == 2
    assert begin([5], "return 1.0 * len(rollout.text)") == {}
    assert begin([5], "return 2.0 * len(rollout.text)") == {}  # there is nothing to make
    for seeds in ([5, 6], [6, 5]):
        with pytest.raises(RunError, match=r"the code in 'length_of' of none, high changed since .*; restore what"):
            begin(seeds, "return 2.0 * len(rollout.text)")
    assert begin([6, 5], "return 1.0 * len(rollout.text)") == {}


def test_what_is_missing_is_made_with_a_change_that_is_accepted_and_the_report_says_so(file, prompts, tmp_path):
    own, path = tmp_path / "own.jsonl", file()
    own.write_bytes(prompts.read_bytes())
    text = path.read_text().replace(str(prompts), str(own))
    path.write_text(text.replace("seeds = [0, 1]", "seeds = [8]"))
    assert run_study(read_study(path), tmp_path) == {}
    own.write_text(prompts.read_text().replace("ccc", "c"))
    path.write_text(text.replace("seeds = [0, 1]", "seeds = [8, 9]"))
    again = CliRunner().invoke(app, ["run", str(path), "--folder", str(tmp_path), "--accept-changed-data"])
    assert again.exit_code == 0, again.output
    for _ in range(2):  # once is enough
        assert run_study(read_study(path), tmp_path) == {}
        report = write_study(read_study(path), tmp_path)[0].with_suffix(".md").read_text()
        assert report.count("Between its runs the data of none, high changed, which was accepted.") == 1


def test_a_failed_run_goes_on_with_data_that_were_mended(file, prompts, tmp_path, monkeypatch):
    own, path, code = tmp_path / "own.jsonl", file(), tmp_path / "picky.py"
    monkeypatch.syspath_prepend(tmp_path)
    code.write_text("def likes(problem, rollout):\n    assert 'ccc' not in problem.prompt\n    return 1.0\n")
    text = path.read_text().replace(str(prompts), str(own)).replace("toy_rewards:share_of_a", "picky:likes")
    path.write_text(text.replace("seeds = [0, 1]", "seeds = [3]"))
    own.write_text("".join(json.dumps({"prompt": "c" * length}) + "\n" for length in range(3, 15)))
    failed = run_study(read_study(path), tmp_path)
    assert len(failed) == 2
    own.write_bytes(prompts.read_bytes().replace(b"ccc", b"cb"))
    refused = run_study(read_study(path), tmp_path)
    assert len(refused) == 2 and all("--accept-changed-data" in error for error in refused.values())
    assert run_study(replace(read_study(path), accepts_changes=True), tmp_path) == {}


def test_a_run_that_fails_leaves_the_others_and_is_reported(file, tmp_path):
    broken = "bundle = [\"rewards={'toy_rewards:always_fails' = 1.0}\"]\n"
    path = file(f'[[experiments]]\nname = "broken"\ntitle = "t"\nfrom = "none"\n{broken}')
    result = CliRunner().invoke(app, ["run", str(path), "--folder", str(tmp_path / "s")])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "2 of 2 runs done" in (tmp_path / "s" / "rates" / "report" / "report.md").read_text()
    assert "seed 0 failed after 0 steps" in (tmp_path / "s" / "rates" / "report" / "report.md").read_text()


def test_the_report_says_what_the_runs_say_and_has_the_same_bytes_again(study, tmp_path):
    page, summary = write_study(study, tmp_path)
    first = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    write_study(study, tmp_path)
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == first
    assert [arm["verdict"] for arm in summary.values()] == ["not asked", "supported"]
    values = [find_run(folder_of(study, tmp_path), job).metrics()[-3:] for job in jobs(study)]
    ends = [sum(record["reward/mean"] for record in three) / 3 for three in values]
    summary = json.loads((page.parent / "summary.json").read_text())
    assert summary["high"]["expectations"][0]["values"] == pytest.approx([ends[1], ends[3]])
    assert summary["high"]["expectations"][0]["others"] == pytest.approx([ends[0], ends[2]])
    markdown = (page.parent / "report.md").read_text()
    assert "| update.learning_rate | 0 | 1 |" in markdown
    assert "teaches \\| everything" in markdown
    assert "</script> rate" not in page.read_text()
    # The page works offline: the browser lets it read the pictures beside it, and nothing else.
    assert """content="default-src 'none'; """ in page.read_text()
    assert not re.findall(r"(?:src|href)=\W?http|@import", page.read_text())
    shown = re.findall(r'<img src="([^"]*)"', page.read_text())
    assert len(shown) == len(summary) and [name for name in shown if name not in first] == []


def test_the_run_that_all_start_from_is_one_of_the_runs_to_make(file, tmp_path):
    path = file('[warm]\nconfig = "warm.toml"\n')
    sections = path.read_text().partition("[config]\n")[2].partition("[[experiments]]")[0]
    (tmp_path / "warm.toml").write_text(sections)
    begun = []
    follow = Follow(begin=lambda every, now: begun.append((len(every), len(now))), stop=lambda: True)
    run_study(read_study(path), tmp_path, None, follow)
    assert begun == [(5, 5)]


def test_a_claim_is_judged_by_experiment_where_the_experiments_differ(file, tmp_path):
    claim = 'claim = "Rates | teach."'
    path = file()
    path.write_text(
        path.read_text().replace('be = "higher"}', f'be = "higher", {claim}}}')
        + '[[experiments]]\nname = "twice"\ntitle = "t"\nfrom = "none"\nchange = "update.epochs=3"\n'
        + f'expect = [{{says = "It learns too.", take = "gain", be = "at least", value = 2.0, {claim}}}]\n'
    )
    study = read_study(path)
    run_study(study, tmp_path)
    found = arm_results(study, folder_of(study, tmp_path))
    assert [(one.arm.name, one.word) for one in found[1:]] == [("high", "supported"), ("twice", "refuted")]
    (one,) = claims(found)
    verdict = "supported in high; refuted in twice"
    first, second = one.judgements
    assert (one.text, one.verdict, first[0], second[0]) == ("Rates | teach.", verdict, "high", "twice")
    assert replace(one, judgements=(second, ("twice", first[1]))).verdict == "refuted"  # by one of its two
    text = write_study(study, tmp_path)[0].with_suffix(".md").read_text()
    (row,) = re.findall(r"\| Rates \\\| teach. \| \[high\]\(#high\): It learns. .*", text)
    assert row.endswith(f"| **{verdict}** |") and "show a true difference" not in row
    assert "supported**: It learns. reward/mean" in text and "seeds. So few seeds show a true difference of" in text


@pytest.mark.weekly
def test_a_report_of_one_run_each_says_that_it_is_weak_evidence(file, tmp_path):
    run_study(read_study(file(), quick=True), tmp_path)
    page, _ = write_study(read_study(file(), quick=True), tmp_path)
    for text in (page.read_text(), page.with_suffix(".md").read_text()):
        assert "quick version" in text and "which is weak evidence" in text
    study = read_study(file(), quick=True, seeds=2)
    ended = []
    one_more = Follow(stop=lambda: bool(ended), event=lambda told: ended.append(told) if told[1] == "end" else None)
    run_study(study, tmp_path, None, one_more)
    assert "1 of 2 experiments has one run at most, which" in write_study(study, tmp_path)[0].read_text()
    run_study(study, tmp_path)
    text = write_study(study, tmp_path)[0].with_suffix(".md").read_text()
    assert "weak evidence" not in text and "2 seeds decide only large differences" in text
    assert "`steadyrl study run rates.toml --quick --seeds 2`" in text
    assert "| [high](#high) | A high rate | 2 of 2 | **supported** |" in text


def test_a_study_without_runs_says_how_to_make_them(file, tmp_path):
    with pytest.raises(ConfigError, match=r"steadyrl study run .* --quick"):
        write_study(read_study(file(), quick=True), tmp_path)


def test_the_plan_holds_titles_for_readers_and_these_may_change(study, tmp_path):
    plan = tmp_path / "rates" / "plan.json"
    before = json.loads(plan.read_text())
    assert before["study"]["arms"][1]["changed"] == {"update.learning_rate": [0.0, 1.0]}
    path = tmp_path / "rates.toml"
    path.write_text(path.read_text().replace('title = "Rates"', 'title = "Other words"'))
    run_study(read_study(path), tmp_path)
    after = json.loads(plan.read_text())
    assert (before["study"]["title"], after["study"]["title"]) == ("Rates", "Other words")
    assert after["written"] == before["written"]


def test_an_experiment_is_added_to_a_study_with_runs_and_changed_no_more_once_it_is_in_the_plan(study, file, tmp_path):
    added = LONGER + 'expect = [{says = "More is learned.", be = "higher"}]\n'
    assert run_study(read_study(file(added)), tmp_path) == {}
    plan = json.loads((tmp_path / "rates" / "plan.json").read_text())
    assert [rule["says"] for rule in plan["expect"]["longer"]] == ["More is learned."]
    for changed in (added.replace('"higher"', '"lower"'), ""):  # another rule, and an experiment that is removed
        with pytest.raises(RunError, match=r"expect differ from .*plan\.json"):
            run_study(read_study(file(changed)), tmp_path)


LONGER = '[[experiments]]\nname = "longer"\ntitle = "More steps"\nfrom = "high"\nchange = "run.steps=24"\n'


def test_a_run_that_only_trains_longer_goes_on_from_a_copy_and_is_the_same_to_the_last_bit(file, tmp_path):
    path = file(LONGER)
    path.write_text(path.read_text().replace('"toy_rewards:share_of_a" = 1.0', "length = 1.0"))
    study = read_study(path)
    (job, *_) = [job for job in jobs(study) if job.arm == "longer"]
    base = shorter_run(study, job)
    assert base is not None and base.arm == "high" and base.config.run.seed == job.config.run.seed
    assert make_run(job, tmp_path / "whole", (), Follow()) is None
    whole = find_run(tmp_path / "whole", job)

    steps = []
    follow = Follow(event=lambda event: steps.append(event) if event[1] == "step" else None)
    assert run_study(study, tmp_path, follow=follow) == {}
    made = [event[2] for event in steps if event[0] == job.key]
    assert made == list(range(17, 25))
    run, short = find_run(folder_of(study, tmp_path), job), find_run(folder_of(study, tmp_path), base)
    assert run.status == "finished" and run.info()["continues"] == str(short.path)
    assert short.status == "finished" and len(short.metrics()) == 16

    def curve(run):
        return [repeatable(line) for line in run.metrics()]

    assert curve(run) == curve(whole)
    assert run.evaluation_file("before").read_bytes() == whole.evaluation_file("before").read_bytes()
    assert run.evaluation_file("after").read_bytes() == whole.evaluation_file("after").read_bytes()


def test_a_copy_that_was_cut_is_made_again_and_one_that_cannot_be_written_is_one_line(file, tmp_path, monkeypatch):
    path = file(LONGER)
    path.write_text(path.read_text().replace('"toy_rewards:share_of_a" = 1.0', "length = 1.0"))
    study = read_study(path)
    (job, *_) = [job for job in jobs(study) if job.arm == "longer"]
    base, folder = shorter_run(study, job), folder_of(study, tmp_path)
    assert make_run(base, folder, (), Follow()) is None

    def full(*args, **settings):
        half = Path(args[1])
        half.mkdir(parents=True)
        (half / "metrics.jsonl").write_text("{")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copytree", full)
        said = make_run(job, folder, (), Follow(), base=base)
    assert said.startswith("cannot copy the run") and "No space left on device" in said
    assert find_run(folder, job) is None
    assert make_run(job, folder, (), Follow(), base=base) is None
    assert len(find_run(folder, job).metrics()) == 24


@pytest.mark.parametrize(
    "changes",
    [
        ["update.schedule=linear"],  # the rate depends on how many steps there are
        ["evaluate.every=5"],  # the last step is evaluated, and not a step between
        ["rewards={'toy_rewards:share_of_a' = 1.0}"],  # may ask how many steps are planned
    ],
)
def test_a_run_whose_beginning_is_another_one_begins_anew(file, changes):
    path = file(LONGER)
    path.write_text(path.read_text().replace('"toy_rewards:share_of_a" = 1.0', "length = 1.0"))
    study = read_study(path)
    arms = [replace(arm, config=configs.resolve(configs.dump(arm.config), changes)) for arm in study.arms]
    study = replace(study, arms=tuple(arms))
    assert [shorter_run(study, job) for job in jobs(study)] == [None] * 6


def test_the_time_left_is_said_once_a_twentieth_of_the_steps_is_made(file, monkeypatch):
    every = jobs(read_study(file()))  # four runs of 16 steps
    now = [0.0]
    monkeypatch.setattr("steadyrl.cli.study.time.monotonic", lambda: now[0])
    with _Display() as shown:
        shown.begin(every, every)
        shown.event((every[0].key, "begin", (0, 16)))
        now[0] = 60.0  # it loads for a minute
        for step in range(1, 4):
            shown.event((every[0].key, "step", step))
            assert shown._time_left() == ""
        shown.event((every[0].key, "step", 4))
        assert shown._time_left() == "; about 15 min left"  # 60 steps at 15 s


def test_the_steps_of_epochs_are_learned_from_the_first_run_that_begins(file):
    """Until a task is built nobody knows its problems: a config with epochs plans the 100 steps of the default."""
    study = read_study(file())
    first, *others = (
        replace(job, config=configs.resolve(configs.dump(job.config), ["run.epochs=2"])) for job in jobs(study)
    )
    smaller = configs.resolve(configs.dump(others[0].config), ["rollout.prompts_per_step=5"])
    others[0] = replace(others[0], config=smaller)
    with _Display() as shown:
        shown.begin([first, *others], [first, *others])
        shown.event((first.key, "begin", (0, 60)))  # of its prompts_per_step
        problems = 30 * first.config.rollout.prompts_per_step
        assert [shown._total_steps[job.key] for job in others] == [-(-2 * problems // 5), 60, 60]
        shown.event((others[1].key, "begin", (0, 61)))
        assert shown._total_steps[others[1].key] == 61


@pytest.mark.pictures
def test_the_report_begins_with_the_answer_and_its_picture(study, tmp_path):
    page, _ = write_study(study, tmp_path)
    assert (page.parent / "answer.svg").is_file()
    for text, picture in ((page.read_text(), 'id="answer-'), (page.with_suffix(".md").read_text(), "](answer.svg)")):
        answer, asked = text.index("The answer"), text.index("What was asked, and how")
        assert answer < text.index(picture, answer) < asked < text.index("Every number")
        assert answer < text.index("supported") < asked
    assert page.read_text().count("The answer") == 1


@pytest.mark.weekly
@pytest.mark.pictures
def test_the_first_picture_has_every_topic_of_the_experiments_that_the_file_names(study, tmp_path):
    path = tmp_path / "rates.toml"

    def titles(page):
        return re.findall("(Reward|Value loss|Entropy)</text>", (page.parent / "answer.svg").read_text())

    assert titles(write_study(read_study(path), tmp_path)[0]) == []  # one panel, by its metric
    path.write_text('picture = ["high"]\n' + path.read_text())
    page, _ = write_study(read_study(path), tmp_path)
    assert titles(page) == ["Reward", "Value loss", "Entropy"]
    assert (
        "![high over the steps: the mean over seeds, and their range.](answer.svg)"
        in page.with_suffix(".md").read_text()
    )
    path.write_text(path.read_text().replace('["high"]', '["hihg"]'))
    with pytest.raises(ConfigError, match="picture names 'hihg', which is no experiment; there are: none, high"):
        read_study(path)
