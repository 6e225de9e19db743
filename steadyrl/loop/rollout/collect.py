"""Problems to groups of finished rollouts, of one turn or several: drawn from the policy, or shown by the task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steadyrl.core.errors import DataError
from steadyrl.core.protocols import Backend, Interactive, Task, Teaching
from steadyrl.core.types import Completion, Group, Problem, Rollout, Sampling
from steadyrl.core.words import counted
from steadyrl.loop.rollout.episode import Attempt, Environment, context_of, require_room, text_of
from steadyrl.loop.rollout.multi_turn import play_experts, play_policy


def collect(
    backend: Backend,
    problems: Sequence[Problem],
    samples: int,
    sampling: Sampling,
    key: tuple[int, ...],
    policy_version: int = 0,
    environment: Environment | None = None,
) -> list[Group]:
    """Sample every problem several times with the present policy.

    What is drawn depends on the key, such as (seed, step): equal keys give equal completions.
    """
    attempts = [Attempt(p, (*key, i, s)) for i, p in enumerate(problems) for s in range(samples)]
    if environment is not None:
        rollouts = iter(play_policy(backend, environment, attempts, sampling, policy_version))
    else:
        # Each prompt once, and not once for each of its samples.
        encoded = {problem.id: backend.tokenizer.encode_prompt(problem.asked) for problem in problems}
        prompts = [encoded[a.problem.id] for a in attempts]
        completions = backend.generate(prompts, sampling, [a.seed() for a in attempts])
        sampled = zip(attempts, prompts, completions, strict=True)
        rollouts = (_rollout(backend, a.problem, p, c, sampling.stop, policy_version) for a, p, c in sampled)
    return [Group(problem, tuple(next(rollouts) for _ in range(samples))) for problem in problems]


def demonstrate(
    backend: Backend,
    problems: Sequence[Problem],
    task: Task,
    key: tuple[int, ...],
    environment: Environment | None = None,
) -> list[Group]:
    """Return a good answer to every problem that the task knows one for, as if the policy had written it.

    Raises:
        DataError: It knows none for any of them, or no turn fits.
    """
    if environment is None:
        answer_of = task.demonstration if isinstance(task, Teaching) else task.gold
        answers = [(problem, answer_of(problem)) for problem in problems]
        context = context_of(backend)
        groups = [Group(p, (_demonstration(backend, p, text, context),)) for p, text in answers if text is not None]
    else:
        attempts = [Attempt(problem, (*key, i, 0)) for i, problem in enumerate(problems)]
        rollouts = play_experts(backend.tokenizer, environment, attempts)
        groups = [Group(p, (r,)) for p, r in zip(problems, rollouts, strict=True) if r.turns or r.unscored]
        if not groups:
            require_room(rollouts, environment)  # an expert who was not asked may know the way
    if not groups:
        raise _no_answers_error(task, problems)
    return groups


def _no_answers_error(task: Task, problems: Sequence[Problem]) -> DataError:
    return DataError(
        f"the task '{task.name}' knows no good answer to any of {counted(len(problems), 'problem')}, and this "
        "algorithm learns from such answers only; give the problems theirs (prompts have them in the column of "
        "task.args.gold_column), or take another algorithm"
    )


def require_answers(backend: Backend, problems: Sequence[Problem], task: Task) -> None:
    """Refuse problems without any good answer, and answers that the model's positions do not reach, before training.

    Those that a task makes for teaching are looked at when they are made.

    Raises:
        DataError: There is none, or one does not fit.
    """
    context = context_of(backend)
    if isinstance(task, Teaching | Interactive):
        return
    texts = [task.gold(problem) for problem in problems]
    if all(text is None for text in texts):
        raise _no_answers_error(task, problems)
    if context is None:
        return
    for problem, text in zip(problems, texts, strict=True):
        # No tokenizer makes more tokens of a text than it has bytes. Half of the positions are left to the template and
        # the messages before a prompt; with more of these, an answer that does not fit is met when it is trained on.
        if text is not None and len(f"{problem.prompt}{text}".encode(errors="surrogatepass")) > context // 2:
            _demonstration(backend, problem, text, context)


def _demonstration(backend: Backend, problem: Problem, text: str, context: int | None) -> Rollout:
    prompt, ids = backend.tokenizer.encode_prompt(problem.asked), backend.tokenizer.encode_answer(text, problem.prompt)
    if context is not None and len(prompt) + len(ids) > context:
        raise DataError(
            f"the good answer to the problem '{problem.id}' takes {len(ids)} tokens after a prompt of {len(prompt)}, "
            f"and the model's positions reach {context}; shorten it, leave the problem out, or choose a model with a "
            "longer context"
        )
    completion = Completion(ids, np.full(len(ids), np.nan, np.float32), "stop")  # no sampler drew it
    return _rollout(backend, problem, prompt, completion)


def _rollout(
    backend: Backend,
    problem: Problem,
    prompt: np.ndarray,
    completion: Completion,
    stop: Sequence[str] = (),
    policy_version: int = 0,
) -> Rollout:
    return Rollout(
        problem_id=problem.id,
        prompt_ids=prompt,
        completion_ids=completion.ids,
        completion_mask=np.ones(len(completion.ids), bool),
        sampling_logprobs=completion.logprobs,
        text=text_of(backend.tokenizer, completion.ids, stop),
        stop_reason=completion.stop_reason,
        policy_version=policy_version,
        kept_ids=completion.kept_ids,
    )
