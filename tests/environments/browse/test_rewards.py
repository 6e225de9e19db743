import numpy as np
import pytest

from steadyrl.core.types import Problem, Rollout
from steadyrl.environments.browse.families import make_quest
from steadyrl.environments.browse.task import browse_rewards
from steadyrl.loop.rewards.combine import make_terms
from steadyrl.loop.tasks.attempts import score_attempts

from .conftest import expert, stumbler

WEIGHTS = {"success": 1.0, "efficiency": 0.1, "progress": 0.2, "invalid": 0.2}


def rollout(**outcome):
    names = ("prompt_ids", "completion_ids", "completion_mask", "sampling_logprobs")
    empty = dict.fromkeys(names, np.zeros(0))
    return Rollout(problem_id="p", text="", stop_reason="stop", outcome=outcome, **empty)


def value(name, **outcome):
    known = {"success": 0.0, "raw": 0.0, "progress": 0.0, "turns": 1, "invalid": 0} | outcome
    return browse_rewards(10)[name](Problem("p", ""), rollout(**known)).value


@pytest.mark.parametrize(
    ("name", "outcome", "expected"),
    [
        ("success", {"success": 1.0}, 1.0),
        ("efficiency", {"success": 1.0, "turns": 3}, 0.7),
        ("efficiency", {"success": 0.0, "turns": 1}, 0.0),  # failing fast earns nothing
        ("progress", {"progress": 0.25}, 0.25),
        ("invalid", {"invalid": 0}, 0.0),
        ("invalid", {"invalid": 3}, -0.3),
        ("invalid", {"invalid": 40}, -1.0),  # the floor
        ("raw", {"raw": -0.5}, -0.5),
    ],
)
def test_a_part_of_the_reward_is_read_from_the_outcome(name, outcome, expected):
    assert value(name, **outcome) == pytest.approx(expected)


def test_a_text_without_an_episode_is_unscored():
    score = browse_rewards(10)["success"](Problem("p", ""), rollout())
    assert score.value is None
    assert score.unscored == "no episode was played; the browse task scores episodes, not texts"


@pytest.fixture(scope="module")
def totals(site):
    """Return a function from a rule to its mean total reward over all families and levels."""
    problems = site.problems("train")[::7]

    def total(rule):
        scored = score_attempts(site, [(p, rule(i)) for i, p in enumerate(problems)], make_terms(WEIGHTS, site))
        return sum(r.reward for r in scored) / len(scored)

    return total


def test_the_expert_earns_far_more_than_any_rule_that_does_not_read(totals):
    by_expert = totals(lambda i: expert)
    at_random = totals(stumbler)
    stopping = totals(lambda i: lambda episode, turn: 'stop ""')
    pressing = totals(lambda i: lambda episode, turn: "click 0")
    circling = totals(lambda i: lambda episode, turn: ("click 0", "back")[turn % 2])
    silent = totals(lambda i: lambda episode, turn: "")
    assert by_expert > 1.2
    assert stopping == 0.0
    assert silent == pytest.approx(-0.2)  # ten malformed turns, at the floor
    # Pressing whatever comes first is right by luck in some of the smallest problems.
    assert max(at_random, pressing, circling) < 0.3


def test_progress_adds_up_to_the_difference_whatever_way_was_taken():
    """Putting a product into the cart and taking it out again, over and over, earns nothing."""
    from steadyrl.environments.browse.episode import SiteEpisode
    from steadyrl.environments.browse.site_suite import show_in_process

    quest = make_quest("buy", 1, 0)
    episode = SiteEpisode(quest, show_in_process, 600)
    episode.open()
    potentials = [quest.potential()]
    for _ in range(3):
        for said in ("click 0", "click 0", "back", "back"):  # add, remove, and back to the product
            episode.step(said)
            potentials.append(quest.potential())
    assert potentials[:3] == [0.0, 0.5, 0.0]
    assert potentials[-1] == 0.0
    assert episode.close()["progress"] == 0.0
