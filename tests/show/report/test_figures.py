"""The summary of a run: numbers computed by hand for four problems, and what happens where something is unknown."""

import json
import math

import numpy as np
import pytest

from steadyrl.cli.report import summary_lines
from steadyrl.core.errors import RunError
from steadyrl.core.rundir import RunDir, append_line, write_json, write_lines
from steadyrl.lab.compare.verdict import judge
from steadyrl.show.report.evidence import read_evidence
from steadyrl.show.report.figures import summarise
from steadyrl.show.review.epochs import series


def answer(metric, **parts):
    return {"text": "a OR b", "reward": metric, "metric": metric, "parts": parts, "unscored": None, "note": ""}


def evaluation(answers):
    """{name: {problem: answer}} as lines of an evaluation file."""
    problems = dict.fromkeys(problem for named in answers.values() for problem in named)
    return [
        {
            "problem": p,
            "prompt": f"prompt {p}",
            "answers": {name: named[p] for name, named in answers.items() if p in named},
        }
        for p in problems
    ]


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "tiny")
    write_json(run.info_file, {"id": "tiny", "task": "search", "metric": "retrieval"})
    append_line(run.metrics_file, {"step": 0, "attempt": 0, "time": 0.0})
    return run


def evaluate(run, **files):
    for name, answers in files.items():
        write_lines(run.evaluation_file(name), evaluation(answers))
    return summarise(read_evidence(run.path))


def scored(*values):
    return {"sampled": {f"p{i}": answer(value) for i, value in enumerate(values)}}


# the paired comparison


def test_the_summary_of_a_hand_computed_case(run):
    summary = evaluate(
        run,
        before={
            "sampled": {
                "a": answer(0.0, recall=0.2),
                "b": answer(0.5, recall=0.4),
                "c": answer(None),
                "d": answer(1.0),
            },
            "greedy": {"a": answer(1.0), "b": answer(0.5)},
        },
        after={
            "sampled": {
                "a": answer(0.5, recall=0.5),
                "b": answer(1.0, recall=0.9),
                "c": answer(0.9),
                "d": answer(None),
            },
            "greedy": {"a": answer(0.5), "b": answer(0.0)},
        },
        baselines={"all words": {"a": answer(0.2, recall=1.0), "b": answer(None), "c": answer(0.6)}},
    )
    # c and d are each unscored once: a and b remain, 0.25 -> 0.75, and both changed by 0.5
    assert (summary["n"], summary["before"], summary["after"], summary["difference"]) == (2, 0.25, 0.75, 0.5)
    # Fewer than 6 problems differ: the interval allows for as large a difference the other way, from 0 to 1.
    assert summary["interval"] == [-1.0, 1.0]
    assert summary["relative"] == 2.0
    assert summary["verdict"] == "undecided"
    assert summary["unscored"] == {"before": 1, "after": 1}
    assert summary["greedy"] == {
        "n": 2,
        "before": 0.75,
        "after": 0.25,
        "difference": -0.5,
        "interval": [-1.0, 1.0],
        "relative": pytest.approx(-2 / 3),
        "verdict": "undecided",
        "reason": "2 of 2 problems differ, and fewer than 6 may do so by chance",
    }
    assert summary["parts"]["recall"]["before"] == pytest.approx(0.3)
    assert summary["parts"]["recall"]["after"] == pytest.approx(0.7)
    assert summary["baselines"] == {"all words": {"metric": pytest.approx(0.4), "recall": 1.0}}
    assert {key: summary[key] for key in ("run", "task", "metric", "decoding")} == {
        "run": "tiny",
        "task": "search",
        "metric": "retrieval",
        "decoding": "sampled",
    }


@pytest.mark.parametrize("differing", [4, 8])
def test_the_report_decides_as_a_comparison_does(run, differing):
    """Four gains of ten were "better" in the report and "undecided" in a comparison."""
    before, after = [0.0] * 10, [1.0] * differing + [0.0] * (10 - differing)
    compared = judge([[x] for x in before], [[x] for x in after])
    summary = evaluate(run, before=scored(*before), after=scored(*after))
    assert summary["verdict"] == compared.word == ("undecided" if differing < 6 else "better")
    assert summary["interval"] == [compared.change.low, compared.change.high]


def test_a_drop_on_every_problem_is_worse(run):
    before, after = np.linspace(0.7, 0.9, 8), np.linspace(0.1, 0.3, 8)
    assert evaluate(run, before=scored(*before), after=scored(*after))["verdict"] == "worse"


def test_changes_that_cancel_are_undecided(run):
    summary = evaluate(run, before=scored(0.0, 1.0, 0.0, 1.0), after=scored(1.0, 0.0, 1.0, 0.0))
    assert summary["difference"] == 0.0
    assert summary["interval"][0] < 0 < summary["interval"][1]
    assert summary["verdict"] == "undecided"


