import numpy as np
import pytest

from steadyrl.doctor.checks.ending import empty_completions, truncated
from steadyrl.doctor.checks.length import length_collapse, length_explosion, repetition
from tests.doctor.checks.series_for_values import finding, healthy, make_run, noise, rise, said, series, unclear

N = 200
PARTS = ("reward_part/retrieval", "reward_part/structure", "heldout/retrieval")


def rng(seed=0):
    return np.random.default_rng(seed)


def shrinking(end=2.0):
    return rise(N, 24.0, end, 5.0) + noise(rng(7), N, 0.3)


# length_collapse


def test_a_reward_that_is_the_length_is_found_without_any_part_named_so():
    # the founding reward: 2 - words / 16
    length = shrinking()
    found = finding(length_collapse(healthy(n=N, length=length, reward=2 - length / 16, without=PARTS)))
    assert (found.cause, found.severity) == ("length_reward", "warning")
    assert "-1)" in found.message  # the correlation


@pytest.mark.parametrize(("greatest", "severity"), [(np.ones(N), "info"), (np.linspace(0.6, 1.0, N), "warning")])
def test_failures_that_last_longer_pay_for_no_brevity_where_the_best_answer_earns_the_same(greatest, severity):
    right = np.clip(rise(N, 0.4, 0.95, 6.0) + noise(rng(4), N, 0.02), 0, 1)
    run = healthy(n=N, length=30 + 400 * (1 - right), reward=right, reward_max=greatest)
    assert finding(length_collapse(run)).severity == severity


def test_a_part_named_length_that_rises_is_the_cause():
    length = shrinking()
    run = healthy(n=N, length=length, reward_part__length=2 - length / 16)
    found = finding(length_collapse(run))
    assert found.cause == "length_reward"
    assert "the reward part 'length' pays for being short" in found.message


def test_almost_nothing_left_while_held_out_problems_get_worse_is_critical():
    length = shrinking(1.5)
    at = np.arange(0, N, 10)
    heldout = series("heldout/retrieval", rise(len(at), 0.5, 0.05, 5.0) + noise(rng(), len(at), 0.01), at)
    run = healthy(n=N, length=length, reward=2 - length / 16, heldout__retrieval=heldout)
    found = finding(length_collapse(run))
    assert found.severity == "critical"
    assert any("heldout/retrieval fell" in line for line in found.evidence)


def test_length_given_up_for_something_else_is_paid_for_too():
    run = healthy(n=N, length=shrinking(5.0), reward_part__retrieval=rise(N, 0.6, 0.1) + noise(rng(), N, 0.02))
    found = finding(length_collapse(run))
    assert (found.cause, found.severity) == ("length_reward", "warning")


def test_learning_to_stop_is_worth_knowing_only():
    cut = np.clip(rise(N, 0.7, 0.03, 6.0) + noise(rng(1), N, 0.01), 0, 1)
    found = finding(length_collapse(healthy(n=N, length=shrinking(8.0), truncated=cut)))
    assert (found.cause, found.severity) == ("learned_to_stop", "info")


def test_shrinking_with_nothing_lost_is_unknown_and_worth_knowing_only():
    found = finding(length_collapse(healthy(n=N, length=shrinking(8.0))))
    assert (found.cause, found.severity) == ("unknown", "info")


def test_one_word_and_its_end_are_an_answer_where_answers_were_short_from_the_start():
    found = finding(length_collapse(healthy(n=N, length=rise(N, 6.0, 2.1, 5.0) + noise(rng(7), N, 0.1))))
    assert (found.cause, found.severity) == ("unknown", "info")


def test_only_the_end_token_is_no_answer():
    found = finding(length_collapse(healthy(n=N, length=rise(N, 6.0, 1.1, 5.0) + noise(rng(7), N, 0.05))))
    assert found.severity == "warning"


def test_a_third_less_is_healthy():
    assert said(length_collapse(healthy(n=N, length=rise(N, 100.0, 66.0) + noise(rng(), N, 3.0)))) == []


# length_explosion


def growing():
    return rise(N, 40.0, 400.0) + noise(rng(3), N, 8.0)


