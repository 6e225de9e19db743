"""Synthetic runs: a healthy one with the correlated noise of real runs, which tests make sick in one way each."""

from itertools import accumulate

import numpy as np
import pytest

from steadyrl.doctor.names.table import load
from steadyrl.doctor.names.traits import traits
from steadyrl.doctor.series import Run, Series

TOKENS = 20.0  # mean length of a completion
SETTINGS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "logprobs": "sampled",
    "learning_rate": 1e-4,
    "epochs": 2,
    "minibatches": 2,
    "batch_size": 128,
    "kl_coef": 0.05,
    "kl_adaptive": False,
    "vocabulary": 50_000,
    "entropy_coef": 0.0,
}


def ar1(rng, n, rho=0.8):
    """Return AR(1) noise of standard deviation 1."""
    first = rng.normal()
    rest = (rng.normal(size=n - 1) * np.sqrt(1 - rho**2)).tolist()  # of floats, for numpy's are slow one by one
    return np.array(list(accumulate(rest, lambda before, e: rho * before + e, initial=first)))


class SyntheticRun:
    """Curves by (quantity, unit, estimator), to be changed before ``run`` makes a Run of them."""

    def __init__(self, seed=0, n=200, rho=0.8):
        self.n, self.rng, self.rho = n, np.random.default_rng(seed), rho
        self.settings = {**SETTINGS, "steps": n}
        self.trainer, self.algorithm = "steadyrl", "ppo"
        self.t = np.arange(n) / 200.0  # a run of 30 steps is the start of one of 200
        learned = 1.0 - np.exp(-3.0 * self.t)
        entropy = 2.0 * (1.0 - 0.6 * learned) * np.exp(0.04 * self.noise())
        kl = 6.0 * learned * np.exp(0.1 * self.noise())
        kl[0] = 0.0
        error = np.full(n, 0.05) + 0.05 * kl
        sampled = kl + error * self.rng.normal(size=n) * (kl > 0)
        self.curves = {
            ("reward", "reward", ""): 0.2 + 0.4 * learned + 0.02 * self.noise(),
            ("reward_std", "reward", ""): 0.2 * np.exp(0.1 * self.noise()),
            ("no_signal", "share", ""): np.full(n, 0.1),
            ("entropy", "nats/token", "exact"): entropy,
            ("entropy", "nats/token", "sampled"): entropy + 0.03 * self.rng.normal(size=n),
            ("kl_ref", "nats/sequence", "k1"): sampled,
            ("kl_ref_se", "nats/sequence", "k1"): error,
            ("kl_ref", "nats/token", "k1"): sampled / TOKENS,
            ("kl_ref", "nats/token", "k3"): 0.9 * kl / TOKENS,
            ("kl_ref", "nats/token", "exact"): kl / TOKENS,
            ("kl_old", "nats/token", "k3"): 0.01 * np.exp(0.4 * self.noise()),
            ("clip_fraction", "share", ""): np.clip(0.08 * np.exp(0.3 * self.noise()), 0.02, 0.15),
            ("sampler_gap", "nats/token", ""): 4e-7 * np.exp(0.3 * self.noise()),
            ("importance", "", ""): 1.0 + 1e-3 * self.noise(),
            ("ratio_mean", "", ""): 1.0 + 3e-3 * self.noise(),
            ("ratio_max", "", ""): 3.0 * np.exp(0.3 * self.noise()),
            ("grad_norm", "", ""): np.exp(0.2 * self.noise()),
            ("loss_policy", "", ""): -0.01 + 0.005 * self.noise(),
            ("length", "tokens", ""): TOKENS + self.noise(),
            ("learning_rate", "", ""): np.full(n, 1e-4),
            ("updates", "", ""): np.full(n, 4.0),
            ("kl_coef", "", ""): np.full(n, 0.05),
        }

    def noise(self):
        return ar1(self.rng, self.n, self.rho)

    def kl(self, per_sequence):
        """Set every estimate of the KL to the reference."""
        self.drop("kl_ref_se")
        self.curves[("kl_ref", "nats/sequence", "k1")] = per_sequence
        for estimator in ("k1", "k3", "exact"):
            self.curves[("kl_ref", "nats/token", estimator)] = per_sequence / TOKENS

    def put(self, quantity, values, unit="", estimator=""):
        """Set one curve; a name without unit replaces the healthy one of that name."""
        key = next((k for k in self.curves if k[0] == quantity and not unit), (quantity, unit, estimator))
        self.curves[key] = np.broadcast_to(np.asarray(values, float), self.n).copy()

    def drop(self, *quantities):
        self.curves = {key: values for key, values in self.curves.items() if key[0] not in quantities}

    def run(self):
        series = {}
        for (quantity, unit, estimator), values in self.curves.items():
            made = Series(quantity, unit, estimator, quantity, np.arange(self.n), values)
            series[quantity] = (*series.get(quantity, ()), made)
        return Run(
            "made",
            self.trainer,
            self.algorithm,
            series,
            self.settings,
            traits=traits(self.algorithm, self.settings, series),
            keys=load("steadyrl").own_keys({}, self.settings) if self.trainer == "steadyrl" else {},
        )


@pytest.fixture
def make():
    """Return the maker of healthy runs: make(seed, n)."""
    return SyntheticRun


@pytest.fixture
def finding():
    """Return a function that gives the single finding of a check on a run."""

    def single(check, made):
        found = check(made.run())
        assert [result.state for result in found] == ["found"], found
        return found[0]

    return single


@pytest.fixture
def silent():
    """Return a function that holds that a check says nothing of a run beyond information."""

    def holds(check, made):
        loud = [r for r in check(made.run()) if r.harms]
        assert not loud, loud

    return holds


@pytest.fixture
def unclear():
    """Return a function that holds that a check says it cannot tell."""

    def holds(check, made):
        found = check(made.run())
        assert [result.state for result in found] == ["unknown"], found
        return found[0]

    return holds