def test_one_problem_has_no_interval_and_decides_nothing(run):
    summary = evaluate(run, before=scored(0.1), after=scored(0.9))
    assert (summary["n"], summary["difference"]) == (1, pytest.approx(0.8))
    assert (summary["interval"], summary["verdict"]) == (None, "undecided")


def test_answers_that_all_have_one_value_have_no_interval(run):
    """An interval from 0 to 0 would say for certain that nothing changed, where nothing can be told."""
    summary = evaluate(run, before=scored(*[1.03] * 4), after=scored(*[1.03] * 4))
    assert (summary["difference"], summary["interval"], summary["verdict"]) == (0.0, None, "undecided")
    (line,) = [line for line in summary_lines(summary) if line.startswith("held-out")]
    assert line == "held-out retrieval, sampled: 1.030 -> 1.030, +0.000, n = 4: undecided"


def test_an_undecided_change_whose_interval_excludes_zero_says_why(run):
    """Of seven changes the five large ones rise: 8 of 128 patterns of signs have as large a sum, p = 0.0625."""
    before = [0.5] * 40
    after = [0.5] * 33 + [0.6] * 5 + [0.499] * 2
    summary = evaluate(run, before=scored(*before), after=scored(*after))
    assert (summary["interval"][0] > 0, summary["verdict"]) == (True, "undecided")
    (line,) = [line for line in summary_lines(summary) if line.startswith("held-out")]
    assert line.endswith("n = 40: undecided, because " + summary["reason"])
    assert "signs flipped at random p = 0.062" in line


def test_a_mean_of_zero_before_has_no_relative_change(run):
    summary = evaluate(run, before=scored(0.0, 0.0), after=scored(0.5, 0.5))
    assert (summary["difference"], summary["relative"]) == (0.5, None)


def test_without_an_evaluation_after_training_only_before_is_filled(run):
    summary = evaluate(run, before=scored(0.2, None, 0.4))
    assert (summary["n"], summary["before"]) == (2, pytest.approx(0.3))
    assert [summary[key] for key in ("after", "difference", "interval", "relative", "verdict")] == [None] * 5
    assert summary["unscored"] == {"before": 1, "after": None}


def test_no_problem_scored_both_times_is_undecided(run):
    summary = evaluate(run, before=scored(None, 0.5), after=scored(0.5, None))
    assert (summary["n"], summary["before"], summary["verdict"]) == (0, None, "undecided")


def test_a_number_that_is_not_finite_is_unknown(run):
    summary = evaluate(run, before=scored(math.nan, 0.5, 0.5), after=scored(0.5, 0.5, 0.5))
    assert (summary["n"], summary["unscored"]) == (2, {"before": 1, "after": 0})


def test_means_that_hardly_any_float32_holds_are_printed(run):
    huge = scored(3e38, 3e38)
    summary = evaluate(run, before=huge, after=huge, baselines={"long": huge["sampled"], "short": {"p0": answer(2.0)}})
    write_json(run.path / "summary.json", summary)
    assert summary_lines(json.loads((run.path / "summary.json").read_text()))[:3] == [
        f"held-out retrieval, sampled: {3e38:.3f} -> {3e38:.3f}, +0.000, n = 2: undecided",
        "  without a model, short: 2.000",
        f"  without a model, long: {3e38:.3f}",
    ]


# the answers that count


RISING, FALLING = ([0.25 + 0.01 * i for i in range(24)], [0.75 - 0.02 * i for i in range(24)])


def contrary(run, deploy=None):
    """Return the summary of a run whose sampled answers became better, and whose greedy ones worse."""
    if deploy is not None:
        write_json(run.resolved_file, {"evaluate": {"deploy": deploy}})
    sides = {"before": ([0.2] * 24, [0.8] * 24), "after": (RISING, FALLING)}
    return evaluate(
        run,
        **{
            when: {"sampled": scored(*sampled)["sampled"], "greedy": scored(*greedy)["sampled"]}
            for when, (sampled, greedy) in sides.items()
        },
    )


@pytest.mark.parametrize(
    ("recorded", "deploy", "word", "opposite"),
    [
        (None, "sampled", "better", "greedy answers are worse"),
        ("sampled", "sampled", "better", "greedy answers are worse"),
        ("greedy", "greedy", "worse", "sampled answers are better"),
    ],
)
def test_a_run_is_judged_by_the_way_it_will_be_used(run, recorded, deploy, word, opposite):
    summary = contrary(run, recorded)
    assert (summary["decoding"], summary["verdict"]) == (deploy, word)
    assert {key: summary[key] for key in summary[deploy]} == summary[deploy]
    lines = summary_lines(summary)
    assert [line.rpartition(": ")[2] for line in lines[:2]] == ["better", "worse"]
    assert lines[-1].startswith(f"verdict: {word} by {deploy} answers, because the 95 % interval [")
    assert f"; but {opposite}, because the 95 % interval [" in lines[-1]


