"""What a page shows first: the verdict, the curves that count, and names without what all have in common."""

import html
import json
import re
import time

import pytest

from steadyrl.core.rundir import write_json, write_lines
from steadyrl.doctor.examine import diagnose
from tests import needs
from tests.show.web.ask import ask, ask_json
from tests.show.web.made import make_run, metrics, rollout

needs.skip_without_packages("starlette", extra="web")

from steadyrl.show.report.topics import overview  # noqa: E402
from steadyrl.show.web.app import create  # noqa: E402 # it needs the packages
from steadyrl.show.web.compare_page import short_names  # noqa: E402
from steadyrl.show.web.diagnosis import Diagnoses  # noqa: E402
from steadyrl.show.web.folder import Folder  # noqa: E402
from steadyrl.show.web.rollout_page import with_differences  # noqa: E402


def charts(text):
    """Return the titles of the overview, and those of each topic."""
    first, *topics = text.split('<details class="topic"')
    titles = [re.findall('data-title="(.*?)"', part.split('id="own"')[0]) for part in (first, *topics)]
    return titles[0], titles[1:]


def with_metrics(run, steps=60, **more):
    rows = [metrics(step, **{name: value(step) for name, value in more.items()}) for step in range(steps)]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


MEASURED = {
    "heldout/retrieval": lambda step: step / 100,
    "grad_norm": lambda step: 1.0,
    "heldout/bits": lambda step: 2.0,
}


def test_the_first_curves_are_score_with_reward_kl_entropy_and_gradient_norm(tmp_path):
    with_metrics(make_run(tmp_path / "a", status="running"), **MEASURED)
    text = ask(create(tmp_path), "/run/a").text
    first, topics = charts(text)
    assert first == ["Held-out score and reward", "KL", "Entropy", "Gradient norm"]
    figure = html.unescape(re.search(r'data-metrics="(.*?)" data-title="Held-out', text).group(1))
    assert [name for name, _ in json.loads(figure)] == ["heldout/retrieval", "reward/mean"]
    assert ["heldout/bits"] in topics, "the rest is there, by topic, and nothing twice"
    assert text.index('id="what"') > text.index('data-title="Gradient norm"'), "findings stand below the curves"


def test_compared_runs_are_drawn_by_the_kl_that_all_of_them_have(tmp_path):
    without_reference = {"kl_old_k3": lambda step: 0.01, "kl_ref_k1_seq": lambda step: None}
    with_metrics(make_run(tmp_path / "a"), **without_reference)
    with_metrics(make_run(tmp_path / "b"), kl_old_k3=lambda step: 0.02)
    drawn = {}
    for address in ("/run/a", "/run/b", "/compare?run=a&run=b"):
        text = ask(create(tmp_path), address).text
        drawn[address] = json.loads(html.unescape(re.search(r'data-metrics="([^"]*)" data-title="KL"', text).group(1)))
    # Each name stands in the legend: the title does not say which KL it is.
    old, reference = [["kl_old_k3", "kl_old_k3"]], [["kl_ref_k1_seq", "kl_ref_k1_seq"]]
    assert drawn == {"/run/a": old, "/run/b": reference, "/compare?run=a&run=b": old}


