import numpy as np
import pytest

from steadyrl.loop.rewards.judge import agreement
from steadyrl.loop.rewards.judge.agreement import concordance, mean, rank_correlation


def measured(*problems):
    return [(np.array(tests, float), np.array(judge, float)) for tests, judge in problems]


def test_concordance_counts_pairs_within_problems_and_ties_of_the_judge_as_halves():
    # first problem: pairs (1,0) right, (1,.5) a tie, (0,.5) right; second: its one pair wrong; third tells nothing
    found = concordance(measured(([1, 0, 0.5], [0.9, 0.1, 0.9]), ([1, 0], [0.2, 0.3]), ([1, 1], [0.5, 0.6])))
    assert found.value == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert found.problems == 2


def test_a_judge_that_orders_answers_as_the_tests_do_has_concordance_and_correlation_1():
    problems = measured(*(([0, 1, 2], [0.1, 0.5, 0.9]) for _ in range(10)))
    for found in (concordance(problems), rank_correlation(problems)):
        assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))


def test_a_judge_of_chance_has_an_interval_around_a_half():
    generator = np.random.default_rng(3)
    found = concordance([(np.arange(4.0), generator.random(4)) for _ in range(200)])
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.2


def test_an_interval_is_wider_over_fewer_problems():
    generator = np.random.default_rng(4)
    problems = [(np.arange(4.0), np.arange(4.0) + 3 * generator.random(4)) for _ in range(200)]
    many, few = concordance(problems), concordance(problems[:20])
    assert few.high - few.low > 2 * (many.high - many.low)


def test_rank_correlation_by_hand():
    # ranks 1, 2, 3, 4 against 1, 3, 2, 4: 1 - 6 * 2 / (4 * 15)
    found = rank_correlation(measured(([10, 20], [0.1, 0.3]), ([30, 40], [0.2, 0.4])))
    assert found.value == pytest.approx(0.8)


def test_tied_ranks_are_shared():
    # ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, deviations sqrt(1.5) and sqrt(2)
    found = rank_correlation(measured(([0, 0, 1], [1, 2, 3])))
    assert found.value == pytest.approx(1.5 / np.sqrt(1.5 * 2))


def test_the_interval_of_a_correlation_is_that_of_problems_drawn_again(monkeypatch):
    from scipy.stats import rankdata

    monkeypatch.setattr(agreement, "_RESAMPLES", 30)
    generator = np.random.default_rng(5)
    problems = [(generator.integers(3, size=n), generator.integers(4, size=n)) for n in (1, 4, 2, 3, 5, 4, 2, 3)]
    again, drawn = np.random.default_rng(0), []
    for _ in range(30):
        rows = again.integers(len(problems), size=len(problems))
        ranks = [rankdata(np.concatenate([problems[row][side] for row in rows])) for side in (0, 1)]
        drawn.append(np.corrcoef(ranks)[0, 1])
    found = rank_correlation(problems)
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))


def test_what_tells_nothing_apart_is_unknown():
    assert concordance(measured(([1, 1], [0.1, 0.9]))) is None
    assert rank_correlation(measured(([1, 1], [0.1, 0.9]))) is None
    assert concordance([]) is None
    assert mean([]) is None


def test_a_mean_comes_with_its_problems():
    found = mean([0.0, 1.0, 0.0, 1.0])
    assert (found.value, found.problems) == (0.5, 4)
    assert found.low < 0.5 < found.high
