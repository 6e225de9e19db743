import numpy as np

from steadyrl.doctor.checks.loss import loss_reading
from tests.doctor.checks.series_for_values import finding, healthy, noise, rise, said, series, unclear

N = 100


def test_a_loss_of_both_signs_is_nothing_to_tell():
    assert said(loss_reading(healthy(n=N, algorithm="grpo", loss=0.01 * np.tile([1.0, -1.0], 50)))) == []


def test_a_loss_that_is_the_penalty_is_told():
    kl = series("kl_ref", rise(N, 0.0, 0.2) + 1e-4, unit="nats/token", estimator="k3")
    loss = 0.04 * kl.values * (1 + 0.03 * noise(np.random.default_rng(0), N))
    settings = {"kl_coef": 0.04, "kl_place": "loss"}
    found = finding(loss_reading(healthy(n=N, algorithm="grpo", kl_ref=kl, loss=loss, settings=settings)))
    assert (found.cause, found.severity) == ("is_the_penalty", "info")


def test_a_loss_with_a_policy_part_is_not_the_penalty():
    kl = series("kl_ref", rise(N, 0.0, 0.2) + 1e-4, unit="nats/token", estimator="k3")
    settings = {"kl_coef": 0.04, "kl_place": "loss"}
    run = healthy(n=N, algorithm="grpo", kl_ref=kl, loss=0.04 * kl.values + 0.01, settings=settings)
    assert said(loss_reading(run)) == []


def test_with_the_penalty_in_the_reward_equal_size_is_chance():
    kl = series("kl_ref", np.full(N, 0.1), unit="nats/token")
    run = healthy(n=N, kl_ref=kl, loss=np.full(N, 0.004), settings={"kl_coef": 0.04})
    assert said(loss_reading(run)) == []


def test_without_a_loss_it_is_unclear():
    assert unclear(
        loss_reading(healthy(n=N, algorithm="grpo", without=["loss"], settings={"kl_place": "loss"}))
    ).would_tell == ("loss",)
