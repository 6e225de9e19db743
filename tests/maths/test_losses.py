import numpy as np
import pytest

from steadyrl.backends import tape
from steadyrl.maths.kl import k1, k2, k3, weighted_k3
from steadyrl.maths.losses import (
    clipped_policy,
    clipped_value,
    clipped_weight,
    dppo_weight,
    geometric_mask,
    icepop_weight,
    nll,
    policy_sums,
    reduce,
    sequence_log_ratio,
    sequence_weight,
    token_log_ratio,
    token_weight,
)
from tests import needs

SHAPE = (3, 4)


def constants(seed=0):
    """Everything that is not differentiated, and a start for what is, far from the kinks of the losses."""
    rng = np.random.default_rng(seed)
    mask = np.array([[1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 0]], dtype=bool)
    return {
        "start": np.where(mask, rng.uniform(-3, -0.1, SHAPE), 0.0),
        "old": np.where(mask, rng.uniform(-3, -0.1, SHAPE), 0.0),
        "advantages": rng.normal(size=SHAPE),
        "mask": mask,
        "other": np.where(mask, rng.uniform(-3, -0.1, SHAPE), 0.0),
    }


def policy_loss(xp, x, c):
    log_ratio = token_log_ratio(xp, x, c["old"], c["mask"])
    per_token, _ = clipped_policy(xp, log_ratio, c["advantages"], 0.2, 0.28)
    return reduce(xp, per_token, c["mask"], 8)


def sequence_loss(xp, x, c):
    log_ratio = sequence_log_ratio(xp, x, c["old"], c["mask"])
    per_token, _ = clipped_policy(xp, log_ratio, c["advantages"], 0.2, 0.28)
    return reduce(xp, per_token, c["mask"], 8)


def weight_loss(xp, x, c):
    log_ratio = token_log_ratio(xp, x, c["old"], c["mask"])
    per_token, _ = clipped_weight(xp, log_ratio, c["advantages"], 0.2, 0.28)
    return reduce(xp, per_token, c["mask"], 8)


def weighted_k3_loss(xp, x, c):
    per_token = weighted_k3(xp, x, c["old"], c["other"])
    return reduce(xp, per_token * c["advantages"], c["mask"], 8)


def value_loss(xp, x, c):
    per_token, _ = clipped_value(xp, x, c["old"], c["advantages"], 0.5)
    return reduce(xp, per_token, c["mask"], 8)


def nll_loss(xp, x, c):
    return reduce(xp, nll(xp, x) * c["advantages"], c["mask"], 8)


def k1_loss(xp, x, c):
    return reduce(xp, k1(xp, x, c["old"]) * c["advantages"], c["mask"], 8)


def k2_loss(xp, x, c):
    return reduce(xp, k2(xp, x, c["old"]) * c["advantages"], c["mask"], 8)


def k3_loss(xp, x, c):
    return reduce(xp, k3(xp, x, c["old"]) * c["advantages"], c["mask"], 8)


def corrections_loss(xp, x, c):
    """All corrections at once: they carry no gradient, so that each only scales the loss of its tokens."""
    arrays = {
        "mask": c["mask"],
        "old_logprobs": c["old"],
        "sampling_logprobs": c["other"],
        "advantages": c["advantages"],
    }
    weights = [correct(xp, x, arrays) for correct in (token_weight, sequence_weight, icepop_weight, dppo_weight)]
    weight = weights[0] + 2 * weights[1] + 3 * weights[2] + 4 * weights[3] + 5 * geometric_mask(xp, x, arrays)
    return reduce(xp, nll(xp, x) * (weight * c["advantages"]), c["mask"], 8)


LOSSES = [
    policy_loss, sequence_loss, weight_loss, value_loss, nll_loss, k1_loss, k2_loss, k3_loss, weighted_k3_loss,
    corrections_loss,
]  # fmt: skip


def finite_differences(loss, c, step=1e-6):
    gradient = np.zeros(SHAPE)
    for at in np.ndindex(SHAPE):
        up, down = c["start"].copy(), c["start"].copy()
        up[at] += step
        down[at] -= step
        gradient[at] = (loss(np, up, c) - loss(np, down, c)) / (2 * step)
    return gradient


