"""How to read the loss: what it is not."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Result, check
from steadyrl.doctor.checks.measures import kl_coef
from steadyrl.doctor.checks.readings import number
from steadyrl.doctor.checks.units import TOKEN, find, together
from steadyrl.doctor.series import Run, Series
from steadyrl.types import Finding

SIGN_SHARE = 0.1  # of the steps that the rarer sign must have
IS_PENALTY = 0.1  # relative distance between loss and coefficient x KL
FEW = 10  # points
REWARD_LOSS = ("ppo", "reinforce", "reinforce++")  # the KL is in the reward there


@check(needs=("loss",))
def loss_reading(run: Run) -> list[Result]:
    """Loss of a policy gradient is no measure of progress.

    Symptom: the loss rises, or changes by many percent, and looks like divergence. Worth knowing; no fault.

    Causes and what tells them apart:
    - crosses_zero: the loss takes both signs. A change "in percent" of a number near zero means nothing: from 0.001 to
      0.01 is 900 %, and no step in the wrong direction. The policy loss is the mean of advantages times a ratio near 1,
      so it lies near 0 in a healthy run whatever is learned.
    - is_the_penalty: with a group baseline the loss equals the coefficient times the KL within 10 %. Advantages add up
      to 0 in every group and the ratio is 1 in the first update, so the policy's part has the value 0, its gradient has
      not. The loss then starts at 0 and rises as the policy learns; rising is not diverging.

    Real trouble shows elsewhere: reward, KL, ratio and gradient norm. A loss alone proves nothing.

    Remedy: none; read the reward and the held-out measurements.

    Source: TRL #2703; TRL's page on logging and Stable-Baselines3's logger page: this loss does not say much.
    """
    loss = run.get("loss")
    assert loss is not None, "a need"
    if len(loss) < FEW:
        return []
    penalty = _is_penalty(run, loss)
    if penalty is not None:
        return [penalty]
    positive, negative = float((loss.values > 0).mean()), float((loss.values < 0).mean())
    if min(positive, negative) < SIGN_SHARE:
        return []
    return [
        Finding(
            check="loss_reading",
            severity="info",
            since_step=None,
            cause="crosses_zero",
            message="the loss takes both signs: changes in percent of it mean nothing",
            evidence=(
                f"above 0 in {positive:.0%} of the steps, below in {negative:.0%}; median size "
                f"{number(float(np.median(np.abs(loss.values))))}",
            ),
            remedy="Judge the run by its reward, its KL and held-out measurements.",
            source="Stable-Baselines3, logger page",
        )
    ]


def _is_penalty(run: Run, loss: Series) -> Finding | None:
    kl = find(run, "kl_ref", TOKEN)
    if kl is None or run.algorithm in REWARD_LOSS or run.settings.get("kl_place") == "reward":
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
    return Finding(
        check="loss_reading",
        severity="info",
        since_step=None,
        cause="is_the_penalty",
        message="the loss is the KL penalty and nothing else: it rises because the policy moves, not as it diverges",
        evidence=(f"loss and coefficient x KL differ by {distance:.1%} (median over {int(some.sum())} steps)",),
        remedy="Judge the run by its reward, its KL and held-out measurements.",
        source="TRL #2703",
    )
