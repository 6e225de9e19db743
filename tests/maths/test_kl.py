import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.maths.kl import adapt_coefficient, exact, k1, k2, k3, weighted_k3
from tests import needs

P = np.array([0.5, 0.3, 0.2])
R = np.array([0.2, 0.2, 0.6])
KL_PR = 0.360063  # 0.5 ln 2.5 + 0.3 ln 1.5 + 0.2 ln (1/3) = 0.458145 + 0.121640 - 0.219722
LIGHT = settings(max_examples=50, deadline=None, derandomize=True)


@st.composite
def distribution_pairs(draw):
    size = draw(st.integers(2, 6))
    weights = st.lists(st.floats(0.05, 1.0), min_size=size, max_size=size)
    p, r = np.array(draw(weights)), np.array(draw(weights))
    return p / p.sum(), r / r.sum()


# estimators


def test_estimators_of_a_hand_computed_token():
    # p = 0.5, r = 0.25: log p - log r = ln 2 = 0.693147
    # k2 = 0.693147^2 / 2 = 0.240227;   k3 = 0.5 - 1 + 0.693147 = 0.193147
    logp, logr = np.log([0.5]), np.log([0.25])
    np.testing.assert_allclose(k1(np, logp, logr), [0.693147], rtol=1e-5)
    np.testing.assert_allclose(k2(np, logp, logr), [0.240227], rtol=1e-5)
    np.testing.assert_allclose(k3(np, logp, logr), [0.193147], rtol=1e-5)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_estimators_are_zero_where_both_agree(estimator):
    logp = np.log([0.1, 0.9])
    np.testing.assert_array_equal(estimator(np, logp, logp), [0.0, 0.0])


@LIGHT
@given(pair=distribution_pairs())
def test_k1_and_k3_are_unbiased(pair):
    p, r = pair
    truth = exact(np.log(p), np.log(r))
    for estimator in (k1, k3):
        expectation = sum(p[i] * estimator(np, np.log(p[i]), np.log(r[i])) for i in range(len(p)))
        assert expectation == pytest.approx(truth, abs=1e-12)


@LIGHT
@given(logp=st.floats(-50, 0), logr=st.floats(-50, 0))
def test_k2_and_k3_are_never_negative(logp, logr):
    assert k2(np, np.float64(logp), np.float64(logr)) >= 0
    assert k3(np, np.float64(logp), np.float64(logr)) >= -1e-14


def test_k1_and_k3_averaged_over_samples_meet_the_exact_divergence():
    drawn = np.random.default_rng(0).choice(3, size=20_000, p=P)
    for estimator in (k1, k3):
        estimates = estimator(np, np.log(P)[drawn], np.log(R)[drawn])
        error = np.std(estimates) / np.sqrt(len(estimates))
        assert abs(np.mean(estimates) - KL_PR) < 4 * error
        assert error < 0.01


def test_k3_stays_finite_in_float32_when_the_policy_hardly_knows_its_own_token():
    # exp(20) - 1 - 200 = 485165195.4 - 201 = 485164994
    value = k3(np, np.float32([-200.0]), np.float32([0.0]))
    np.testing.assert_allclose(value, [485164994.0], rtol=1e-6)


def test_k3_is_infinite_where_the_reference_rules_a_token_out():
    assert k3(np, np.array([-1.0]), np.array([-np.inf]))[0] == np.inf


# their gradients


def expected_gradient(estimator):
    """Gradient of an estimator in the logits of p, averaged over p exactly."""
    torch = needs.package("torch")
    logits = torch.tensor(np.log(P), requires_grad=True)
    logp = torch.log_softmax(logits, dim=0)
    (torch.tensor(P) * estimator(torch, logp, torch.tensor(np.log(R)))).sum().backward()
    return logits.grad.numpy()


def test_k1_as_a_loss_has_no_gradient_on_average():
    np.testing.assert_allclose(expected_gradient(k1), 0.0, atol=1e-12)


def test_k2_as_a_loss_has_the_gradient_of_the_divergence():
    # In logits z of a softmax, dKL / dz_i = p_i * (log(p_i / r_i) - KL).
    expected = P * (np.log(P / R) - KL_PR)
    np.testing.assert_allclose(expected_gradient(k2), expected, atol=1e-6)


def test_k3_as_a_loss_has_the_gradient_of_the_divergence_the_other_way_round():
    # dKL(r || p) / dz_i = p_i - r_i
    np.testing.assert_allclose(expected_gradient(k3), P - R, atol=1e-12)


