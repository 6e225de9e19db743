"""How far two float32 computations of one number may lie apart, from the arithmetic and not from a machine.

Processors sum in different orders, so equal computations differ by rounding. The errors of single operations are nearly
independent; the error of a result therefore grows with the root of the number of operations that lead to it.
"""

import math

UNIT = 2.0**-24  # the largest relative error of one float32 operation
OF_BFLOAT16 = 2.0**-9
# A token of a tiny model passes two layers and a head: in each some ten sums of 20 to 50 terms, and one of 300.
OPERATIONS = 1024
DEVIATIONS = 4.0  # a test compares thousands of numbers; the largest error of so many is that far out


def rounding(size, operations=OPERATIONS, unit=UNIT):
    """Return the largest difference to expect between two computations.

    Args:
        size: The largest absolute value that is summed.
        operations: How many operations follow one another on the way to a result.
        unit: The largest relative error of one of them.
    """
    return DEVIATIONS * unit * size * math.sqrt(2 * operations)


def of_gradients(gradients):
    """Return the bound for the gradients of one backward pass: all of them come of sums as large as the largest.

    The way back multiplies everything twice, for the inputs and for the weights, after the way forward.
    """
    largest = max(gradient.abs().max().item() for gradient in gradients if gradient is not None)
    return rounding(largest, 4 * OPERATIONS)


# Of log-probs and entropies of tiny models, whose logits reach 16: 1.7e-4. A wrong position changes 0.01 or more.
NATS = rounding(16.0)