def test_long_texts_without_more_reward_are_a_warning():
    found = finding(length_explosion(healthy(n=N, length=growing(), reward=0.5 + noise(rng(), N, 0.03))))
    assert found.severity == "warning"
    assert "the reward did not rise" in found.message


def test_long_texts_that_go_in_circles_are_repetition():
    run = healthy(n=N, length=growing(), repetition=rise(N, 0.05, 0.6) + noise(rng(), N, 0.02))
    assert "repeated word triples grew" in finding(length_explosion(run)).message


def test_long_texts_that_are_cut_off_have_no_end():
    cut = np.clip(rise(N, 0.0, 0.9) + noise(rng(), N, 0.02), 0, 1)
    assert "cut off at the end" in finding(length_explosion(healthy(n=N, length=growing(), truncated=cut))).message


def test_a_reward_that_follows_the_length_pays_for_it():
    length = growing()
    found = finding(length_explosion(healthy(n=N, length=length, reward=length / 400)))
    assert found.severity == "info"
    assert "the reward follows the length" in found.message


def test_growth_with_a_rising_reward_is_healthy():
    assert said(length_explosion(healthy(n=N, length=growing()))) == []


# truncated


def test_texts_that_never_end_from_the_first_step():
    found = finding(truncated(healthy(n=N, truncated=np.full(N, 0.98))))
    assert (found.cause, found.since_step) == ("never_ends", 0)


@pytest.mark.parametrize(("share", "limit"), [(0.36, 96), (0.6, 192), (0.7, 256)])
def test_a_limit_that_cuts_many_from_the_start_is_too_low(share, limit):
    """Of 32 tokens, reached by 0.6: of 5.86 times as many 0.05 is left, and 192 are 6 times 32. At most 8 times."""
    found = finding(truncated(healthy(n=N, truncated=np.full(N, share), settings={"max_new_tokens": 32})))
    assert (found.cause, found.overrides) == ("limit_too_low", (f"sampling.max_new_tokens={limit}",))


def test_a_share_that_grew_is_told_from_one_that_was_there():
    share = np.where(np.arange(N) < 100, 0.1, 0.8)
    found = finding(truncated(healthy(n=N, truncated=share)))
    assert (found.cause, found.since_step) == ("grew", 100)


@pytest.mark.parametrize(("scores", "severity"), [([0.1, 0.4, 0.7, 0.8], "info"), ([0.8, 0.7, 0.4, 0.1], "warning")])
def test_a_limit_does_no_harm_to_what_is_learned_beyond_the_training_problems(scores, severity):
    solved = series("heldout/accuracy", np.array(scores), np.array([0, 50, 100, 150]))
    other = ["heldout/retrieval"]
    run = healthy(
        n=N, truncated=np.full(N, 0.55), settings={"max_new_tokens": 32}, heldout__accuracy=solved, without=other
    )
    found = finding(truncated(run))
    assert (found.cause, found.severity) == ("limit_too_low", severity)


def test_growing_texts_are_worth_knowing_only_while_the_reward_rises():
    share = np.where(np.arange(N) < 100, 0.05, 0.24)
    assert finding(truncated(healthy(n=N, truncated=share))).severity == "info"
    many = np.where(np.arange(N) < 100, 0.05, 0.27)
    assert finding(truncated(healthy(n=N, truncated=many))).severity == "warning"
    share, flat = np.where(np.arange(N) < 100, 0.1, 0.8), 0.5 + noise(rng(1), N, 0.03)
    assert finding(truncated(healthy(n=N, truncated=share, reward=flat))).severity == "warning"


@pytest.mark.parametrize(
    ("start", "end", "cause"), [(0.23, 0.8, "grew"), (0.5, 0.99, "pays"), (0.23, 0.4, "limit_too_low")]
)
def test_a_share_that_grew_with_the_reward_is_what_was_paid_for(start, end, cause):
    share = np.clip(rise(N, start, end) + noise(rng(), N, 0.02), 0, 1)
    found = finding(truncated(healthy(n=N, truncated=share, settings={"max_new_tokens": 32})))
    assert found.cause == cause
    advised = {"grew": (), "pays": ("sampling.max_new_tokens=64",)}  # twice as many
    assert found.overrides == advised.get(cause, found.overrides)
    level = 0.5 + noise(rng(1), N, 0.03)
    still = healthy(n=N, truncated=share, reward=level, settings={"max_new_tokens": 32})
    assert finding(truncated(still)).cause == "limit_too_low"