def test_what_another_trainer_logs_begins_with_its_reward(tmp_path):
    rows = [
        {"step": i, "entropy": 2.0, "grad_norm": 0.5, "kl": 0.01, "reward_std": 0.1, "loss": 0.1, "reward": i / 60}
        for i in range(60)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, topics = charts(ask(create(tmp_path), "/run/log.jsonl").text)
    assert first == ["Reward", "KL", "Entropy", "Gradient norm"]
    assert topics[0] == ["reward_std"]


def test_speed_and_memory_stand_with_the_facts_of_a_run(tmp_path):
    run = with_metrics(make_run(tmp_path / "a"), **{"tokens/per_second": lambda step: 100.0 + step})
    write_json(run.info_file, {**run.info(), "memory": {"peak": 2**30, "total": 2**34, "place": "CUDA device"}})
    facts = ask(create(tmp_path), "/run/a").text.partition('<dl class="facts">')[2].partition("</dl>")[0]
    assert "<dt>tokens a second</dt><dd>159</dd>" in facts
    assert "<dt>memory</dt><dd>1.00 of 16.0 GiB at most (CUDA device)</dd>" in facts


def test_a_measurement_has_no_unit_of_the_reward(tmp_path):
    with_metrics(make_run(tmp_path / "a"), **{"reward/result_size": lambda step: 20.0})
    text = ask(create(tmp_path), "/run/a").text
    assert 'data-title="reward/result_size" data-unit=""' in text


def test_panels_of_many_runs_hold_one_metric_each_under_the_names_that_each_run_has():
    ours, theirs = {"reward/mean": "reward/mean", "entropy": "entropy"}, {"reward": "train/reward"}
    panels = overview([ours, theirs], "", apart=True)
    assert [(panel.title, [name for name, _ in panel.metrics]) for panel in panels] == [
        ("Reward", ["reward/mean", "train/reward"]),
        ("Entropy", ["entropy"]),
    ]


@pytest.mark.parametrize(("after", "verdict", "change"), [(0.0, "sick", "worse"), (0.9, "healthy", "better")])
def test_the_verdict_stands_in_the_table_and_first_on_the_page_of_a_run(tmp_path, after, verdict, change):
    falling = verdict == "sick"
    run = with_metrics(
        make_run(tmp_path / "a"),
        **{
            "reward/mean": lambda step: (0.8 - 0.01 * step if falling else 0.2 + 0.01 * step) + 0.01 * (step % 3),
            "reward/std": lambda step: 0.1,
            "groups/no_signal": lambda step: 0.1,
            "completion/length": lambda step: 50.0 + step % 5,
            "completion/truncated": lambda step: 0.0,
            "grad_norm": lambda step: 0.5 + 0.1 * (step % 2),
            "kl_ref_k1_seq": lambda step: 0.01 * step,
        },
    )
    (diagnosis,) = diagnose(run.path)
    assert diagnosis.verdict == verdict
    doctor = {"verdict": diagnosis.verdict, "findings": []}
    write_json(run.report_folder / "summary.json", {"after": after, "before": 0.4, "verdict": change, "doctor": doctor})
    table = ask(create(tmp_path), "/").text
    page = ask(create(tmp_path), "/run/a").text
    for text in (table, page[: page.index("Rollouts</a>")]):
        words = re.findall(r'<span class="word[^>]*>(.*?)</span>', text)
        assert words == [verdict, change]
    if falling:
        lead = next(finding for finding in diagnosis.findings if finding.harms)
        assert f'<a href="#what"><strong>{lead.check}</strong></a>' in page
    curve = ask_json(create(tmp_path), "/run/a/curves")["lines"]["heldout/retrieval"][0]
    assert (curve[0], curve[-1], set(curve[1:-1])) == (0.4, after, {None}), "measured before and after training only"


def test_the_score_before_training_begins_the_curve_of_the_scores_during_it(tmp_path):
    run = make_run(tmp_path / "a", steps=4)
    scores = {1: 0.7, 3: 0.8}  # after the steps 1 and 3
    lines = [{**metrics(step), **({"heldout/retrieval": scores[step]} if step in scores else {})} for step in range(4)]
    write_lines(run.metrics_file, lines)
    write_json(run.report_folder / "summary.json", {"before": 0.3, "after": 0.8})
    curve = ask_json(create(tmp_path), "/run/a/curves")["lines"]["heldout/retrieval"][0]
    assert curve == [0.3, 0.7, None, 0.8]


def test_a_log_has_its_verdict_in_the_table_once_a_thread_has_read_it(tmp_path):
    rows = [{"step": i, "loss": 0.1, "reward": 0.5, "kl": -0.2 * i} for i in range(60)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnoses, place = Diagnoses(), Folder(tmp_path).find("log.jsonl")
    assert diagnoses.brief(place) is None  # the table does not wait for it
    end = time.monotonic() + 60
    while (brief := diagnoses.brief(place)) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert (brief.verdict, brief.step, brief.reward) == ("sick", 59, 0.5)


def test_the_curves_can_be_drawn_over_tokens_and_time(tmp_path):
    with_metrics(make_run(tmp_path / "a", status="running"), 5, **{"tokens/sampled": lambda step: 100.0 + step})
    app = create(tmp_path)
    axes = ask_json(app, "/run/a/curves")["axes"]
    assert axes == {"time": [0, 10, 20, 30, 40], "tokens": [100, 201, 303, 406, 510]}
    assert ask_json(app, "/run/a/curves?after=2")["axes"] == {"time": [30, 40], "tokens": [406, 510]}


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["20261126-061022-grpo-search-s0", "20261126-061708-grpo-search-s0"], ["061022", "061708"]),
        (["a/ppo-s0", "a/ppo-s1"], ["s0", "s1"]),
        (["ppo", "ppo-two"], ["ppo", "ppo-two"]),
        (["20261127-ppo-search-s0", "20261127-ppo-search-s0-2"], ["s0", "s0-2"]),
        (["one"], ["one"]),
        (["x-1-y", "x-2-y", "x-1-z"], ["1-y", "2-y", "1-z"]),
    ],
)
def test_names_are_shortened_to_what_differs(names, short):
    assert short_names(names) == short


def test_the_form_of_a_comparison_begins_with_two_runs_that_differ_of_one_task(tmp_path):
    for i, task in enumerate(("search", "math", "search")):
        run = make_run(tmp_path / f"r{i}", steps=5 + i)
        write_json(run.info_file, {**run.info(), "task": task})
    text = ask(create(tmp_path), "/compare").text
    assert re.findall(r'<option value="(r\d)" selected>', text) == ["r2", "r0"]
    assert re.findall(r'<option value="(r\d)" selected>', ask(create(tmp_path), "/compare?run=r1").text) == ["r1", "r2"]


def test_the_words_that_not_all_answers_have_are_marked():
    first, second, third = with_differences(["the red apple", "the green apple", "the apple"])
    assert first == [("the ", False), ("red ", True), ("apple", False)]
    assert second == [("the ", False), ("green ", True), ("apple", False)]
    assert third == [("the apple", False)]
    assert with_differences(["alone"]) == [[("alone", False)]]
    assert with_differences(["", "a"]) == [[], [("a", True)]]
    texts = ["x = f(1, 2)\n", "x = f(1, 3)\n"]
    assert ["".join(text for text, _ in pieces) for pieces in with_differences(texts)] == texts


def test_rollouts_stand_by_problem_and_equal_answers_once(tmp_path):
    run = make_run(tmp_path / "a")
    answers = [("p1", 0.5, "yes"), ("p2", 0.1, "no"), ("p1", 0.5, "yes"), ("p1", 0.9, "maybe yes")]
    write_lines(run.rollouts_file(20), [rollout(problem, reward, text) for problem, reward, text in answers])
    text = ask(create(tmp_path), "/run/a/rollouts?step=20").text
    first, second = text.split('<section class="problem">')[1:]
    assert "<h2>p2</h2>" in first and "<h2>p1</h2>" in second  # the problem with the worst answer first
    assert second.count('<article class="rollout">') == 2
    assert "2 × the same" in second and "#0</a><a" in second and "#2</a>" in second
    assert "<mark>maybe </mark>yes" in second
    assert second.count("the prompt of p1") == 1
    assert "mean reward <strong>0.633</strong> of 3 answers" in second
