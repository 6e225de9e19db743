"""The verdict: what it says of cases counted by hand, and how often it is right in simulations."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core.errors import DataError
from steadyrl.core.stats import digits_of
from steadyrl.lab.compare.verdict import conclude, in_words, judge, rounded_up


def one_each(values):
    return [[float(value)] for value in values]


def drawn(generator, n, samples, effect):
    """Return (first, second): problems of different difficulty, noise of each problem, noise of each sample."""
    difficulty, moved = generator.normal(0, 1, (2, n))
    noise = generator.normal(0, 0.5, (2, n, samples))
    return (difficulty[:, None] + noise[0]).tolist(), (difficulty + effect + 0.5 * moved)[:, None] + noise[1]


def test_wins_ties_losses_and_means_are_counted_by_problem():
    # Means 0.5 and 1, 0 and 0.5, 1 and 1, 1 and 0: two wins, a tie, a loss; 2.5 / 4 in both.
    verdict = judge([[1.0, 0.0], [0.0], [1.0], [1.0]], [[1.0], [0.0, 1.0], [1.0, 1.0], [0.0]])
    assert (verdict.wins, verdict.ties, verdict.losses) == (2, 1, 1)
    assert (verdict.change.mean_before, verdict.change.mean_after, verdict.change.n) == (0.625, 0.625, 4)
    assert verdict.pass_fail


def test_a_clear_gain_is_better_and_a_clear_loss_worse():
    before = np.random.default_rng(0).normal(0, 1, 40)
    after = before + np.random.default_rng(1).normal(1.0, 0.5, 40)
    assert judge(one_each(before), one_each(after)).word == "better"
    assert judge(one_each(after), one_each(before)).word == "worse"


def test_swapping_the_two_flips_every_sign_exactly():
    first, second = drawn(np.random.default_rng(2), 37, 3, 0.2)
    there, back = judge(first, second), judge(second, first)
    assert there.change.difference == -back.change.difference
    assert (there.change.low, there.change.high) == (-back.change.high, -back.change.low)
    assert (there.wins, there.losses) == (back.losses, back.wins)
    assert (there.p_value, there.smallest, there.needed) == (back.p_value, back.smallest, back.needed)


def test_the_same_samples_twice_do_not_narrow_the_interval():
    first, second = drawn(np.random.default_rng(3), 30, 2, 0.0)
    once, twice = judge(first, second), judge([v * 4 for v in first], [list(v) * 4 for v in second])
    assert (twice.change.low, twice.change.high) == pytest.approx((once.change.low, once.change.high))
    assert twice.smallest == pytest.approx(once.smallest)


def test_more_true_samples_do_narrow_it():
    few = judge(*drawn(np.random.default_rng(4), 60, 1, 0.0)).change
    many = judge(*drawn(np.random.default_rng(4), 60, 16, 0.0)).change
    # Standard deviations of a problem's difference: sqrt(0.25 + 2 * 0.25) and sqrt(0.25 + 2 * 0.25 / 16)
    assert many.standard_error / few.standard_error == pytest.approx(math.sqrt(0.28125 / 0.75), rel=0.25)


@pytest.mark.weekly
def test_the_interval_covers_the_truth_with_several_samples_of_each_problem():
    generator = np.random.default_rng(5)
    hits = 0
    for seed in range(300):
        first, second = drawn(generator, 25, 3, 0.4)
        change = judge(first, second, seed=seed).change
        hits += change.low <= 0.4 <= change.high
    assert 276 <= hits <= 295  # 95 % is 285; three standard deviations are 11


def test_equal_subjects_are_called_different_one_time_in_twenty():
    generator = np.random.default_rng(6)
    words = []
    for seed in range(400):
        first, second = drawn(generator, 20, 2, 0.0)
        words.append(judge(first, second, seed=seed).word)
    assert 8 <= sum(word != "undecided" for word in words) <= 33  # 20 expected; three standard deviations are 13


@pytest.mark.weekly
def test_few_differing_passes_do_not_make_a_false_alarm_more_frequent():
    # Of 100 problems 4 differ on average, each way as likely: a percentile bootstrap alone is wrong in about 10 %.
    generator = np.random.default_rng(7)
    wrong = 0
    for seed in range(300):
        flips = (generator.random(100) < 0.04) * generator.choice([-1, 1], 100)
        wrong += judge(one_each(flips < 0), one_each(flips > 0), seed=seed).word != "undecided"
    assert wrong <= 15


def test_a_true_difference_of_the_smallest_size_is_shown_in_four_of_five_sets():
    generator = np.random.default_rng(8)
    smallest = 2.8 * 1.0 / math.sqrt(50)  # of differences with deviation 1
    found, shown = [], 0
    for seed in range(300):
        verdict = judge(one_each(np.zeros(50)), one_each(generator.normal(smallest, 1.0, 50)), seed=seed)
        found.append(verdict.smallest)
        shown += verdict.word == "better"
    assert np.mean(found) == pytest.approx(smallest, rel=0.03)
    assert 219 <= shown <= 261  # 240 expected; three standard deviations are 21


def founding(n):
    """Return rewards of n problems before and after with the founding means, spread as such rewards are."""
    generator = np.random.default_rng(9)
    before = generator.normal(0.0, 0.15, n)
    after = before + generator.normal(0.0, 0.10, n)
    return one_each(before - before.mean() + 0.6853), one_each(after - after.mean() + 0.6833)


@pytest.mark.parametrize("n", [20, 50, 200])
def test_the_founding_difference_is_undecided_and_says_what_could_have_been_shown(n):
    first, second = founding(n)
    verdict = judge(first, second)
    assert verdict.change.difference == pytest.approx(-0.0020)
    assert verdict.word == "undecided"
    spread = np.std(np.subtract(second, first), ddof=1)
    assert verdict.smallest == pytest.approx(2.8 * spread / math.sqrt(n), rel=0.06)
    assert verdict.smallest > 5 * 0.0020
    sentence, reason, advice = in_words(verdict, "original", "trained", "reward")
    assert reason == f"undecided because {verdict.reason}"
    assert verdict.reason.endswith(f" over {n} problems contains 0")
    assert sentence.startswith(f"undecided, and this set could not have shown less than {verdict.smallest:.4f}")
    assert "difference -0.0020, 95 % interval [-0.0" in sentence
    assert sentence.endswith(f"{n} problems")
    assert problems_in(advice) == pytest.approx((2.8 * spread / 0.0020) ** 2, rel=0.2)


def test_more_than_a_million_problems_are_not_counted_out():
    differences = np.random.default_rng(3).normal(0.0, 1.0, 100)
    differences += 1e-4 - differences.mean()
    verdict = judge(one_each(np.zeros(100)), one_each(differences))
    assert verdict.needed > 1_000_000
    advice = in_words(verdict, "A", "B", "reward")[2]
    assert advice == "to show a true difference as small as the one seen takes more than a million such problems"


def problems_in(sentence):
    return int(next(word for word in sentence.split() if word.isdecimal()))


def test_as_many_problems_as_needed_do_show_the_difference():
    differences = np.random.default_rng(10).normal(0.0, 1.0, 30)
    differences += 0.3 - differences.mean()
    verdict = judge(one_each(np.zeros(30)), one_each(differences))
    assert verdict.word == "undecided"
    assert verdict.needed == pytest.approx((2.8 * differences.std(ddof=1) / 0.3) ** 2, rel=0.1)
    again = np.resize(differences, -(-verdict.needed // 30) * 30)
    assert judge(one_each(np.zeros(len(again))), one_each(again)).word == "better"


def test_an_interval_within_the_margin_is_equal_even_where_it_leaves_out_0():
    differences = np.linspace(0.002, 0.004, 40)
    assert judge(one_each(np.zeros(40)), one_each(differences)).word == "better"
    assert judge(one_each(np.zeros(40)), one_each(differences), margin=0.01).word == "equal"
    assert judge(one_each(np.zeros(40)), one_each(differences), margin=0.003).word == "better"


def test_no_difference_seen_is_no_proof_of_equality_in_a_small_set():
    # None of 30 problems differs: up to 3 of 30 still might, which is 0.1.
    same = one_each([0, 1, 1] * 10)
    verdict = judge(same, same)
    assert verdict.word == "undecided" and verdict.sparse
    assert (verdict.change.low, verdict.change.high) == pytest.approx((-0.1, 0.1))
    assert judge(same, same, margin=0.09).word == "undecided"
    assert judge(same, same, margin=0.11).word == "equal"
    assert verdict.smallest == pytest.approx(6 / 30)
    assert verdict.needed is None
    assert "only 0 of 30 problems differ" in in_words(verdict, "A", "B", "pass")[2]


def test_five_gains_and_no_loss_are_undecided_and_six_are_better():
    def gained(count):
        return judge(one_each([0.0] * 60), one_each([1.0] * count + [0.0] * (60 - count)))

    assert gained(5).mcnemar == pytest.approx(2 / 2**5)
    assert gained(5).word == "undecided"
    assert gained(6).mcnemar == pytest.approx(2 / 2**6)
    assert gained(6).word == "better"


def test_an_interval_without_0_that_chance_gives_too_is_undecided_and_says_so():
    # 7 gained, 1 lost: the bootstrap's interval is above 0, McNemar's p is 2 * (1 + 8) / 2^8 = 0.07.
    verdict = judge(one_each([0] * 7 + [1] + [0] * 192), one_each([1] * 7 + [0] + [0] * 192))
    assert verdict.p_value == pytest.approx(18 / 256)
    assert verdict.change.low > 0
    assert verdict.word == "undecided"
    why = in_words(verdict, "A", "B", "pass")[1]
    assert why.endswith("] over 200 problems excludes 0, but with signs flipped at random p = 0.070, not below 0.05")


def test_a_set_whose_answers_are_all_worth_the_same_tells_nothing():
    verdict = judge(one_each([0.3] * 9), one_each([0.3] * 9), margin=0.5)
    assert (verdict.word, verdict.smallest, verdict.mcnemar) == ("undecided", None, None)
    assert "says nothing" in in_words(verdict, "A", "B", "reward")[1]


def test_mcnemar_is_given_for_pass_and_fail_only():
    assert judge(one_each([0, 1, 0]), one_each([1, 1, 0])).mcnemar == 1.0
    assert judge(one_each([0, 1, 0]), one_each([0.5, 1, 0])).mcnemar is None


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([[1.0], []], [[1.0], [2.0]], "1 of 2 problems without a sample"),
        ([[1.0]], [[2.0]], "at least 2"),
        ([[1.0], [2.0]], [[1.0]], "one length"),
        ([[1.0], [math.nan]], [[1.0], [2.0]], "not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(first, second, message):
    with pytest.raises(DataError, match=message):
        judge(first, second)


def test_numbers_are_printed_with_the_digits_that_the_interval_supports():
    # Half-widths of about 0.03 and of 0.1 * 30 / 30: two digits of them and one more.
    assert digits_of(judge(*founding(50)).change) == 4
    assert digits_of(judge(one_each(range(9)), one_each(range(1, 10))).change) == 3  # no width at all


@pytest.mark.parametrize(("count", "rounded"), [(7, 7), (99, 99), (101, 110), (13_001, 14_000), (120_000, 120_000)])
def test_counts_of_problems_are_rounded_up_to_two_digits(count, rounded):
    assert rounded_up(count) == rounded


def test_the_worked_example_of_the_documents_is_what_the_code_says(capsys):
    page = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()
    code, told = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", page, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == told


@pytest.mark.weekly
def test_the_share_of_sampling_is_measured_on_what_the_samples_of_a_problem_differ_by():
    generator = np.random.default_rng(11)
    moved, noise = generator.normal(0, 1, (4000, 1)), generator.normal(0, 2, (4000, 8))
    # A problem's difference varies by 1, and by 4 / 8 through its samples: a third.
    assert judge(np.zeros((4000, 8)).tolist(), (moved + noise).tolist()).noise == pytest.approx(1 / 3, abs=0.02)
    # Noise that both share, as equal draws may give, is none.
    assert judge(noise.tolist(), (moved + noise).tolist()).noise == pytest.approx(0.0, abs=1e-9)
    assert judge(noise.tolist(), noise.tolist()).noise is None


def test_one_sample_of_each_problem_tells_nothing_of_sampling():
    assert judge(*founding(20)).noise is None


def test_an_undecided_verdict_says_what_would_help():
    first, second = drawn(np.random.default_rng(12), 12, 4, 0.0)
    sentences = in_words(judge(first, second), "A", "B", "f1")
    assert re.search(r"sampling makes \d+% of the spread", sentences[-1])


CLEAR = {  # numbers before and after of 30 problems, by the word that they give
    "better": ([0.2] * 30, [0.2 + 0.01 * i for i in range(30)]),
    "worse": ([0.9] * 30, [0.9 - 0.02 * i for i in range(30)]),
    "undecided": ([0.5] * 30, [0.5 + 0.1 * (-1) ** i for i in range(30)]),
}


def decided(**words):
    """Return what ``conclude`` takes, decided from numbers that give these words."""
    verdicts = {name: judge(*map(one_each, CLEAR[word])) for name, word in words.items()}
    assert {name: verdict.word for name, verdict in verdicts.items()} == words
    return {name: (verdict.word, verdict.reason) for name, verdict in verdicts.items()}


@pytest.mark.parametrize("deploy", ["sampled", "greedy"])
def test_a_policy_is_judged_by_the_way_it_is_used_and_the_opposite_is_named(deploy):
    words = {"sampled": "better", "greedy": "worse"}
    conclusion = conclude(decided(**words), deploy, {})
    (contrary,) = set(words) - {deploy}
    assert conclusion.word == words[deploy]
    assert conclusion.sentence.startswith(f"{words[deploy]} by {deploy} answers, because the 95 % interval [")
    assert conclusion.doubts[0].startswith(f"{contrary} answers are {words[contrary]}, because the 95 % interval [")
    assert conclusion.doubts[0] in conclusion.sentence


def test_answers_that_cannot_tell_speak_against_nothing_and_those_that_can_against_undecided():
    assert conclude(decided(sampled="better", greedy="undecided"), "sampled", {"the run": ()}).doubts == ()
    open_question = conclude(decided(sampled="undecided", greedy="better"), "sampled", {})
    assert "over 30 problems contains 0; but greedy answers are better, because " in open_question.sentence


def test_a_sick_run_is_never_called_better_without_that_word():
    conclusion = conclude(decided(sampled="better", greedy="better"), "greedy", {"the run": ("repetition", "kl_zero")})
    assert conclusion.sentence.endswith(" lies above 0; but the doctor calls the run sick: repetition, kl_zero")
    assert conclusion.word == "better"
    both = conclude(decided(sampled="better", greedy="worse"), "sampled", {"the run": ("repetition",)})
    assert re.search(r"; but greedy answers are worse, .* 0; and the doctor calls the run sick", both.sentence)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([0.3] * 5, [0.3] * 5, "all answers to 5 problems have one value, which says nothing about the two"),
        ([0.0] * 9, [1.0] * 4 + [0.0] * 5, "4 of 9 problems differ, and fewer than 6 may do so by chance"),
        ([0.0, 1.0] * 8, [1.0, 0.0] * 8, "over 16 problems contains 0"),
    ],
)
def test_undecided_says_what_it_follows_from(first, second, reason):
    verdict = judge(one_each(first), one_each(second))
    assert verdict.word == "undecided"
    assert verdict.reason.endswith(reason)
    assert f"undecided because {verdict.reason}" in in_words(verdict, "A", "B", "f1")