def test_the_few_that_are_cut_off_change_no_limit():
    found = finding(truncated(healthy(n=N, truncated=np.full(N, 0.12), settings={"max_new_tokens": 32})))
    assert (found.severity, found.overrides) == ("info", ())


# empty_completions


def test_empty_from_the_first_step_is_the_template():
    run = healthy(n=N, empty=np.full(N, 0.2), length_min=np.ones(N))
    found = finding(empty_completions(run))
    assert (found.cause, found.severity, found.since_step) == ("template_or_eos", "critical", 0)


def test_empty_only_later_is_learned():
    share = np.where(np.arange(N) < 100, 0.0, 0.05)
    found = finding(empty_completions(healthy(n=N, empty=share, length_min=np.ones(N))))
    assert (found.cause, found.severity, found.since_step) == ("learned", "warning", 100)


def test_empty_texts_of_several_tokens_are_lost_in_parsing():
    run = healthy(n=N, empty=np.full(N, 0.2), length_min=np.full(N, 6.0))
    assert finding(empty_completions(run)).cause == "parser"


def test_a_share_that_jumps_while_the_length_stays_is_lost_in_parsing():
    share = np.where(np.arange(60) < 25, 0.0, 0.7) + np.abs(noise(rng(2), 60, 0.002))
    length = 16.0 + noise(rng(3), 60, 0.5)
    run = healthy(n=60, empty=share, length=length, without=["length_min"])
    found = finding(empty_completions(run))
    assert (found.cause, found.severity, found.since_step) == ("parser", "critical", 25)
    # truly empty texts have their end token only: 0.3 x 16 + 0.7 x 1
    shrunk = np.where(np.arange(60) < 25, length, 0.3 * length + 0.7)
    assert finding(empty_completions(healthy(n=60, empty=share, length=shrunk, without=["length_min"]))).cause == (
        "learned"
    )


def test_a_share_that_is_learned_within_ten_steps_is_no_template():
    share = np.minimum(np.arange(N) / 10.0, 0.9)
    assert finding(empty_completions(healthy(n=N, empty=share, length_min=np.ones(N)))).cause == "learned"


@pytest.mark.parametrize(("steps", "severity"), [([35], "info"), ([33, 35, 37], "info"), ([35, 36, 37], "warning")])
def test_a_few_empty_texts_harm_only_in_steps_in_a_row(steps, severity):
    share = np.zeros(40)
    share[steps] = 4 / 24  # of 24 completions a step, 1.7 % and more of the last ten steps
    found = finding(empty_completions(healthy(n=40, empty=share, length_min=np.ones(40))))
    assert (found.cause, found.severity) == ("learned", severity)


def test_one_empty_text_in_five_hundred_is_silent():
    share = (rng().random(N) < 0.128) / 64  # 64 completions a step
    assert said(empty_completions(healthy(n=N, empty=share))) == []


# repetition


def test_loops_that_bring_no_reward_are_degeneration():
    run = healthy(n=N, repetition=rise(N, 0.05, 0.6) + noise(rng(), N, 0.02), reward=0.5 + noise(rng(1), N, 0.03))
    assert "loops are rewarded" not in finding(repetition(run)).message


def test_loops_while_the_reward_rises_pay():
    run = healthy(n=N, repetition=rise(N, 0.05, 0.6) + noise(rng(), N, 0.02))
    assert "loops are rewarded" in finding(repetition(run)).message


def test_what_is_not_logged_is_unclear():
    run = healthy(n=N, without=["length", "truncated", "empty", "repetition"])
    checks = (length_collapse, length_explosion, truncated, empty_completions, repetition)
    assert [unclear(check(run)).would_tell[0] for check in checks] == [
        "length", "length", "truncated|length|ended_tokens", "empty", "repetition",
    ]  # fmt: skip