def test_weighted_k3_has_the_gradient_of_the_divergence_whoever_sampled():
    """Averaged over samples of q, which is neither p nor r."""
    torch = needs.package("torch")
    q = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    logits = torch.tensor(np.log(P), requires_grad=True)
    per_token = weighted_k3(torch, torch.log_softmax(logits, dim=0), torch.tensor(np.log(R)), torch.log(q))
    value = (q * per_token).sum()
    value.backward()
    assert value.item() == pytest.approx(KL_PR, abs=1e-6)
    np.testing.assert_allclose(logits.grad.numpy(), P * (np.log(P / R) - KL_PR), atol=1e-6)


# exact


def test_exact_of_a_hand_computed_pair():
    assert exact(np.log(P), np.log(R)) == pytest.approx(KL_PR, abs=1e-6)


def test_exact_keeps_the_leading_axes():
    both = exact(np.log([[P, R]]), np.log([[R, R]]))
    np.testing.assert_allclose(both, [[KL_PR, 0.0]], atol=1e-6)


def test_exact_ignores_what_the_policy_never_says():
    # p = (1, 0): KL = 1 * ln(1 / 0.25) = ln 4, whatever the reference does with the second token
    logp = np.array([0.0, -np.inf])
    assert exact(logp, np.log([0.25, 0.75])) == pytest.approx(math.log(4))
    assert exact(logp, np.array([0.0, -np.inf])) == 0.0


def test_exact_ignores_probabilities_that_underflow():
    assert exact(np.array([0.0, -1000.0]), np.array([0.0, -np.inf])) == 0.0


def test_exact_is_infinite_where_the_reference_rules_a_token_out():
    assert exact(np.log([0.5, 0.5]), np.array([0.0, -np.inf])) == math.inf


@LIGHT
@given(pair=distribution_pairs())
def test_exact_is_never_negative(pair):
    p, r = pair
    assert exact(np.log(p), np.log(r)) >= -1e-15


# adapt_coefficient


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (6.0, 0.1),  # at its target
        (6.6, 0.101),  # error 0.1: 0.1 * (1 + 0.1 / 10)
        (300.0, 0.102),  # error 49, clipped to 0.2
        (5.4, 0.099),  # error -0.1
        (0.0, 0.098),  # error -1, clipped to -0.2
        (-50.0, 0.098),  # noise or a mismatch: no stronger than 0
        (math.inf, 0.102),
    ],
)
def test_coefficients_of_hand_computed_divergences(kl, expected):
    assert adapt_coefficient(0.1, kl, target=6.0, horizon=10) == pytest.approx(expected, rel=1e-12)


def test_a_horizon_of_ten_thousand_samples_at_batch_sixteen_moves_at_most_a_third_of_a_permille():
    assert adapt_coefficient(1.0, 1e9, target=6.0, horizon=10_000 / 16) == pytest.approx(1.00032, rel=1e-12)


@LIGHT
@given(low=st.floats(-1e3, 1e3), step=st.floats(0, 1e3), coef=st.floats(1e-4, 10), horizon=st.floats(1, 1e4))
def test_a_larger_divergence_never_lowers_the_next_coefficient(low, step, coef, horizon):
    assert adapt_coefficient(coef, low + step, 6.0, horizon) >= adapt_coefficient(coef, low, 6.0, horizon)


@LIGHT
@given(kl=st.floats(allow_nan=False), target=st.floats(1e-3, 1e3), horizon=st.floats(1, 1e4))
def test_no_divergence_moves_the_coefficient_by_more_than_a_fifth_of_a_horizon(kl, target, horizon):
    assert abs(adapt_coefficient(1.0, kl, target, horizon) - 1.0) <= 0.2 / horizon + 1e-15


def test_the_controller_brings_a_divergence_that_falls_with_the_coefficient_to_its_target():
    coef = 1.0
    for _ in range(400):
        coef = adapt_coefficient(coef, kl=0.6 / coef, target=6.0, horizon=10)
    assert coef == pytest.approx(0.1, rel=0.01)  # 0.6 / 0.1 = 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 6.0, 10), "coef"),
        ((0.1, 1.0, 0.0, 10), "target"),
        ((0.1, 1.0, 6.0, 0.5), "horizon"),
        ((0.1, math.nan, 6.0, 10), "NaN"),
    ],
)
def test_the_controller_refuses_what_it_cannot_work_with(arguments, message):
    with pytest.raises(AssertionError, match=message):
        adapt_coefficient(*arguments)
