"""Logs of made runs as a trainer writes them: one that learns, one whose updates are too large from step 200 on."""

import json

import numpy as np

SICK_FROM = 200


def healthy(n=400):
    """Yield rows of a run under steadyrl's names that learns quietly."""
    rng = np.random.default_rng(0)
    for i in range(n):
        learned = 1.0 - np.exp(-3.0 * i / n)
        entropy = 2.0 * (1.0 - 0.5 * learned) + 0.02 * rng.normal()
        yield {
            "step": i,
            "reward/mean": 0.2 + 0.4 * learned + 0.02 * rng.normal(),
            "reward/std": 0.2,
            "kl_ref_k1_seq": 6.0 * learned * (1.0 + 0.05 * rng.normal()),
            "kl_ref_k3": 0.3 * learned,
            "kl_old_k3": 0.01 * np.exp(0.3 * rng.normal()),
            "clip_fraction": 0.1 + 0.01 * rng.normal(),
            "entropy": entropy,
            "entropy_sampled": entropy + 0.02 * rng.normal(),
            "grad_norm": np.exp(0.2 * rng.normal()),
            "completion/length": 20.0 + rng.normal(),
        }


def sick(n=600):
    """Yield rows of a run whose KL and value loss leave it after updates became too large."""
    rng = np.random.default_rng(1)
    for i in range(n):
        ill = i >= SICK_FROM
        kl = (10.0 + 0.6 * (i - SICK_FROM) if ill else 3.0 * i / SICK_FROM) + 0.2 * rng.normal()
        kl *= 5.0 if 300 <= i < 400 and rng.random() < 0.15 else 1.0
        yield {
            "step": i,
            "reward/mean": 0.2 + 0.3 * min(i / SICK_FROM, 1.0) + 0.02 * rng.normal(),
            "reward/std": 0.3,
            "kl_ref_k1_seq": kl,
            "kl_ref_k1": kl / 20.0,
            "algorithm/kl_coef": 0.2,
            "kl_old_k3": (0.4 if ill else 0.01) * np.exp(0.2 * rng.normal()),
            "clip_fraction": (0.45 if ill else 0.1) * np.exp(0.05 * rng.normal()),
            "loss/value": max((0.2 * kl) ** 2 * 0.4, 0.3) * np.exp(0.1 * rng.normal()),
            "grad_norm": np.exp(0.2 * rng.normal()),
            "completion/length": 20.0,
        }


def write(path, rows):
    """Write rows as JSON lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
