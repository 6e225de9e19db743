import numpy as np
import pytest

from steadyrl.algorithms import ppo
from steadyrl.backends import tape
from steadyrl.core.types import TokenScores
from tests import needs

SHAPE = (2, 3)
C = np.array([[0.4, 1.9, 0.9], [2.2, 0.3, 1.1]])  # a constant, never equal to X or Y
CONDITION = np.array([[True, False, True], [False, False, True]])
X = np.array([[0.5, 1.2, 2.0], [0.8, 1.7, 0.3]])
Y = np.array([[1.4, 0.6, 1.5], [2.5, 0.2, 0.7]])

# Every operation, of two variables x and y [2, 3]; both gradients are checked, weighted so that no element is like
# another.
OPERATIONS = {
    "add": lambda xp, x, y: x + y,
    "add a scalar": lambda xp, x, y: x + 2.5,
    "add to a scalar": lambda xp, x, y: 2.5 + x,
    "add to an array": lambda xp, x, y: C + x,
    "subtract": lambda xp, x, y: x - y,
    "subtract a scalar": lambda xp, x, y: x - 2.5,
    "subtract from a scalar": lambda xp, x, y: 2.5 - x,
    "subtract from an array": lambda xp, x, y: C - x,
    "multiply": lambda xp, x, y: x * y,
    "multiply by a scalar": lambda xp, x, y: x * -3.0,
    "multiply a scalar": lambda xp, x, y: -3.0 * x,
    "multiply an array": lambda xp, x, y: C * x,
    "multiply a boolean array": lambda xp, x, y: CONDITION * x,
    "multiply by a boolean array": lambda xp, x, y: x * CONDITION,
    "divide": lambda xp, x, y: x / y,
    "divide by a scalar": lambda xp, x, y: x / 4.0,
    "divide a scalar": lambda xp, x, y: 4.0 / x,
    "divide an array": lambda xp, x, y: C / x,
    "divide by an array": lambda xp, x, y: x / C,
    "negate": lambda xp, x, y: -x,
    "square": lambda xp, x, y: x**2,
    "cube": lambda xp, x, y: x**3,
    "root": lambda xp, x, y: x**0.5,
    "reciprocal": lambda xp, x, y: x**-1,
    "exp": lambda xp, x, y: xp.exp(x),
    "log": lambda xp, x, y: xp.log(x),
    "clip": lambda xp, x, y: xp.clip(x, 0.7, 1.5),
    "clip below only": lambda xp, x, y: xp.clip(x, 0.7, None),
    "clip above only": lambda xp, x, y: xp.clip(x, None, 1.5),
    "minimum": lambda xp, x, y: xp.minimum(x, y),
    "minimum with an array": lambda xp, x, y: xp.minimum(C, x),
    "minimum with a scalar": lambda xp, x, y: xp.minimum(x, 1.0),
    "maximum": lambda xp, x, y: xp.maximum(x, y),
    "maximum with an array": lambda xp, x, y: xp.maximum(C, x),
    "maximum with a scalar": lambda xp, x, y: xp.maximum(1.0, x),
    "where with a fixed condition": lambda xp, x, y: xp.where(CONDITION, x * 2.0, y),
    "where greater": lambda xp, x, y: xp.where(x > y, x * y, -x),
    "where less": lambda xp, x, y: xp.where(x < y, x * y, -x),
    "where at least a scalar": lambda xp, x, y: xp.where(x >= 1.0, x * y, -x),
    "where an array is at most": lambda xp, x, y: xp.where(C <= x, x * y, -x),  # noqa: SIM300
    "where between a value and a scalar": lambda xp, x, y: xp.where(x > y, x, 0.0),
    "a sum back in an array": lambda xp, x, y: x.sum() * y,
    "an array over a sum": lambda xp, x, y: x / y.sum(),
    "a sum over an array": lambda xp, x, y: y.sum() / x,
    "a sum less an array": lambda xp, x, y: y.sum() - x,
    "the smaller of a sum and an array": lambda xp, x, y: xp.minimum(x.sum() - 5.3, y),
    "a value used twice": lambda xp, x, y: xp.exp(x) * xp.exp(x) + xp.exp(x) / y,
    "a diamond": lambda xp, x, y: diamond(xp, x, y),
}
WEIGHTS = np.array([[1.0, -2.0, 3.0], [0.5, -0.7, 1.3]])


def diamond(xp, x, y):
    shared = x * y
    left, right = xp.log(shared), shared**2
    return left * right + shared


