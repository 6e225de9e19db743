from collections import Counter

import numpy as np
import pytest

from steadyrl.environments.browse.families import FAMILIES, LEVELS, make_quest
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.task import BrowseTask
from steadyrl.loop.tasks.attempts import attempt

from .conftest import expert


@pytest.fixture(scope="module")
def experts(site):
    """Return the expert's rollouts of the problems of every family and level, by family."""
    found = {family: [] for family in FAMILIES}
    for problem in site.problems("train"):
        found[problem.columns["kind"]].append((problem, attempt(site, problem, expert)))
    return found


def test_there_are_sixteen_families_of_four_levels(site):
    counted = Counter((p.columns["kind"], p.columns["level"]) for p in site.problems("train"))
    assert len(FAMILIES) == 16
    assert counted == dict.fromkeys(((f, level) for f in FAMILIES for level in LEVELS), 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_every_problem_and_makes_all_the_progress_there_is(family, experts):
    outcomes = [rollout.outcome for _, rollout in experts[family]]
    assert {(o["success"], o["progress"], o["invalid"]) for o in outcomes} == {(1.0, 1.0, 0)}


def test_upper_levels_take_the_expert_longer(experts):
    def turns(level):
        rollouts = [r for known in experts.values() for p, r in known if p.columns["level"] == level]
        return np.mean([len(r.turns) for r in rollouts])

    by_level = [turns(level) for level in LEVELS]
    assert by_level == sorted(by_level)
    assert by_level[0] < 2.0 < 3.0 < by_level[-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_problem_follows_from_family_level_and_seed(family):
    assert _content(make_quest(family, 2, 5)) == _content(make_quest(family, 2, 5))
    assert _content(make_quest(family, 2, 5)) != _content(make_quest(family, 2, 6))


def test_the_problems_stay_what_they_are_from_version_to_version():
    # Ids are compared between runs: should one of these change, so do all stored evaluations.
    assert make_quest("open", 1, 0).goal == "open stamp"
    assert make_quest("buy", 2, 3).goal == "buy hard pen"
    assert make_quest("find", 4, 7).goal == "find new mouse"


def test_held_out_problems_are_none_of_the_training_problems_by_content(site):
    def contents(split):
        return {_content(make_quest(*(p.columns[k] for k in ("kind", "level", "seed")))) for p in site.problems(split)}

    train, heldout = contents("train"), contents("heldout")
    assert not train & heldout
    assert len(train) == len(site.problems("train"))
    assert len(heldout) == len(site.problems("heldout")) == 16 * 4 * 5


def test_small_families_give_as_many_problems_as_they_have():
    task = BrowseTask(BrowseSettings(kinds=["tick"], levels=[1], train_count=100_00))
    # Two boxes of ten in either order, one of them to be ticked: 180 problems, of which some 4 in 5 train.
    assert 120 < len(task.problems("train")) < 165


def test_an_edited_problem_is_of_the_same_family_near_in_level_and_never_held_out(site):
    generator = np.random.default_rng(0)
    problem = next(p for p in site.problems("train") if p.id.startswith("buy-2"))
    known = {p.id for split in ("train", "heldout") for p in site.problems(split)}
    edited = [site.mutate(problem, generator) for _ in range(40)]
    assert {p.columns["kind"] for p in edited} == {"buy"}
    assert {p.columns["level"] for p in edited} == {1, 2, 3}
    assert len({p.id for p in edited}) == 40 and not known & {p.id for p in edited}
    assert attempt(site, edited[0], expert).outcome["success"] == 1.0


def _content(quest):
    return f"{quest.goal} {quest.start} {quest.world}"
