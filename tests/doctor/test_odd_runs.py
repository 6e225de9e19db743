"""Runs of random quantities, lengths and settings: whatever is logged, every check answers."""

import numpy as np
import pytest

from steadyrl.doctor.examine import examine
from steadyrl.doctor.judgement.model import judge
from steadyrl.doctor.series import Run, Series, Traits
from tests.doctor.names.vocabulary import VOCABULARY

UNITS = {
    "kl_ref": [("nats/token", "k1"), ("nats/token", "k3"), ("nats/token", "exact"), ("nats/sequence", "k1"), ("", "")],
    "entropy": [("nats/token", "exact"), ("nats/token", "sampled")],
    "kl_old": [("nats/token", "k3")],
    "sampler_gap": [("nats/token", "")],
}
SETTINGS = {
    "temperature": [0.7, 1.3], "logprobs": ["raw"], "max_new_tokens": [0, 20], "learning_rate": [0.0, 1e-4],
    "warmup_steps": [1000], "epochs": [1, 8], "minibatches": [4], "batch_size": [0, 64], "samples_per_prompt": [1, 8],
    "kl_coef": [0.0, 0.05], "kl_adaptive": [True, False], "kl_target": [0.1, 6.0],
    "kl_target_unit": ["nats/token", "nats/sequence"], "kl_horizon": [6], "entropy_coef": [0.0, 0.01],
    "max_grad_norm": [0.0, 1.0], "optimizer": ["sgd"], "whitened": [True], "vocabulary": [2, 50_000], "steps": [10],
}  # fmt: skip


def values(rng, n):
    x = rng.normal(size=n)
    return (
        x, np.abs(x), np.zeros(n), np.full(n, 1e9), np.cumsum(x), np.exp(3 * x), np.clip(np.abs(x), 0, 1), x * 1e300,
        np.where(np.arange(n) < n // 2, 0.0, x), np.where(x > 1, np.nan, x), np.where(x > 1, np.inf, np.abs(x)),
    )[rng.integers(11)]  # fmt: skip


def odd_run(seed):
    rng = np.random.default_rng(seed)
    n, share = int(rng.choice([1, 2, 4, 6, 10, 30, 60])), rng.choice([0.3, 0.8])
    series = {}
    for name in sorted(VOCABULARY - set(SETTINGS)):
        if rng.random() < share:
            full = f"{name}f1" if name.endswith("/") else name
            steps = np.sort(rng.choice(2 * n, rng.integers(1, n + 1), replace=False)) if rng.random() < 0.5 else None
            at = np.arange(n) if steps is None else steps
            units = UNITS.get(name, [("", "")])
            series[full] = tuple(Series(full, unit, how, full, at, values(rng, len(at))) for unit, how in units)
    settings = {name: rng.choice(few).item() for name, few in SETTINGS.items() if rng.random() < 0.5}
    critic, grouped = (rng.choice([None, True, False]) for _ in range(2))
    place = str(rng.choice(["reward", "loss", "none", ""]))
    trainer = str(rng.choice(["steadyrl", "trl-ppo-old", "unknown"]))
    return Run("odd", trainer, "", series, settings, averaged_over=int(rng.choice([1, 10])),
               traits=Traits(critic, grouped, place))  # fmt: skip


@pytest.mark.parametrize("seed", [*range(60), 208, 3466])  # in the last two, squares of what is logged overflow
def test_every_check_answers_whatever_is_logged(seed):
    run = odd_run(seed)
    assert 0.0 <= judge(run).sick <= 1.0
    found = examine(run)
    assert {result.state for result in (*found.findings, *found.unknown, *found.fine)} <= {"found", "unknown", "ok"}
    assert len(found.findings) + len(found.unknown) + len(found.fine) > 20
