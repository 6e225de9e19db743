"""How to read the loss: what it is not."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.measures import kl_coef
from steadyrl.doctor.statistics.units import find, together

IS_PENALTY = 0.1  # relative distance between loss and coefficient x KL
FEW = 10  # points


def _loss(run: Run) -> Result:
    loss, kl = run.get("loss"), find(run, "kl_ref")
    if loss is None or kl is None:
        return None
    loss, kl = together(loss, kl)
    coefficient = kl_coef(run, kl)
    if coefficient is None or len(loss) < FEW:
        return None
    penalty = coefficient * kl.values
    some = penalty > 0
    if some.sum() < FEW:
        return None
    distance = float(np.median(np.abs(loss.values[some] - penalty[some]) / penalty[some]))
    if distance > IS_PENALTY:
        return None
    return Found(
        "is_the_penalty",
        "info",
        None,
        "the loss is the KL penalty and nothing else: it rises because the policy moves, not as it diverges",
        (f"loss and coefficient x KL differ by {distance:.1%} (median over {int(some.sum())} steps)",),
    )


loss_reading = Check(
    name="loss_reading", topic="Policy",
    title="The loss of a policy gradient is no measure of progress.",
    symptom="With a group baseline the loss equals the coefficient times the KL within 10 %. It rises, and looks like "
    "divergence. Worth knowing; no fault. Real trouble shows elsewhere: reward, KL, ratio and gradient norm.",
    healthy="The loss is not read as progress; the reward is.",
    causes=(
        Cause("is_the_penalty", "advantages add up to 0 in every group and the ratio is 1 in the first update, so the "
              "policy's part has the value 0; its gradient has not. The loss then starts at 0 and rises as the policy "
              "learns",
              "Judge the run by its reward, its KL and held-out measurements."),
    ),
    find=_loss, needs=("loss",), applies=lambda run: run.traits.kl_place != "reward" and not run.traits.critic,
    source="TRL #2703; TRL's page on logging: this loss does not say much",
)  # fmt: skip
