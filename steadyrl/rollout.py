"""Problems to groups of finished rollouts: prompts encoded, completions sampled, text decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steadyrl.types import Backend, Completion, Group, Problem, Rollout, Sampling


def collect(
    backend: Backend,
    problems: Sequence[Problem],
    samples: int,
    sampling: Sampling,
    key: tuple[int, ...],
    policy_version: int = 0,
) -> list[Group]:
    """Sample every problem several times with the present policy.

    Args:
        backend: Holds the policy.
        problems: One group each.
        samples: Completions per problem.
        sampling: How to draw.
        key: What the draws depend on, such as (seed, step); equal keys give equal completions.
        policy_version: Recorded on the rollouts.
    """
    prompts = [backend.tokenizer.encode_prompt(problem.prompt) for problem in problems]
    seeds = [_seed((*key, p, s)) for p in range(len(problems)) for s in range(samples)]
    completions = iter(backend.generate([p for p in prompts for _ in range(samples)], sampling, seeds))
    return [
        Group(
            problem,
            tuple(_rollout(backend, problem, prompt, next(completions), policy_version) for _ in range(samples)),
        )
        for problem, prompt in zip(problems, prompts, strict=True)
    ]


def _rollout(
    backend: Backend, problem: Problem, prompt: np.ndarray, completion: Completion, policy_version: int
) -> Rollout:
    return Rollout(
        problem_id=problem.id,
        prompt_ids=prompt,
        completion_ids=completion.ids,
        completion_mask=np.ones(len(completion.ids), bool),
        sampling_logprobs=completion.logprobs,
        text=backend.tokenizer.decode(completion.ids).strip(),
        stop_reason=completion.stop_reason,
        policy_version=policy_version,
        kept_ids=completion.kept_ids,
    )


def _seed(key: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