# one formula, several array libraries


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_torch_and_numpy_agree_on_the_value(loss, precision, tolerance):
    torch = needs.package("torch")
    c = constants()
    in_torch = {name: torch.tensor(x if x.dtype == bool else x.astype(precision)) for name, x in c.items()}
    value = loss(torch, in_torch["start"], in_torch)
    assert float(value) == pytest.approx(float(loss(np, c["start"], c)), rel=tolerance)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_torch_gradients_agree_with_finite_differences_of_numpy(loss, seed):
    torch = needs.package("torch")
    c = constants(seed)
    in_torch = {name: torch.tensor(x) for name, x in c.items()}
    x = in_torch["start"].requires_grad_()
    loss(torch, x, in_torch).backward()
    np.testing.assert_allclose(x.grad.numpy(), finite_differences(loss, c), atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_tape_agrees_with_finite_differences_of_numpy(loss, seed):
    c = constants(seed)
    x = tape.Tensor(c["start"])
    value = loss(tape, x, c)
    value.backward()
    assert float(value.data) == pytest.approx(float(loss(np, c["start"], c)), rel=1e-12)
    np.testing.assert_allclose(x.grad, finite_differences(loss, c), atol=1e-8)


@pytest.mark.mlx
@pytest.mark.parametrize("loss", LOSSES)
def test_mlx_agrees_with_numpy_on_value_and_gradient(loss):
    import mlx.core as mx

    c = constants()
    in_mlx = {name: mx.array(x if x.dtype == bool else x.astype("float32")) for name, x in c.items()}
    value, gradient = mx.value_and_grad(lambda x: loss(mx, x, in_mlx))(in_mlx["start"])
    assert value.item() == pytest.approx(float(loss(np, c["start"], c)), rel=1e-5)
    np.testing.assert_allclose(np.array(gradient), finite_differences(loss, c), atol=1e-6)


# clipped_policy

# advantage, ratio -> loss, clipped; clip range [0.8, 1.28]
POLICY_CASES = [
    (2.0, 1.5, -2.56, 1.0),  # wanted and gone too far up: -2 * 1.28
    (2.0, 0.5, -1.0, 0.0),  # wanted and gone down: still pulled back, -2 * 0.5
    (-2.0, 1.5, 3.0, 0.0),  # unwanted and gone up: still pushed down, 2 * 1.5
    (-2.0, 0.5, 1.6, 1.0),  # unwanted and gone too far down: 2 * 0.8
    (2.0, 1.25, -2.5, 0.0),  # inside the range on either side
    (-2.0, 0.85, 1.7, 0.0),
    (2.0, 1.0, -2.0, 0.0),
]


@pytest.mark.parametrize(("advantage", "ratio", "loss", "clipped"), POLICY_CASES)
def test_the_policy_clip_acts_only_where_the_ratio_went_too_far_in_the_wanted_direction(
    advantage, ratio, loss, clipped
):
    got_loss, got_clipped = clipped_policy(np, np.log([[ratio]]), np.array([[advantage]]), clip_low=0.2, clip_high=0.28)
    np.testing.assert_allclose(got_loss, [[loss]], rtol=1e-12)
    np.testing.assert_array_equal(got_clipped, [[clipped]])


@pytest.mark.parametrize(("advantage", "ratio", "loss", "clipped"), POLICY_CASES)
def test_clipped_tokens_and_no_others_lose_their_policy_gradient(advantage, ratio, loss, clipped):
    # Unclipped, d(-A * ratio) / dlogp = -A * ratio.
    torch = needs.package("torch")
    logprobs = torch.tensor([[np.log(ratio)]], requires_grad=True)
    per_token, _ = clipped_policy(torch, logprobs, torch.tensor([[advantage]]), 0.2, 0.28)
    per_token.sum().backward()
    expected = 0.0 if clipped else -advantage * ratio
    assert logprobs.grad.item() == pytest.approx(expected, rel=1e-6)


def test_at_ratio_one_the_policy_gradient_is_that_of_reinforce():
    torch = needs.package("torch")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(5, (2, 3, 1), generator=generator)
    advantages = torch.randn(2, 3, generator=generator, dtype=torch.float64)

    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, tokens)[..., 0]
    per_token, clipped = clipped_policy(torch, logprobs - logprobs.detach(), advantages, 0.2, 0.2)
    (gradient,) = torch.autograd.grad(per_token.sum(), logits)

    # -A * d log p(token) / d logits = -A * (one-hot - softmax)
    one_hot = torch.nn.functional.one_hot(tokens[..., 0], 5)
    expected = -advantages[..., None] * (one_hot - torch.softmax(logits, dim=-1)).detach()
    torch.testing.assert_close(gradient, expected)
    assert clipped.sum() == 0


def test_a_huge_log_ratio_stays_finite_in_float32():
    # exp(200) is inf in float32; clipped to 20, exp(20) = 485165195
    logprobs, old = np.float32([[0.0, 0.0, -200.0]]), np.float32([[-200.0, -200.0, 0.0]])
    loss, _ = clipped_policy(np, logprobs - old, np.float32([[-1.0, 1.0, 1.0]]), 0.2, 0.28)
    np.testing.assert_allclose(loss, [[485165195.0, -1.28, -2.0611536e-9]], rtol=1e-5)


