from dataclasses import replace

import numpy as np
import pytest

from steadyrl.doctor.checks.hacking import heldout_worse, reward_hacking
from tests.doctor.checks.series_for_values import finding, healthy, noise, rise, said, series, unclear

N = 300
AT = np.arange(0, N, 15)
PARTS = ("reward_part/retrieval", "reward_part/structure")


def heldout(values, name="retrieval", scale=0.01, seed=0):
    return series(f"heldout/{name}", values + scale * np.random.default_rng(seed).normal(size=len(values)), AT)


def test_held_out_problems_that_get_worse_while_the_reward_rises_are_critical():
    found = finding(reward_hacking(healthy(n=N, heldout__retrieval=heldout(np.linspace(0.5, 0.2, len(AT))))))
    assert (found.cause, found.severity) == ("held_out_falls", "critical")
    assert "heldout/retrieval falls" in found.message
    assert "algorithm.args.kl_coef=0.1" in found.overrides


def test_a_held_out_score_that_slides_within_the_noise_of_its_blocks_is_a_fault_by_its_line():
    slide = heldout(np.linspace(0.9, 0.868, len(AT)), scale=0.008, seed=5)
    level, noises = np.full(N, 0.94), noise(np.random.default_rng(2), N, 0.02)
    found = finding(reward_hacking(healthy(n=N, reward=level + noises, heldout__retrieval=slide)))
    assert (found.cause, found.severity) == ("held_out_falls", "warning")
    still = heldout(np.full(len(AT), 0.88), scale=0.008, seed=5)
    assert not said(reward_hacking(healthy(n=N, reward=level + noises, heldout__retrieval=still)))


@pytest.mark.parametrize(
    ("late", "idle"),
    [
        (0.3, []),  # a third of the answers is right, whatever the rest pays
        (0.012, ["rightness_idle"]),  # and one in eighty is not much more than none
    ],
)
def test_a_share_of_right_answers_counts_by_itself_beside_a_large_reward(late, idle):
    reward = rise(N, 0.0, 40.0) + noise(np.random.default_rng(3), N, 0.5)
    solved = np.full(N, late) + noise(np.random.default_rng(4), N, late / 10)
    made = healthy(n=N, reward=reward, reward_part__solved=solved, without=[*PARTS, "heldout/retrieval"])
    assert [result.cause for result in said(reward_hacking(made)) if result.cause == "rightness_idle"] == idle


@pytest.mark.parametrize(("change", "said_of"), [(0.0, ["held_out_falls"]), (-0.4, [])])
def test_held_out_problems_that_get_worse_harm_unless_the_reward_falls_too(change, said_of):
    reward = 0.6 + change * np.linspace(0.0, 1.0, N) + noise(np.random.default_rng(1), N, 0.02)
    scores = heldout(np.linspace(0.55, 0.25, len(AT)))
    results = said(reward_hacking(healthy(n=N, reward=reward, heldout__retrieval=scores)))
    assert [(result.cause, result.severity) for result in results] == [(cause, "warning") for cause in said_of]


def test_a_part_that_falls_is_worth_knowing_where_nothing_is_held_out():
    part = rise(N, 0.6, 0.2) + noise(np.random.default_rng(0), N, 0.02)
    run = healthy(n=N, reward_part__retrieval=part, without=["heldout/retrieval"])
    found = finding(reward_hacking(run))
    assert (found.cause, found.severity) == ("part_falls", "info")
    assert "retrieval" in found.message


def test_a_falling_length_is_no_goal_that_falls():
    run = healthy(n=N, heldout__length=heldout(np.linspace(30, 5, len(AT)), "length"))
    assert said(reward_hacking(run)) == []


def test_with_the_trained_reward_alone_it_cannot_be_told():
    run = healthy(n=N, without=[*PARTS, "heldout/retrieval"])
    assert "heldout/*" in unclear(reward_hacking(run)).would_tell
    assert "heldout/*" in unclear(reward_hacking(run)).would_tell


def test_held_out_problems_past_their_peak_name_the_checkpoint():
    course = np.concatenate([np.linspace(0.1, 0.6, 10), np.linspace(0.6, 0.25, 10)])  # best at evaluation 10: step 150
    found = finding(reward_hacking(healthy(n=N, heldout__retrieval=heldout(course))))
    assert found.cause == "past_peak"
    assert 105 <= found.since_step <= 165
    assert found.overrides == (f"run.steps={found.since_step}",)


@pytest.mark.parametrize(("end", "reward_end", "hacked"), [(40, 0.8, True), (3, 0.8, False), (40, 0.2, False)])
def test_answers_that_the_log_says_cheat_and_that_become_more_are_hacking(end, reward_end, hacked):
    rng = np.random.default_rng(1)
    counts = np.linspace(3, end, N) + rng.normal(0, 2, N)
    run = healthy(n=N, reward=np.linspace(0.2, reward_end, N) + noise(rng, N, 0.02))
    run = replace(run, series={**run.series, "hacks": (series("hacks", counts, np.arange(N)),)})
    assert ([result.cause for result in said(reward_hacking(run))] == ["hacks_rise"]) == hacked


