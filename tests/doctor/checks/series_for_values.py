"""Synthetic runs: healthy ones with correlated noise, and pieces to make them sick."""

from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from steadyrl.core.config import resolve
from steadyrl.doctor.examine import BY_NAME
from steadyrl.doctor.names.table import load
from steadyrl.doctor.names.traits import traits
from steadyrl.doctor.series import Run, Series

UNITS = {"kl_ref": ("nats/sequence", "k1"), "kl_old": ("nats/token", "k3"), "explained_variance": ("", "centred")}
MEMORY = 60  # steps after which the noise has forgotten: 0.8 ** 60 is 1.5e-6


def noise(rng, n, scale=1.0, memory=0.8):
    """Return stationary AR(1) noise [n] with standard deviation ``scale``."""
    drawn = rng.normal(size=n + MEMORY - 1)
    weights = memory ** np.arange(MEMORY)[::-1]
    return scale * np.sqrt(1 - memory**2) * (sliding_window_view(drawn, MEMORY) @ weights)


def series(quantity, values, steps=None, unit=None, estimator=None):
    values = np.asarray(values, float)
    known = UNITS.get(quantity, ("", ""))
    return Series(
        quantity,
        known[0] if unit is None else unit,
        known[1] if estimator is None else estimator,
        f"log/{quantity}",
        np.arange(len(values)) if steps is None else np.asarray(steps),
        values,
    )


def make_run(columns, algorithm="ppo", trainer="steadyrl", settings=None):
    """Build a run; a column is an array, a Series, or a tuple of Series."""
    every = {}
    for name, column in columns.items():
        if isinstance(column, tuple):
            every[name] = column
        else:
            every[name] = (column if isinstance(column, Series) else series(name, column),)
    known = {"max_grad_norm": 1.0, **(settings or {})}
    names = load("steadyrl").own_keys({}, known) if trainer == "steadyrl" else {}
    return Run("runs/made", trainer, algorithm, every, known, traits=traits(algorithm, known, every), keys=names)


def rise(n, start, end, pace=3.0):
    """Return a saturating rise [n] that is flat at its end."""
    return end - (end - start) * np.exp(-pace * np.arange(n) / n)


def healthy_columns(seed, n=200):
    """Return what a healthy run logs: a reward that rises to a plateau, noise that remembers, one odd gradient."""
    rng = np.random.default_rng(seed)
    norm = np.exp(np.log(0.4) + noise(rng, n, 0.5))
    norm[rng.integers(25, n) if n > 25 else 0] *= 40.0
    share = np.clip(0.06 + noise(rng, n, 0.02), 0.02, 0.1)
    evaluations = np.arange(0, n, 10)
    return {
        "reward": rise(n, 0.2, 0.7) + noise(rng, n, 0.03),
        "reward_std": 0.3 + noise(rng, n, 0.015),
        "reward_std_within": 0.2 + noise(rng, n, 0.015),
        "reward_min": np.clip(noise(rng, n, 0.02), 0, 1),
        "reward_max": np.clip(1.0 + noise(rng, n, 0.02), 0, 1),
        "reward_unscored": rng.poisson(0.2, n) / 64,
        "no_signal": np.clip(0.3 + noise(rng, n, 0.08), 0, 1),
        "reward_part/retrieval": rise(n, 0.1, 0.6) + noise(rng, n, 0.03),
        "reward_part/structure": rise(n, 0.1, 0.9) + noise(rng, n, 0.03),
        "heldout/retrieval": series(
            "heldout/retrieval", rise(n, 0.1, 0.5)[evaluations] + noise(rng, len(evaluations), 0.02), evaluations
        ),
        "kl_ref": 0.1 + rise(n, 0.0, 6.0) + noise(rng, n, 0.3),
        "kl_old": np.exp(np.log(0.004) + noise(rng, n, 0.4)),
        "loss": 0.02 * noise(rng, n) + 0.05,
        "loss_value": np.exp(np.log(0.05) - rise(n, 0, 1) + noise(rng, n, 0.4)),
        "value_mean": rise(n, 0.0, 0.65) + noise(rng, n, 0.03),
        "return_mean": rise(n, 0.2, 0.68) + noise(rng, n, 0.03),
        "return_std": 0.3 + noise(rng, n, 0.02),
        "explained_variance": rise(n, 0.0, 0.3) + noise(rng, n, 0.05),
        "advantage_mean": noise(rng, n, 0.02),
        "advantage_std": 0.3 + noise(rng, n, 0.02),
        "grad_norm": norm,
        "grad_clipped": (norm > 1.0).astype(float),
        "learning_rate": np.full(n, 3e-4),
        "length": rise(n, 100.0, 70.0) + noise(rng, n, 4.0),
        "length_min": np.maximum(1, 10 + noise(rng, n, 4)).round(),
        "truncated": share,
        "empty": rng.poisson(0.1, n) / 64,
        "repetition": 0.05 + noise(rng, n, 0.02),
        "tokens_per_second": 900 + noise(rng, n, 40),
        "time_step": np.exp(np.log(8) + noise(rng, n, 0.1)),
        "time_logged": 1.8e9 + np.cumsum(np.exp(np.log(8) + noise(rng, n, 0.1))),
        "entropy": rise(n, 2.5, 1.8) + noise(rng, n, 0.05),
    }


def healthy(seed=0, n=200, without=(), settings=None, algorithm="ppo", **columns):
    """Build a healthy run with some columns replaced or left out; ``heldout__x`` names "heldout/x"."""
    every = healthy_columns(seed, n)
    every.update({name.replace("__", "/"): column for name, column in columns.items()})
    known = {"learning_rate": 3e-4, "kl_coef": 0.05, "kl_place": "reward", "samples_per_prompt": 4, "steps": n}
    kept = {name: column for name, column in every.items() if name not in without}
    return make_run(kept, algorithm, settings={**known, **(settings or {})})


def alone(run, *quantities):
    """Return a run that logged nothing but these quantities."""
    return replace(run, series={name: run.series[name] for name in quantities})


def finding(results):
    """Return the single finding of a check's results, which hold no other; its overrides are valid settings."""
    found = [result for result in results if result.state == "found"]
    assert len(found) == 1, results
    resolve({"rewards": {"retrieval": 1.0, "structure": 0.1}, "algorithm": {"name": "ppo"}}, found[0].overrides)
    assert found[0].message and found[0].remedy and found[0].evidence and found[0].source
    return found[0]


def unclear(results):
    """Return the single 'could not tell' of a check's results, which hold nothing else."""
    assert len(results) == 1 and results[0].state == "unknown", results
    return results[0]


def said(results):
    """Return what a check's results say beyond that all is in order."""
    return [result for result in results if result.state != "ok"]


def nearest(found):
    """Return the check that a finding is linked to first, by the record of its cause."""
    return BY_NAME[found.check].cause(found.cause).follows[0]
