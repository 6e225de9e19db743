"""Which runs of two experiments are pairs: those of equal seeds, where every one of them was measured."""

from types import SimpleNamespace

import pytest

from steadyrl.core.rundir import RunDir
from steadyrl.lab.study.file import Expect, Experiment, Rule
from steadyrl.lab.study.outcome import SeedRun, _judge
from steadyrl.lab.study.plan import Arm
from steadyrl.show.report.study import measured, numbers_of

STUDY = SimpleNamespace(seeds=(0, 1, 2), file=SimpleNamespace(metric="reward/mean", rule=Rule()))
EXPECT = Expect(says="It is higher.", be="higher")
BASE = {0: 1.0, 1: 2.0, 2: 3.0}
FIRST_THREE = {0: 1.5, 1: 2.52, 2: 3.49}


def made(folder, name, rewards):
    runs = []
    for seed, reward in rewards.items():
        record = {"step": 0, "attempt": 0, "reward/mean": reward}
        runs.append(SeedRun(seed, RunDir(folder / f"{name}-{seed}"), "finished", 1, "", "", [record]))
    return runs


@pytest.mark.parametrize(
    ("rewards", "paired"),
    [
        (FIRST_THREE, True),
        ({1: 1.5, 2: 2.52, 3: 3.49}, False),  # the same numbers of other seeds
        ({**FIRST_THREE, 3: 4.5}, False),
        ({**FIRST_THREE, 2: None}, False),
    ],
)
def test_runs_are_pairs_where_both_experiments_have_the_same_seeds(tmp_path, rewards, paired):
    runs = {"base": made(tmp_path, "base", BASE), "arm": made(tmp_path, "arm", rewards)}
    arm = Arm(Experiment(name="arm", title="t", **{"from": "base"}), None, {})
    judged = _judge(STUDY, arm, EXPECT, runs)
    assert judged.change.paired == paired
    assert judged.word == ("supported" if paired else "undecided")


@pytest.mark.parametrize(
    ("margin", "word", "end"),
    [
        (0.75, "supported", "seeds (a difference below 0.75 counts as none)."),
        (0.25, "refuted", "below 0.25 counts as none)."),
    ],
)
def test_a_reader_is_shown_the_margin_that_decides_a_comparison(tmp_path, margin, word, end):
    runs = {"base": made(tmp_path, "base", BASE), "arm": made(tmp_path, "arm", FIRST_THREE)}  # about 0.5 higher
    arm = Arm(Experiment(name="arm", title="t", **{"from": "base"}), None, {})
    judged = _judge(STUDY, arm, Expect(says="It is the same.", be="same", margin=margin), runs)
    assert judged.word == word
    assert numbers_of(judged).endswith(end)


@pytest.mark.parametrize("says", ["It is higher", "It is higher.", "It is higher. "])
def test_an_expectation_ends_before_its_numbers_begin(tmp_path, says):
    arm = Arm(Experiment(name="arm", title="t"), None, {})
    expect = Expect(says=says, be="at least", value=100.0)
    judged = _judge(STUDY, arm, expect, {"arm": made(tmp_path, "arm", BASE)})
    assert measured(judged).startswith("It is higher. reward/mean, at the end: ")


@pytest.mark.parametrize(
    ("rewards", "word"),
    [
        (BASE, "supported"),
        ({0: 1.0, 1: 2.0}, "undecided"),
        ({**BASE, 2: None}, "undecided"),
        ({0: 0.5}, "undecided"),
        ({0: 0.5, 1: 2.0, 2: 2.5}, "undecided"),  # seeds that disagree refute nothing
        ({0: 0.5, 1: 0.6, 2: 0.7}, "refuted"),
        ({}, "undecided"),
    ],
)
def test_a_bound_is_decided_once_every_seed_of_the_study_meets_or_misses_it(tmp_path, rewards, word):
    arm = Arm(Experiment(name="arm", title="t"), None, {})
    expect = Expect(says="It reaches 1.", be="at least", value=1.0)
    assert _judge(STUDY, arm, expect, {"arm": made(tmp_path, "arm", rewards)}).word == word
