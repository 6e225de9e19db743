import json
import os
import platform

import pytest

from steadyrl.core.rundir import append_line, write_json
from tests import needs
from tests.show.web.ask import ask
from tests.show.web.made import make_run, metrics

needs.skip_without_packages("starlette", extra="web")

from steadyrl.show.web.app import create  # noqa: E402 # it needs the packages

HOSTILE = "<script>alert(1)</script>"
KEYS = ("base-s0-11111111", "base-s1-22222222", "fast-s0-33333333")


def make_study(path, **more):
    """Make a study of two experiments and two seeds, three of whose four runs were begun."""
    for key, status in zip(KEYS, ("finished", "finished", "running"), strict=True):
        run = make_run(path / "runs" / key / f"20260101-0000-{key}", status=status)
        write_json(run.info_file, {**run.info(), "process": {"id": os.getpid(), "node": platform.node()}})
    arms = [
        {"name": "base", "title": "As it is", "from": "", "changed": {}},
        {"name": "fast", "title": HOSTILE, "from": "base", "changed": {"update.learning_rate": [0.001, 0.01]}},
    ]
    described = {"file": "rates.toml", "title": "Rates", "question": "Which?", "seeds": [0, 1], "arms": arms}
    write_json(
        path / "plan.json", {"metric": "entropy", "expect": {"base": [], "fast": []}, "study": described, **more}
    )
    return path


def make_report(path, word="refuted"):
    said = {"says": "It is faster.", "verdict": word, "values": [0.5, "x"], "others": [0.25]}
    arms = {
        "base": {"verdict": "not asked", "finding": "entropy, at the end: 1.8", "expectations": [], "runs": []},
        "fast": {"verdict": word, "finding": HOSTILE, "expectations": [said, said], "runs": []},
    }
    write_json(path / "report" / "summary.json", arms)


def test_studies_are_listed_with_how_far_they_are_and_their_verdicts(tmp_path):
    make_run(tmp_path / "alone")
    study = make_study(tmp_path / "studies" / "rates")
    text = ask(create(tmp_path), "/studies").text
    assert text.count("/study/") == 1
    assert '<a href="/study/studies~rates">Rates</a>' in text
    assert "Which?" in text
    assert '<progress max="4" value="2"' in text
    assert "1 running" in text
    assert "refuted" not in text
    make_report(study)
    assert "refuted" in ask(create(tmp_path), "/studies").text


def test_a_study_shows_each_run_of_each_experiment_and_what_was_changed(tmp_path):
    study = make_study(tmp_path / "rates")
    append_line(study / "runs" / KEYS[0] / f"20260101-0000-{KEYS[0]}" / "metrics.jsonl", metrics(20, entropy=0.125))
    text = ask(create(tmp_path), "/study/rates").text
    base, fast = text.index("<strong>base</strong>"), text.index("<strong>fast</strong>")
    assert base < text.index(">0.125</a>") < fast
    row = text[fast : text.index("</tr>", fast)]
    assert "<code>update.learning_rate</code>" in row
    assert "0.001 →</span> 0.01" in row
    assert f"run=rates~runs~{KEYS[0]}~20260101-0000-{KEYS[0]}&amp;run=rates~runs~{KEYS[2]}~" in row
    assert "not run" in row
    assert "There is no report yet" in text
    assert f"/run/rates~runs~{KEYS[0]}~20260101-0000-{KEYS[0]}/curves" in text
    only = ask(create(tmp_path), "/study/rates?arm=fast").text
    sources = only[only.index("data-sources") : only.index(">", only.index("data-sources"))]
    assert KEYS[2] in sources
    assert KEYS[0] not in sources
    assert "<html" not in ask(create(tmp_path), "/study/rates?part=1").text


def test_a_study_of_a_heldout_metric_shows_its_mean_and_counts_no_warm_start(tmp_path):
    study = make_study(tmp_path / "rates")
    write_json(study / "plan.json", {**json.loads((study / "plan.json").read_text()), "metric": "after/metric"})
    make_run(study / "runs" / "warm-start-s0-44444444" / "20260101-0000-warm")
    for key, line in (
        (KEYS[0], '{"problem": "a", "answers": {"sampled": {"metric": 0.625}}}\n'),
        (KEYS[1], "damaged\n{}\n"),
    ):
        file = study / "runs" / key / f"20260101-0000-{key}" / "evaluations" / "after.jsonl"
        file.parent.mkdir()
        file.write_text(line)
    text = ask(create(tmp_path), "/study/rates").text
    assert text.count(">0.625</a>") == 1
    assert '<progress max="4" value="2"' in text


def test_the_verdicts_are_those_of_the_report(tmp_path):
    study = make_study(tmp_path / "rates")
    make_report(study)
    text = ask(create(tmp_path), "/study/rates").text
    assert "entropy, at the end: 1.8" in text
    assert "It is faster." in text
    assert "0.500 against 0.250" in text
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_run_that_a_rule_ended_is_done_for_the_study(tmp_path):
    study = make_study(tmp_path / "rates")
    runs = [{"seed": 0, "state": "ended by a rule", "steps": 20}]
    write_json(study / "report" / "summary.json", {"fast": {"verdict": "undecided", "runs": runs}})
    info = study / "runs" / KEYS[2] / f"20260101-0000-{KEYS[2]}" / "run.json"
    write_json(info, {**json.loads(info.read_text()), "status": "interrupted"})
    text = ask(create(tmp_path), "/study/rates").text
    assert "ended by a rule" in text
    assert '<progress max="4" value="3"' in text


def test_a_study_of_an_earlier_version_without_titles_is_shown(tmp_path):
    study = make_study(tmp_path / "rates")
    write_json(study / "plan.json", {"metric": "entropy", "expect": {"base": [], "slow": []}})
    text = ask(create(tmp_path), "/study/rates").text
    for arm in ("base", "slow", "fast"):
        assert f"<strong>{arm}</strong>" in text
    assert "of 3 begun" in text


def test_a_study_may_be_the_folder_itself_and_the_newest_run_of_a_seed_counts(tmp_path):
    study = make_study(tmp_path / "rates")
    make_run(study / "runs" / KEYS[0] / "20270101-0000-again", steps=3)
    text = ask(create(study), "/study/rates").text
    assert "20270101-0000-again" in text
    assert f"/run/runs~{KEYS[0]}~20260101" not in text


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "[]",
        "{",
        '{"study": [1], "expect": "x", "metric": {}}',
        '{"study": {"arms": [1, {"name": 2}], "seeds": ["a"]}}',
    ],
)
def test_a_plan_that_no_study_wrote_breaks_no_page(tmp_path, plan):
    study = make_study(tmp_path / "rates")
    make_report(study, word="<b>")
    (study / "plan.json").write_text(plan)
    app = create(tmp_path)
    assert ask(app, "/studies").status == 200
    assert ask(app, "/study/rates").status == 200


def test_nothing_outside_the_folder_is_read_as_a_study(tmp_path):
    study = make_study(tmp_path / "rates")
    (tmp_path / "secret.json").write_text(json.dumps({"study": {"title": "secret"}}))
    (study / "plan.json").unlink()
    os.symlink(tmp_path / "secret.json", study / "plan.json")
    app = create(study)
    assert "secret" not in ask(app, "/studies").text
    assert ask(app, "/study/rates").status == 404
    assert ask(app, "/study/..").status == 404
    assert "no studies" in ask(app, "/studies").text