def test_a_huge_log_ratio_has_a_finite_gradient():
    torch = needs.package("torch")
    logprobs = torch.zeros(1, 2, requires_grad=True)
    loss, _ = clipped_policy(torch, logprobs + 200.0, torch.tensor([[-1.0, 1.0]]), 0.2, 0.2)
    loss.sum().backward()
    assert logprobs.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("surrogate", [clipped_policy, clipped_weight])
def test_no_log_ratio_makes_a_loss_or_gradient_that_is_not_finite(surrogate):
    torch = needs.package("torch")
    log_ratio = torch.tensor([[-1e4, -50.0, 50.0, 1e4]], requires_grad=True)
    loss, _ = surrogate(torch, log_ratio, torch.tensor([[-1.0, 1.0, -1.0, 1.0]]), 0.2, 4.0)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(log_ratio.grad).all()


def test_an_advantage_of_zero_is_never_called_clipped():
    _, clipped = clipped_policy(np, np.log([[5.0, 0.1]]), np.zeros((1, 2)), 0.2, 0.2)
    np.testing.assert_array_equal(clipped, [[0.0, 0.0]])


# clipped_weight

# advantage, ratio -> gradient, bounded; weights up to 1.5
WEIGHT_CASES = [
    (2.0, 1.2, -2.4, 0.0),  # -2 * 1.2: as without any bound
    (2.0, 4.0, -3.0, 1.0),  # -2 * 1.5: the token still teaches, where PPO's clip silences it
    (-2.0, 4.0, 3.0, 1.0),  # 2 * 1.5
    (2.0, 0.1, -0.2, 0.0),  # no bound below
    (-2.0, 0.1, 0.2, 0.0),
]


@pytest.mark.parametrize(("advantage", "ratio", "gradient", "bounded"), WEIGHT_CASES)
def test_a_bounded_weight_keeps_the_gradient_of_every_token(advantage, ratio, gradient, bounded):
    torch = needs.package("torch")
    log_ratio = torch.tensor([[np.log(ratio)]], requires_grad=True)
    loss, clipped = clipped_weight(torch, log_ratio, torch.tensor([[advantage]], dtype=torch.float64), 0.2, 0.5)
    loss.sum().backward()
    assert log_ratio.grad.item() == pytest.approx(gradient)
    assert clipped.item() == bounded


def test_the_surrogate_of_bounded_weights_by_hand():
    """Below the bound -A * ratio, beyond it -A * c * (1 + log(ratio / c)): at c = 1.5 both are -1.5 A."""
    ratios, advantages = np.array([[0.5, 1.0, 1.5, 1.5 * np.e]]), np.full((1, 4), 2.0)
    loss, _ = clipped_weight(np, np.log(ratios), advantages, 0.2, 0.5)
    np.testing.assert_allclose(loss, [[-1.0, -2.0, -3.0, -6.0]], rtol=1e-12)


# ratios by token and by sequence


def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens_ratios():
    """Ratios 2, 8 and 1/2, 1/2, 1: geometric means 4 and (1/4)^(1/3); a token outside the mask is not read."""
    mask = np.array([[True, True, False], [True, True, True], [False, False, False]])
    ratios = np.array([[2.0, 8.0, 100.0], [0.5, 0.5, 1.0], [3.0, 3.0, 3.0]])
    got = sequence_log_ratio(np, np.log(ratios), np.zeros((3, 3)), mask)
    expected = [[4.0, 4.0, 1.0], [0.25 ** (1 / 3)] * 3, [1.0, 1.0, 1.0]]
    np.testing.assert_allclose(np.exp(got), expected, rtol=1e-12)


def test_the_gradient_of_a_sequence_loss_by_hand():
    """GSPO, one row of two tokens with ratios 1.1 and 1.2, A = 3, a mean over its tokens.

    s = sqrt(1.32); the loss is -3 s; d s / d logp = s / 2 for each token.
    """
    torch = needs.package("torch")
    logprobs = torch.log(torch.tensor([[1.1, 1.2]], dtype=torch.float64)).requires_grad_()
    mask, zeros = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.float64)
    log_ratio = sequence_log_ratio(torch, logprobs, zeros, mask)
    per_token, _ = clipped_policy(torch, log_ratio, torch.full((1, 2), 3.0, dtype=torch.float64), 0.2, 0.2)
    loss = reduce(torch, per_token, mask / 2, 1)
    loss.backward()
    s = 1.32**0.5
    assert loss.item() == pytest.approx(-3 * s)
    np.testing.assert_allclose(logprobs.grad.numpy(), [[-1.5 * s, -1.5 * s]], rtol=1e-12)