def causes(levels):
    """Return what is said of 42 evaluations with these levels, seven at each, and noise of 0.012."""
    course = np.repeat(levels, 7) + np.random.default_rng(3).normal(0, 0.012, 42)
    run = healthy(n=N, heldout__retrieval=series("heldout/retrieval", course, 7 * np.arange(42)))
    return [result.cause for result in said(reward_hacking(run))]


def test_the_best_of_many_evaluations_is_high_by_chance_too():
    assert causes([0.18, 0.20, 0.22, 0.235, 0.275, 0.237]) == []  # a third of the gain is lost, by two block means
    assert causes([0.18, 0.20, 0.22, 0.275, 0.245, 0.205]) == ["past_peak"]


def test_a_run_that_broke_altogether_is_not_reward_hacking():
    course = np.concatenate([np.linspace(0.1, 0.6, 10), np.linspace(0.6, 0.25, 10)])
    reward = np.interp(np.arange(N), AT, course) + noise(np.random.default_rng(0), N, 0.02)
    assert said(reward_hacking(healthy(n=N, heldout__retrieval=heldout(course), reward=reward))) == []


def test_a_plateau_with_noise_is_no_peak():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        course = rise(len(AT), 0.1, 0.5, 5.0) + noise(rng, len(AT), 0.02)
        assert said(reward_hacking(healthy(seed, N, heldout__retrieval=series("heldout/retrieval", course, AT)))) == []


RISES, FALLS, STAYS = (
    np.array([np.full(40, 0.5), np.full(40, 0.5) + change])
    for change in (np.linspace(0.01, 0.3, 40), np.linspace(-0.3, -0.01, 40), np.tile([-0.2, 0.2], 20))
)


@pytest.mark.parametrize(
    ("scores", "cause"),
    [
        ({"sampled": RISES, "greedy": FALLS}, "one_decoding"),
        ({"sampled": FALLS, "greedy": STAYS}, "one_decoding"),
        ({"sampled": FALLS, "greedy": FALLS}, "everywhere"),
        ({"sampled": FALLS}, "everywhere"),
        ({"sampled": RISES, "greedy": STAYS}, None),
        ({"sampled": STAYS, "greedy": STAYS}, None),
    ],
)
def test_held_out_answers_that_became_worse_make_no_healthy_run(scores, cause):
    results = said(heldout_worse(replace(healthy(n=N), scores=scores)))
    assert [(found.cause, found.severity) for found in results] == ([(cause, "warning")] if cause else [])


def test_ways_of_answering_that_contradict_each_other_are_both_named():
    found = finding(heldout_worse(replace(healthy(n=N), scores={"sampled": RISES, "greedy": FALLS})))
    assert found.message.startswith(
        "held-out answers became worse if they are greedy: sampled 0.5 -> 0.655, greedy 0.5"
    )
    assert [line.partition(", because ")[0] for line in found.evidence] == [
        "sampled answers are better",
        "greedy answers are worse",
    ]


@pytest.mark.parametrize("scores", [{}, {"sampled": np.array([[0.5], [0.25]])}])
def test_without_two_problems_that_were_scored_twice_it_cannot_be_told(scores):
    missing = unclear(heldout_worse(replace(healthy(n=N), scores=scores)))
    assert "fewer than two held-out problems" in missing.message


@pytest.mark.parametrize(("name", "said_of"), [("violation_rate", []), ("solve_rate", ["held_out_falls"])])
def test_a_measurement_of_which_less_is_better_may_fall(name, said_of):
    run = healthy(n=N, **{f"heldout__{name}": heldout(np.linspace(0.5, 0.2, len(AT)), name)})
    assert [result.cause for result in said(reward_hacking(run))] == said_of


@pytest.mark.parametrize(("name", "cause"), [("check_numbers", None), ("tidy_form", "rightness_idle")])
def test_a_number_that_is_right_pays_for_the_task(name, cause):
    rising, idle = rise(N, 0.1, 0.6) + noise(np.random.default_rng(0), N, 0.02), np.zeros(N)
    parts = {f"reward_part__{name}": rising, "reward_part__check_answer": idle}
    run = healthy(n=N, reward=rising, without=[*PARTS, "heldout/retrieval"], **parts)
    assert [result.cause for result in reward_hacking(run) if result.state == "found"] == ([cause] if cause else [])


@pytest.mark.parametrize(("name", "course", "degrades"), [
    ("eval_perplexity", [5.0, 7.0, 16.0], True),
    ("ppl", [5.0, 6.0, 8.0], False),  # not twice as much
    ("perplexity", [16.0, 7.0, 20.0], False),  # not third by third
    ("coverage", [5.0, 7.0, 16.0], False),
])  # fmt: skip
def test_a_perplexity_that_doubles_while_the_reward_rises_is_text_that_degrades(name, course, degrades):
    at = 10 * np.arange(6)
    measured = {f"heldout__{name}": series(f"heldout/{name}", np.repeat(course, 2), at)}
    run = healthy(n=N, without=["heldout/retrieval"], **measured)
    causes = [result.cause for result in said(reward_hacking(run))]
    assert ("text_degrades" in causes) == degrades
