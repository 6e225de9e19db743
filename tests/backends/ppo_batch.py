"""What tests of every backend train on: prompts of several lengths, answers of the backend's own, steps of PPO."""

from dataclasses import replace

import numpy as np

from steadyrl.algorithms import ppo
from steadyrl.core.protocols import Update
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.maths.batch import make_batch

SETTINGS = ppo.Settings(
    entropy_coef=0.02, whiten_advantages=False, clip_value=5.0, value_start="zero", value_learning_rate=0
)
ALGORITHM = ppo.build(SETTINGS)
TEXTS = ("the", "a red cat sees two small birds", "one dog", "three old", "the big blue bird hears a", "not")
PROBLEMS = [Problem(str(i), text) for i, text in enumerate(TEXTS)]
PLAIN = Sampling(max_new_tokens=10)
NARROW = Sampling(max_new_tokens=10, temperature=0.7, top_p=0.9, top_k=20)


def scored_batch(backend, sampling, seed=0, samples=1):
    """A prepared batch of the backend's own completions, with rewards of all sizes."""
    groups = collect(backend, PROBLEMS, samples, sampling, (seed, 0))
    rewards = iter(np.random.default_rng(seed).normal(size=samples * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    return ALGORITHM.prepare(replace(batch, old=backend.score(batch, sampling, ALGORITHM.needs)), ALGORITHM.state)


def step(backend, batch, sampling=NARROW, rate=1e-2, max_grad_norm=1e9):
    return backend.step(batch, Update(ALGORITHM.loss, sampling, ALGORITHM.needs, rate, max_grad_norm))


def train(backend, seeds):
    for seed in seeds:
        step(backend, scored_batch(backend, NARROW, seed))


def prompts_of(backend):
    return [backend.tokenizer.encode_prompt(text) for text in TEXTS]


def cosines(backend):
    """Of the gradients of three updates at a rate of 0: of a batch, of the same again, and of its loss negated."""
    batch = scored_batch(backend, NARROW)

    def negated(*arguments):
        per_token, measured = ALGORITHM.loss(*arguments)
        return -per_token, measured

    stats = [
        backend.step(batch, Update(loss, NARROW, ALGORITHM.needs, 0.0, limit))
        for loss, limit in ((ALGORITHM.loss, 1e9), (ALGORITHM.loss, 1e-3), (negated, 1e9))
    ]
    return [found.get("grad_cosine", (None, 1.0))[0] for found in stats]


def products_and_norms(backend):
    """Products of the gradients of a batch and of the same without advantages, and the norm of an update with each."""
    batch = scored_batch(backend, NARROW)
    batches = [batch, replace(batch, advantages=np.zeros_like(batch.advantages))]
    update = Update(ALGORITHM.loss, NARROW, ALGORITHM.needs, 0.0, 1e9)
    products = backend.gradient_products(batches, update)
    return products, [backend.step(batch, update)["grad_norm"][0] for batch in batches]