def test_the_summary_says_which_answers_without_a_model_are_better(run):
    rules = {"ranked search": {"p0": answer(0.9), "p1": answer(0.5)}, "all words": {"p0": answer(0.1)}}
    low, high = scored(*[0.2] * 24), scored(*[0.8] * 24)
    better = (
        "Trained, the model scores 0.200: 1 of 2 answers without a model score higher, the best is ranked search with "
        "0.700."
    )
    summary = evaluate(run, before=low, after=low, baselines=rules)
    assert summary["against_rules"] == better and better in summary_lines(summary)
    assert evaluate(run, before=low, after=high, baselines=rules)["against_rules"].endswith(
        "0.800: no answers without a model score higher."
    )
    assert evaluate(run, before=low, after=high, baselines={})["against_rules"] == ""


def test_a_damaged_way_of_use_is_an_error_that_names_the_file(run):
    with pytest.raises(RunError, match=r"resolved.json' is damaged: evaluate.deploy is 'beam'"):
        contrary(run, "beam")


def test_a_sick_run_has_that_word_in_its_verdict(run):
    evaluate(run, before=scored(*[0.2] * 24), after=scored(*RISING))
    conclusion = summarise(read_evidence(run.path), ("repetition",))["conclusion"]
    assert conclusion.endswith("; but the doctor calls the run sick: repetition")


# health


def test_health_figures_of_a_hand_computed_run(run):
    entropies = [4.0, 3.0, 2.0, *[9.0] * 4, *[1.5] * 10]  # first three: mean 3; last ten: 1.5
    for step, entropy in enumerate(entropies):
        append_line(run.metrics_file, {"step": step, "attempt": 1, "entropy": entropy, "reward/unscored": 0.25})
    for step, kl, error in ((1, -1.0, 0.25), (2, -0.5, 0.5), (3, 2.0, 0.5), (4, -3.0, None), (5, 0.1, 0.0)):
        line = {"step": step, "attempt": 2, "entropy": entropies[step], "reward/unscored": 0.25}
        append_line(run.metrics_file, {**line, "kl_ref_k1_seq": kl, "kl_ref_k1_seq_se": error})
    health = evaluate(run, after={"sampled": {"a": answer(1.0, parseable=1.0), "b": answer(1.0, parseable=0.0)}})[
        "health"
    ]
    assert (health["entropy_start"], health["entropy_end"], health["entropy_ratio"]) == (3.0, 1.5, 0.5)
    assert (health["kl_ref_k1_seq_min"], health["kl_ref_k1_seq_min_in_se"]) == (-3.0, -4.0)
    assert health["kl_steps_below_minus_2se"] == 1
    assert health["kl_ref_exact_seq_min"] is None
    assert (health["steps"], health["unscored"], health["parseable"]) == (17, 0.25, 0.5)


@pytest.mark.parametrize(
    ("entropies", "start", "end"),
    [
        ([], None, None),
        ([0.5], None, None),
        ([0.5, 0.25], 0.5, 0.25),
        ([0.5, math.nan, 0.25], 0.5, 0.25),
        ([0.5, 0.375, 0.125], 0.5, 0.25),
        ([4.0, 3.0, 2.0, *[1.5] * 9], 3.0, 1.5),
    ],
)
def test_the_entropy_of_a_short_run_starts_and_ends_on_different_steps(run, entropies, start, end):
    """Of three steps both were the mean of all, so that a fall from 0.52 to 0.18 was printed as none."""
    for step, entropy in enumerate(entropies):
        append_line(run.metrics_file, {"step": step, "attempt": 1, "entropy": entropy})
    health = evaluate(run)["health"]
    assert (health["entropy_start"], health["entropy_end"]) == (start, end)
    assert health["entropy_ratio"] == (None if start is None else end / start)


# reading


def test_a_series_has_gaps_where_nothing_finite_was_measured():
    records = [
        {"step": 0, "x": 1.0},
        {"step": 1, "x": None},
        {"step": 2},
        {"step": 3, "x": math.inf},
        {"step": 4, "x": 2},
    ]
    values = series(records, "x")
    assert values[[0, 4]].tolist() == [1.0, 2.0]
    assert [math.isnan(value) for value in values[1:4]] == [True] * 3


def test_a_torn_last_line_is_ignored(run):
    evaluate(run, before=scored(0.2, 0.4))
    for path in (run.metrics_file, run.evaluation_file("before")):
        with path.open("a") as file:
            file.write('{"step": 1, "problem": "p2", "ans')
    summary = summarise(read_evidence(run.path))
    assert (summary["n"], summary["health"]["steps"]) == (2, 1)


def test_an_evaluation_line_without_answers_is_an_error_that_names_the_file(run):
    append_line(run.evaluation_file("before"), {"problem": "a"})
    with pytest.raises(RunError, match=r"before\.jsonl.*without 'problem' or 'answers'"):
        read_evidence(run.path)


def test_a_run_without_steps_is_refused(run):
    run.metrics_file.unlink()
    with pytest.raises(RunError, match="has no steps yet"):
        read_evidence(run.path)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is not a run directory"):
        read_evidence(tmp_path)