# policy_sums


def test_policy_sums_by_hand():
    """Ratios 2 and 1/2 under the mask; k1 of old to new is -log ratio, k3 ratio - 1 - log ratio."""
    arrays = {"mask": np.array([[True, True, False]]), "old_logprobs": np.array([[-1.0, -1.0, 0.0]])}
    logprobs = arrays["old_logprobs"] + np.log([[2.0, 0.5, 1.0]])
    policy, clipped = np.array([[3.0, 4.0, 50.0]]), np.array([[1.0, 0.0, 1.0]])
    sums = policy_sums(np, policy, clipped, logprobs, arrays)
    assert {name: float(total) for name, total in sums.items()} == pytest.approx(
        {"loss/policy": 7.0, "clip_fraction": 1.0, "kl_old_k1": 0.0, "kl_old_k3": 0.5}, abs=1e-12
    )


# clipped_value

# value, return -> loss, clipped, gradient; old value 0, clip 0.2
VALUE_CASES = [
    (1.0, 2.0, 1.62, 1.0, 0.0),  # moved too far towards the return: (0.2 - 2)^2 / 2
    (-1.0, 2.0, 4.5, 0.0, -3.0),  # moved away: (-1 - 2)^2 / 2
    (0.1, 2.0, 1.805, 0.0, -1.9),  # hardly moved: (0.1 - 2)^2 / 2
    (3.0, 0.1, 4.205, 0.0, 2.9),  # far past the return: (3 - 0.1)^2 / 2
]


@pytest.mark.parametrize(("value", "target", "loss", "clipped", "gradient"), VALUE_CASES)
def test_the_value_clip_acts_only_on_values_that_moved_too_far_towards_their_return(
    value, target, loss, clipped, gradient
):
    got_loss, got_clipped = clipped_value(np, np.array([[value]]), np.zeros((1, 1)), np.array([[target]]), 0.2)
    np.testing.assert_allclose(got_loss, [[loss]], rtol=1e-12)
    np.testing.assert_array_equal(got_clipped, [[clipped]])


@pytest.mark.parametrize(("value", "target", "loss", "clipped", "gradient"), VALUE_CASES)
def test_clipped_values_and_no_others_lose_their_gradient(value, target, loss, clipped, gradient):
    torch = needs.package("torch")
    values = torch.tensor([[value]], requires_grad=True)
    clipped_value(torch, values, torch.zeros(1, 1), torch.tensor([[target]]), 0.2)[0].sum().backward()
    assert values.grad.item() == pytest.approx(gradient, rel=1e-6)


# nll


def test_nll_of_a_token_with_probability_one_eighth_is_three_times_ln_two():
    np.testing.assert_allclose(nll(np, np.log([[0.125]])), [[2.0794415]], rtol=1e-7)


# reduce


def test_reduce_divides_by_the_count_it_is_given():
    # (1 + 2 + 4) / 10, not / 3
    per_token = np.array([[1.0, 2.0, 50.0], [4.0, 50.0, 50.0]])
    mask = np.array([[1, 1, 0], [1, 0, 0]], dtype=bool)
    assert reduce(np, per_token, mask, 10) == pytest.approx(0.7)


def test_losses_of_micro_batches_add_up_to_the_loss_of_the_minibatch():
    c = constants()
    whole = reduce(np, c["start"], c["mask"], c["mask"].sum())
    parts = [reduce(np, c["start"][[i]], c["mask"][[i]], c["mask"].sum()) for i in range(3)]
    assert sum(parts) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_finite_entries_outside_the_mask_reach_neither_value_nor_gradient(loss):
    torch = needs.package("torch")
    c = {name: torch.tensor(x) for name, x in constants().items()}
    outside = ~c["mask"]
    clean = loss(torch, c["start"], c)
    dirty = torch.where(outside, -1e3, c["start"]).requires_grad_()
    value = loss(torch, dirty, c)
    value.backward()
    assert value.item() == clean.item()
    assert (dirty.grad[outside] == 0).all()
    assert torch.isfinite(dirty.grad).all()


def test_a_nan_outside_the_mask_shows_in_the_loss():
    per_token = np.array([[1.0, np.nan]])
    assert np.isnan(reduce(np, per_token, np.array([[True, False]]), 1))


def test_reduce_refuses_an_empty_minibatch():
    with pytest.raises(AssertionError, match="at least one"):
        reduce(np, np.zeros((1, 1)), np.zeros((1, 1), dtype=bool), 0)