def finite_differences(function, start, step=1e-6):
    gradient = np.zeros(start.shape)
    for at in np.ndindex(start.shape):
        up, down = start.copy(), start.copy()
        up[at] += step
        down[at] -= step
        gradient[at] = (function(up) - function(down)) / (2 * step)
    return gradient


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_equal_finite_differences(name):
    operation = OPERATIONS[name]
    x, y = tape.Tensor(X), tape.Tensor(Y)
    (operation(tape, x, y) * WEIGHTS).sum().backward()
    by_x = finite_differences(lambda start: (operation(np, start, Y) * WEIGHTS).sum(), X)
    by_y = finite_differences(lambda start: (operation(np, X, start) * WEIGHTS).sum(), Y)
    np.testing.assert_allclose(x.grad, by_x, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(y.grad, by_y, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_equal_numpy(name):
    operation = OPERATIONS[name]
    np.testing.assert_array_equal(operation(tape, tape.Tensor(X), tape.Tensor(Y)).data, operation(np, X, Y))


def test_a_value_used_twice_gets_both_gradients_by_hand():
    x = tape.Tensor(np.array([3.0]))
    shared = x * 2.0  # 6
    (shared * shared + shared).sum().backward()  # 4 x^2 + 2 x: slope 8 x + 2
    assert x.grad.tolist() == [26.0]
    assert shared.grad.tolist() == [13.0]


def test_a_tie_sends_half_of_the_gradient_to_each_side():
    for choose in (tape.minimum, tape.maximum):
        a, b = tape.Tensor(np.array([1.0, 2.0])), tape.Tensor(np.array([1.0, 2.0]))
        (choose(a, b) * np.array([3.0, 5.0])).sum().backward()
        assert a.grad.tolist() == [1.5, 2.5]
        assert b.grad.tolist() == [1.5, 2.5]


def test_the_bounds_of_a_clip_let_the_gradient_through():
    x = tape.Tensor(np.array([0.0, 0.5, 1.0, -0.1, 1.1]))
    tape.clip(x, 0.0, 1.0).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_comparisons_are_plain_boolean_arrays():
    compared = tape.Tensor(X) > 1.0
    assert isinstance(compared, np.ndarray)
    assert compared.tolist() == [[False, True, True], [False, True, False]]


def test_backward_refuses_to_start_at_an_array():
    with pytest.raises(AssertionError, match=r"\(2, 3\)"):
        (tape.Tensor(X) * 2.0).backward()


def test_a_numpy_function_refuses_a_tensor():
    with pytest.raises(TypeError):
        np.exp(tape.Tensor(X))


# The loss that trains, on the tape and in torch: rows end early, and half of the tokens stand where the first
# update of a step finds them, at ratio 1, where the two sides of the maximum tie.
MASK = np.array([[0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], bool)


def ppo_numbers(ratio_one):
    rng = np.random.default_rng(3)

    def some(low, high):
        return np.where(MASK, rng.uniform(low, high, MASK.shape), 0.0)

    old_logprobs, old_values = some(-4, -0.1), some(-1, 1)
    still = rng.random(MASK.shape) < ratio_one
    new = {
        "logprobs": np.where(still, old_logprobs, old_logprobs + some(-0.6, 0.6)),
        "values": np.where(still, old_values, old_values + some(-0.5, 0.5)),
        "entropy": some(0.1, 3),
    }
    arrays = {
        "mask": MASK,
        "old_logprobs": old_logprobs,
        "old_values": old_values,
        "advantages": some(-2, 2),
        "returns": some(-1, 1),
    }
    return new, arrays


@pytest.mark.parametrize("ratio_one", [0.0, 0.5, 1.0])
def test_the_ppo_loss_has_the_values_and_gradients_that_torch_has(ratio_one):
    torch = needs.package("torch")
    loss = ppo.build(ppo.Settings(entropy_coef=0.02, value_coef=0.3)).loss
    new, arrays = ppo_numbers(ratio_one)
    count = float(MASK.sum())

    on_tape = {name: tape.Tensor(array) for name, array in new.items()}
    value, sums = loss(tape, TokenScores(**on_tape), arrays, count)
    value.backward()

    in_torch = {name: torch.tensor(array, requires_grad=True) for name, array in new.items()}
    as_torch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    value_torch, sums_torch = loss(torch, TokenScores(**in_torch), as_torch, count)
    value_torch.backward()

    assert value.data == pytest.approx(value_torch.item(), rel=1e-12)
    assert {name: float(np.sum(getattr(x, "data", x))) for name, x in sums.items()} == pytest.approx(
        {name: x.item() for name, x in sums_torch.items()}, rel=1e-12, abs=1e-15
    )
    for name, tensor in on_tape.items():
        np.testing.assert_allclose(tensor.grad, in_torch[name].grad.numpy(), rtol=1e-12, atol=1e-15)
        assert np.abs(tensor.grad[MASK]).max() > 1e-3