def test_a_mean_length_that_grew_and_no_longer_varies_meets_a_limit():
    length = np.concatenate([[310.0, 240, 150, 120], 766.0 + np.array([-3.0, 1, -2, 2, 0, -1])])
    found = finding(truncated(healthy(n=10, length=length, without=["truncated"])))
    assert found.cause == "grew" and "never passes that" in found.evidence[1]
    varies = np.concatenate([length[:4], 766.0 + np.array([-30.0, 10, -20, 20, 0, -10])])
    assert "show a limit" in unclear(truncated(healthy(n=10, length=varies, without=["truncated"]))).message
    alike = np.where(np.arange(10) < 4, 760.0, length)  # of one form from the start on
    assert "show a limit" in unclear(truncated(healthy(n=10, length=alike, without=["truncated"]))).message


def test_longest_answers_that_differ_from_step_to_step_were_not_ended_by_a_limit():
    every = {"truncated": np.ones(2), "length": np.array([90.0, 95])}
    run = healthy(n=2, **every, length_min=np.array([90.0, 90]), length_max=np.array([90.0, 104]))
    assert finding(truncated(run)).cause == "other_end"
    run = healthy(n=2, **every, length_min=np.array([90.0, 104]), length_max=np.array([104.0, 104]))
    assert finding(truncated(run)).cause == "never_ends"


@pytest.mark.parametrize(
    ("length", "limit", "cause", "share"),
    [
        # 0.955 of the limit: of normal lengths with a spread of 0.3 of their mean 80 % reach it.
        ([95.5] * 10, 100, "limit_too_low", "about 80%"),
        ([60.0] * 5 + [91.0] * 5, 100, "grew", "about 60%"),
        ([60.0] * 10, 100, None, ""),
        ([100.0] * 10, 100, "never_ends", "100%"),
        ([64.0, 61.0, 62.0, 64.0, 60.5, 61.5, 62.5, 63.0, 61.0, 62.0], None, "limit_too_low", "about"),
        ([64.0, 61.0, 62.0, 63.5, 60.5, 61.5, 62.5, 63.0, 61.0, 62.0], None, "unknown", ""),  # no length comes again
        ([64.0, 30.0, 31.0, 64.0, 33.5, 34.5, 28.5, 36.0, 30.0, 35.0], None, "unknown", ""),
    ],
)
def test_mean_lengths_tell_how_many_a_limit_ends(length, limit, cause, share):
    settings = {"max_new_tokens": limit} if limit else None
    results = truncated(healthy(n=10, length=np.array(length), without=["truncated"], settings=settings))
    if cause == "unknown":
        assert "show a limit" in unclear(results).message
    elif cause is None:
        assert said(results) == []
    else:
        found = finding(results)
        assert found.cause == cause and found.message.startswith(share)


def test_a_limit_that_the_mean_length_passes_is_of_something_else():
    run = healthy(n=10, length=300.5 + np.arange(10.0), without=["truncated"], settings={"max_new_tokens": 200})
    assert "show a limit" in unclear(truncated(run)).message


def test_a_share_that_the_mean_length_alone_tells_is_worth_knowing_while_the_reward_rises():
    length, settings = np.linspace(60.0, 92.0, 80), {"max_new_tokens": 100}
    for reward, severity in (
        (np.linspace(0.1, 0.7, 80), "info"),
        (np.full(80, 0.3) + 0.01 * (-1.0) ** np.arange(80), "warning"),
    ):
        run = healthy(n=80, length=length, reward=reward, without=["truncated"], settings=settings)
        found = finding(truncated(run))
        assert (found.cause, found.severity) == ("grew", severity)


def test_what_lengths_bound_from_above_is_no_harm_while_the_reward_rises_nor_in_two_rows():
    lengths = np.full(100, 232.0) + noise(np.random.default_rng(3), 100, 3.0, 0.0)
    reward = 0.2 + 0.6 * np.arange(100) / 100 + noise(np.random.default_rng(4), 100, 0.03, 0.0)
    settings = {"max_new_tokens": 256}
    rising = make_run({"length": lengths, "reward": reward}, settings=settings)
    assert [result.severity for result in truncated(rising)] == ["info"]
    two = make_run({"length": np.array([231.0, 235.0]), "reward": np.array([0.2, 0.1])}, settings=settings)
    assert [result.severity for result in truncated(two)] == ["info"]
    falling = make_run({"length": lengths, "reward": reward[::-1].copy()}, settings=settings)
    assert [result.severity for result in truncated(falling)] == ["warning"]
