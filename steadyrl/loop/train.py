"""The loop: read ``one_step`` from top to bottom to see what a step is.

curriculum -> rollouts -> rewards -> select -> batch -> score -> advantages -> updates -> metrics
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.backends.torch.device_memory import memory_now
from steadyrl.core import metrics, plugins
from steadyrl.core.algorithm import open_algorithm
from steadyrl.core.arguments import checked
from steadyrl.core.config import Config, dump, in_steps
from steadyrl.core.counting.count import begin, tell
from steadyrl.core.counting.interrupts import deferred
from steadyrl.core.errors import ConfigError, DataError, DivergedError, require_posix, users_errors
from steadyrl.core.protocols import Algorithm, Backend, Detached, Editable, PrefixCaching, Task, Update
from steadyrl.core.rundir import RunDir, append_line, write_lines, write_text
from steadyrl.core.sections import UpdateSection
from steadyrl.core.stats import holds_target, steps_to_hold
from steadyrl.core.types import Batch, Group, Problem, Sampling
from steadyrl.core.words import counted
from steadyrl.doctor.live import Change, Ends, LiveDoctor
from steadyrl.loop import checkpoint
from steadyrl.loop import evaluate as evaluation
from steadyrl.loop.autopilot.knobs import adjust
from steadyrl.loop.autopilot.pilot import Autopilot, pilot_metrics
from steadyrl.loop.checkpoint import Safeguard, State
from steadyrl.loop.curriculum.choice import Curriculum, Request, require_choice
from steadyrl.loop.curriculum.memory import Memory, recall
from steadyrl.loop.evaluate import HeldoutSet
from steadyrl.loop.gradient_parts import GRADIENT_PARTS_EVERY, gradient_parts
from steadyrl.loop.rewards.combine import (
    Term,
    make_terms,
    nothing_to_compare,
    planned_updates,
    require_columns,
    require_scores,
    reward_shares,
    score_groups,
    term_metrics,
)
from steadyrl.loop.rollout.ahead import rollouts_of_step
from steadyrl.loop.rollout.collect import collect, demonstrate, require_answers
from steadyrl.loop.rollout.episode import Environment, context_of, environment_of, require_tokens
from steadyrl.loop.rollout.off_policy import correct, importance_metrics
from steadyrl.loop.rollout.prompts import fit_splits
from steadyrl.loop.rollout.records import TokenLook, choice_records, rollout_records
from steadyrl.maths.batch import limit_rewards, make_batch, only_trained, take_rows
from steadyrl.maths.select import drop_equal_rewards

log = logging.getLogger(__name__)

_MAX_UNCOMPARED = 10  # steps in a row, as many as a judge's failures are counted over by default
_MINIBATCH_KEY = 2**31 + 1  # the shuffles of minibatches never meet the seeds of rollouts


@dataclass(frozen=True)
class Session:
    """Everything a run needs, built from its config; of each split also how many prompts were dropped or cut."""

    config: Config
    task: Task
    terms: Sequence[Term]
    algorithm: Algorithm
    curriculum: Curriculum
    backend: Backend
    problems: Sequence[Problem]
    heldout: Sequence[Problem]
    sampling: Sampling
    long_prompts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sets: Sequence[HeldoutSet] = ()

    @property
    def heldout_sets(self) -> list[HeldoutSet]:
        """The task's own held-out problems, where it has some, and the sets of ``evaluate.sets``."""
        task_set = [HeldoutSet("", self.heldout, self.terms)] if self.heldout else []
        return [*task_set, *self.sets]

    @property
    def environment(self) -> Environment | None:
        """Where the task's problems answer back; None where they do not."""
        return environment_of(self.task, self.sampling, self.config.rollout, context_of(self.backend))

    def scored(self, batch: Batch) -> Batch:
        """Return a batch with what the policy scores it before the updates; as it is where nothing reads that.

        The metrics of the policy's own rollouts do, the autopilot's KL of a step, and algorithms that need it.
        """
        algorithm = self.algorithm
        needed = algorithm.needs - {"entropy"} or self.config.autopilot.mode != "off"
        if algorithm.source == "demonstrations" and not needed:
            return batch
        return replace(batch, old=self.backend.score(batch, self.sampling, algorithm.needs))

    def update_at(self, rate: float) -> Update:
        """Return what an update at a learning rate asks of the backend."""
        algorithm, limit = self.algorithm, self.config.update.max_grad_norm
        return Update(algorithm.loss, self.sampling, algorithm.needs, rate, limit)


@checked
@dataclass(frozen=True)
class Watch:
    """How a user interface follows a run.

    Args:
        phase: Called with a line when something longer begins.
        note: Called with a line that is worth keeping, such as the result of the preflight.
        opened: Called with the run directory before the first step, also after a resume.
        steps: Called with the number of steps; the context that it returns, if any, is entered around them.
        step: Called with every line of metrics.
        ended: Called with the run directory when the run has ended well, before its trackers close.
        finding: Called with each finding that the doctor raises or clears during the run.
        action: Called with each action or advice of the autopilot, as in actions.jsonl.
        stop: Asked after every step; True ends the run with a checkpoint.
    """

    phase: Callable[[str], None] = field(default=lambda text: None)
    note: Callable[[str], None] = field(default=lambda text: None)
    opened: Callable[[RunDir], None] = field(default=lambda run: None)
    steps: Callable[[int], AbstractContextManager[object] | None] = field(default=nullcontext)
    step: Callable[[Mapping[str, Any]], None] = field(default=lambda record: None)
    ended: Callable[[RunDir], None] = field(default=lambda run: None)
    finding: Callable[[Change], None] = field(default=lambda change: None)
    action: Callable[[Mapping[str, Any]], None] = field(default=lambda line: None)
    stop: Callable[[], bool] = field(default=lambda: False)

    def around(self, total: int) -> AbstractContextManager[object]:
        """Return the context that ``steps`` returns; refuse (ConfigError) what is none."""
        context = self.steps(total)
        if not isinstance(context, AbstractContextManager | None):
            raise ConfigError(f"Watch.steps returned {context!r:.60}; expected a context for `with`, or None")
        return nullcontext() if context is None else context


def joined(first: Watch, second: Watch) -> Watch:
    """Return a watch that calls one after the other; either may stop the run."""

    def in_turn(name: str) -> Callable[..., None]:
        earlier, later = getattr(first, name), getattr(second, name)
        return lambda *arguments: (earlier(*arguments), later(*arguments))  # type: ignore[return-value]

    def steps(total: int) -> AbstractContextManager[object]:
        # Both are asked for here and not where they are entered: what is wrong with one is said before the run begins.
        return entered(first.around(total), second.around(total))

    @contextmanager
    def entered(outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> Iterator[None]:
        with outer, inner:
            yield

    names = ("phase", "note", "opened", "step", "ended", "finding", "action")
    called: dict[str, Any] = {name: in_turn(name) for name in names}
    return Watch(**called, steps=steps, stop=lambda: first.stop() or second.stop())


@users_errors()
def open_session(config: Config) -> Session:
    """Build task, rewards, algorithm and backend.

    Raises:
        SteadyError: Something in the config cannot be had.
    """
    require_posix("computing with a model")
    task = plugins.open_task(config.task.name, config.task.args, config.run.seed)
    plugins.require_members(f"the task '{config.task.name}'", task, Task, later=("ask", "show"))
    algorithm = open_algorithm(config.algorithm.name, config.algorithm.args)
    curriculum = plugins.make("curriculum", config.curriculum.name, config.curriculum.args)
    problems, heldout = plugins.problems_of(task, "train"), plugins.problems_of(task, "heldout")
    if not problems:
        raise DataError(f"the task '{config.task.name}' has no training problems; check task.args")
    for split in (problems, heldout):
        plugins.require_ids(task, split)
    config = in_steps(config, len(problems))
    terms = make_terms(config.rewards, task, planned_updates(config))
    require_columns(terms, "train", problems)
    require_columns(terms, "heldout", heldout)
    sets = evaluation.open_sets(config)
    if algorithm.compares and config.rollout.samples_per_prompt < 2:
        raise ConfigError(
            f"algorithm.name = '{config.algorithm.name}' compares the rollouts of a problem with one another, and "
            "rollout.samples_per_prompt is 1; set it to 2 or more (8 is usual)"
        )
    require_choice(curriculum, config, task, problems)
    backend = plugins.make("backend", config.backend.name, config, algorithm)
    offers = (Detached, PrefixCaching)
    plugins.require_members(f"the backend '{config.backend.name}'", backend, Backend, offers)
    if config.evaluate.patience and not heldout:
        raise DataError(
            f"evaluate.patience is {config.evaluate.patience}, and the task '{config.task.name}' has no held-out "
            "problems to evaluate on; set it to 0, or give the task some"
        )
    sampling = Sampling(**config.sampling.model_dump())
    heldout = evaluation.pick_heldout(heldout, config.evaluate.problems)
    begin(f"counting the tokens of {counted(len(problems) + len(heldout), 'prompt')}")
    fitted_train, fitted_heldout = fit_splits(task, problems, heldout, backend, sampling)
    if algorithm.source == "demonstrations":
        require_answers(backend, fitted_train.problems, task)
    fitted_config = in_steps(config, len(fitted_train.problems))
    if fitted_config.run.steps != config.run.steps:  # prompts were dropped, and rewards may read how long the run is
        terms = make_terms(config.rewards, task, planned_updates(fitted_config))
    return Session(
        config=fitted_config,
        task=task,
        terms=terms,
        algorithm=algorithm,
        curriculum=curriculum,
        backend=backend,
        problems=tuple(fitted_train.problems),
        heldout=tuple(fitted_heldout.problems),
        sampling=sampling,
        long_prompts={"train": fitted_train.counts(), "heldout": fitted_heldout.counts()},
        sets=[replace(s, problems=fit_splits(task, (), s.problems, backend, sampling)[1].problems) for s in sets],
    )


def train(session: Session, run: RunDir, attempt: int = 0, watch: Watch | None = None) -> str:
    """Run from the newest checkpoint (or the start) to the end.

    A resume is an attempt of its own, from 1, which stands on every line of metrics.

    Returns:
        "finished", or "interrupted" where ``watch.stop`` said so.
    """
    watch = watch or Watch()
    context = watch.around(session.config.run.steps)  # refused, if wrong, before an evaluation takes minutes
    checkpoint.finish_writing(run, session.config.run.keep_checkpoints)
    state = checkpoint.load(run, session.backend) or State()
    state.algorithm = {**session.algorithm.state, **state.algorithm}  # an earlier version may have had fewer numbers
    _evaluate_before(session, run, state, watch)
    begin(f"training, step {state.step}")  # ends the evaluation for who watches; a step ends it
    guard = Safeguard(run, session.backend, session.config, watch.note)
    with context, guard.saving():
        if not run_steps(session, run, state, attempt, watch, guard):
            return "interrupted"
    for heldout_set in session.heldout_sets:
        after, newest = (run.evaluation_file(name, heldout_set.name) for name in ("after", f"{state.step:06d}"))
        if session.config.evaluate.every and newest.is_file():
            write_text(after, newest.read_text(encoding="utf-8"))
            continue
        watch.phase(_evaluation_phase(heldout_set))
        _evaluate(session, heldout_set, after)
    return "finished"


def run_steps(session: Session, run: RunDir, state: State, attempt: int, watch: Watch, guard: Safeguard) -> bool:
    """Make all remaining steps; return False if the watch stopped the run first."""
    config = session.config
    doctor = _doctor(session, run, state.step)
    pilot = Autopilot(config, run, session.backend, watch.action)
    rewards = {row["step"]: row.get("reward/mean") for row in run.metrics()}
    while state.step < config.run.steps and not ends_early(config, state, rewards):
        pilot.secure(state)
        guard.begin(state)
        try:
            look = _token_look(session, state)
            groups, step_metrics = one_step(session, state, look, guard)
        except DivergedError as error:
            guard.take_back()
            state = pilot.recover(state, error)
            continue
        line = metrics.StepMetrics()
        line.add("the run", {"step": state.step - 1, "attempt": attempt, "time": time.time()})
        line.add("the step", step_metrics)
        record = line.values
        guard.after_updates(state, record)
        line.add("the evaluation", _evaluate_now(session, run, state, watch))
        with deferred():  # an interrupt between two of these files would leave half of a step on disk
            if look or record["step"] % config.run.rollouts_every == 0 or state.step == config.run.steps:
                write_lines(run.rollouts_file(record["step"]), rollout_records(groups))
            if look:
                write_lines(run.tokens_file(record["step"]), look.records)
            if any(group.why for group in groups):
                choices = {"step": record["step"], "attempt": attempt, "choices": choice_records(groups)}
                append_line(run.curriculum_file, choices)
            append_line(run.metrics_file, record)
            guard.written()
        rewards[record["step"]] = record.get("reward/mean")
        watch.step(dict(record))  # a callback may change it
        for change in doctor.add(record["step"], record) if doctor else ():
            append_line(run.findings_file, change.record())
            watch.finding(change)
        guard.moved()  # the autopilot may go back to an earlier checkpoint
        state = pilot.steer(state, record, doctor.fresh if doctor else None)
        guard.begin(state)
        is_last = state.step == config.run.steps or ends_early(config, state, rewards)
        stopped = watch.stop() and not is_last
        is_best = state.best is not None and state.best.step == state.step
        if stopped or is_last or is_best or state.step % config.run.checkpoint_every == 0:
            checkpoint.save(run, session.backend, state, config.run.keep_checkpoints)
        if stopped:
            return False
    if state.step < config.run.steps and target_held(config, state.step, rewards):
        watch.note(
            f"stopping early after {counted(state.step, 'step')}: the smoothed reward has held run.target = "
            f"{config.run.target:g} for {counted(steps_to_hold(config.run.steps), 'step')}"
        )
    return True


def ends_early(config: Config, state: State, rewards: Mapping[int, float | None]) -> bool:
    """Say whether a run is over before its last step: out of patience, or at its target.

    Rewards of steps that were taken back do not count.
    """
    return evaluation.out_of_patience(config.evaluate.patience, state) or target_held(config, state.step, rewards)


def target_held(config: Config, done: int, rewards: Mapping[int, float | None]) -> bool:
    """Say whether the reward has held ``run.target`` over the last of the steps that are done."""
    curve = [reward for step, reward in sorted(rewards.items()) if step < done and reward is not None]
    return config.run.target is not None and holds_target(curve, config.run.target, config.run.steps)


def one_step(
    session: Session, state: State, look: TokenLook | None = None, guard: Safeguard | None = None
) -> tuple[list[Group], dict[str, float | None]]:
    """Make one step: collect, score, train, measure; ``state`` moves on.

    Args:
        session: The run's.
        state: Before the step, afterwards behind it; the weights are then those of the step.
        look: Measures single tokens beside it.
        guard: Follows the updates.

    Returns:
        All groups of the step, and its metrics.

    Raises:
        DataError: No rollout could be scored, or none holds a token to train on.
        DivergedError: A gradient is not finite.
    """
    session = with_knobs(session, state)
    config, backend, algorithm, step = session.config, session.backend, session.algorithm, state.step
    clock = metrics.Clock()
    with rollouts_of_step(state, config.rollout.ahead, partial(gather, session), backend, clock) as rollouts:
        groups = list(rollouts.groups)
        training = _training_groups(session, groups, state)
        batch = limit_rewards(make_batch(training, backend.tokenizer.pad_id), config.update.reward_limit)
        scored = session.scored(batch)
        batch = algorithm.prepare(scored, state.algorithm)
        clock.lap("score")
        if look:
            look.before(batch)
        rate = config.update.rate(step, config.run.steps) if step >= algorithm.value_warmup else 0.0
        generator = np.random.default_rng([config.run.seed, _MINIBATCH_KEY, step])
        # Behind prepare: a correction weighs the advantages.
        corrected = replace(session, algorithm=correct(algorithm, batch, config.update.correction, state))
        gradients: dict[str, float] = {}
        if (step + 1) % GRADIENT_PARTS_EVERY == 0:
            gradients = gradient_parts(backend, algorithm, scored, batch, state.algorithm, corrected.update_at(rate))
        if guard:
            guard.before_updates()
        update_numbers = update(corrected, batch, rate, generator, step, guard)
        pilot_numbers = pilot_metrics(backend, batch, session.sampling, config, state)
        clock.lap("update")
        if look:
            look.after(training, groups)
    step_metrics, seconds = metrics.StepMetrics(), clock.total()
    step_metrics.add("the rollouts", metrics.summarise(groups, batch, rollouts.version == state.updates))
    step_metrics.add("the rewards", {**term_metrics(session.terms), **reward_shares(groups, session.terms)})
    step_metrics.add("the choice of problems", rollouts.numbers)
    step_metrics.add("the correction", importance_metrics(batch))
    step_metrics.add("the updates", update_numbers | gradients)
    step_metrics.add("the algorithm", {f"algorithm/{name}": value for name, value in state.algorithm.items()})
    step_metrics.add("the autopilot", pilot_numbers)
    step_metrics.add("the clock", clock.times())
    speed = step_metrics.values["tokens/sampled"] / seconds if seconds else None  # a clock may stand still
    data_epoch = state.problems_drawn / len(session.problems)
    step_metrics.add("the loop", {"learning_rate": rate, "data_epoch": data_epoch, "tokens/per_second": speed})
    step_metrics.add("the machine", {"memory/peak": memory_now().peak / 2**30})
    state.step, state.updates = step + 1, state.updates + int(update_numbers["updates"])
    state.algorithm = algorithm.adapt(state.algorithm, {k: v for k, v in step_metrics.values.items() if v is not None})
    return groups, step_metrics.values


def _training_groups(session: Session, groups: list[Group], state: State) -> list[Group]:
    """Return the groups that the algorithm keeps to train on.

    Steps in a row without a group of two scored rollouts are counted: the run may have a pause, and must not idle.
    """
    require_scores(groups)
    algorithm, step = session.algorithm, state.step
    message = nothing_to_compare(groups) if algorithm.compares else ""
    state.steps_uncompared = state.steps_uncompared + 1 if message else 0
    if state.steps_uncompared >= _MAX_UNCOMPARED:
        raise DataError(
            f"{message}. So it was in {_MAX_UNCOMPARED} steps in a row, and this algorithm learns from comparisons "
            "only; fix the reward, and go on with `steadyrl train --resume`"
        )
    if message:
        log.warning("step %d: %s; with nothing to compare, advantages are 0", step, message)
    training = algorithm.select(groups)
    if not training:
        raise DataError(
            f"step {step}: the algorithm kept none of {counted(len(groups), 'group')} to train on; see rollouts/"
        )
    require_tokens(training, session.environment)
    return training


def gather(session: Session, state: State, clock: metrics.Clock) -> tuple[list[Group], Memory, dict[str, float]]:
    """Choose problems, answer and score them; in further rounds (``rollout.refill``) for groups that were all equal.

    Returns:
        The groups, what the curriculum knows now, and its metrics.
    """
    settings, seed, step = session.config.rollout, session.config.run.seed, state.step
    mutate = session.task.mutate if isinstance(session.task, Editable) else None
    groups: list[Group] = []
    numbers: dict[str, float] = {}
    memory = recall(state.curriculum)
    backend, environment, samples = session.backend, session.environment, settings.samples_per_prompt
    missing, rounds = settings.prompts_per_step, 0
    while missing > 0 and rounds <= settings.refill:
        request = Request(session.problems, missing, state.problems_drawn + len(groups), step, seed, mutate)
        choice = session.curriculum.choose(request, memory)
        # The first round draws what it would draw without rollout.refill.
        key = (seed, step, rounds) if rounds else (seed, step)
        if session.algorithm.source == "demonstrations":
            new_groups = demonstrate(backend, choice.problems, session.task, key, environment)
        else:
            new_groups = collect(backend, choice.problems, samples, session.sampling, key, state.updates, environment)
        clock.lap("rollout")
        new_groups = score_groups(new_groups, session.terms)
        clock.lap("reward")
        reasons = dict(zip((problem.id for problem in choice.problems), choice.why, strict=True))
        groups += [replace(group, why=reasons[group.problem.id]) for group in new_groups]
        memory = session.curriculum.observe(choice.memory, new_groups, step)
        if choice.entropy is not None:
            numbers |= {"curriculum/entropy": choice.entropy, "curriculum/known": float(len(memory.seen))}
        missing, rounds = settings.prompts_per_step - len(drop_equal_rewards(groups)), rounds + 1
    if settings.refill:
        numbers["curriculum/rounds"] = float(rounds)
    return groups, memory, numbers


def with_knobs(session: Session, state: State) -> Session:
    """Return the session as the autopilot has set its knobs; the same one where it has not."""
    config = adjust(session.config, state.autopilot)
    if config is session.config:
        return session
    algorithm = session.algorithm
    if config.algorithm != session.config.algorithm:
        algorithm = open_algorithm(config.algorithm.name, config.algorithm.args)
    return replace(session, config=config, algorithm=algorithm, sampling=Sampling(**config.sampling.model_dump()))


def update(
    session: Session,
    batch: Batch,
    rate: float,
    generator: np.random.Generator,
    step: int,
    guard: Safeguard | None = None,
) -> dict[str, float]:
    """Train on a batch: epochs of shuffled minibatches, one optimizer step each.

    The epochs end early once an update's tokens are further than ``update.kl_old_limit`` from the old policy.

    Returns:
        Means over the updates by metric name; ``updates`` and ``epochs`` made.

    Raises:
        DivergedError: A gradient is not finite.
    """
    settings = session.config.update
    batch, records = only_trained(batch), list[dict[str, float]]()
    for epoch in range(settings.epochs):
        minibatches = np.array_split(generator.permutation(len(batch.lengths)), settings.minibatches)
        # Some are empty where few rollouts were scored.
        minibatches = [np.sort(rows) for rows in minibatches if batch.completion_mask[rows].any()]
        total = settings.epochs * len(minibatches)
        tell("updates", len(records), total)
        for minibatches_done, rows in enumerate(minibatches, start=1):
            minibatch = take_rows(batch, rows)
            stats = session.algorithm.update(session.backend, minibatch, session.update_at(rate))
            means_now = {name: total / count for name, (total, count) in stats.items()}
            if not math.isfinite(means_now["grad_norm"]):
                raise DivergedError(
                    f"step {step}, update {len(records)}: the gradient is not finite, and the update was not made; "
                    "start a new run from the last checkpoint (model.path = its folder policy/) with a lower "
                    "update.learning_rate"
                )
            records.append(means_now)
            if guard:
                guard.moved()
            tell("updates", len(records), total)
            if means_now.get("kl_old_k3", 0.0) > settings.kl_old_limit:
                return _mean_updates(records, epoch + minibatches_done / len(minibatches), settings)
    return _mean_updates(records, settings.epochs, settings)


def _mean_updates(records: Sequence[Mapping[str, float]], epochs: float, settings: UpdateSection) -> dict[str, float]:
    names = sorted({name for record in records for name in record})
    means = {name: float(np.mean([r[name] for r in records if name in r])) for name in names}
    means["grad_clipped"] = float(np.mean([r["grad_norm"] > settings.max_grad_norm for r in records]))
    return means | {"updates": float(len(records)), "epochs": float(epochs)}


def _evaluate(session: Session, heldout_set: HeldoutSet, file: Path) -> list[dict[str, Any]]:
    problems, terms, metric = heldout_set.problems, heldout_set.terms, session.task.metric
    records = evaluation.evaluate(session.backend, problems, terms, session.config, metric, session.environment)
    write_lines(file, evaluation.require_metric(records, metric, terms))
    return records


def _evaluate_before(session: Session, run: RunDir, state: State, watch: Watch) -> None:
    """Evaluate the untrained policy and the model-free rules, unless an earlier attempt did."""
    for heldout_set in session.heldout_sets:
        before = run.evaluation_file("before", heldout_set.name)
        if state.step == 0 and not before.is_file():
            watch.phase(f"{_evaluation_phase(heldout_set)} before training")
            _evaluate(session, heldout_set, before)
    rules = plugins.functions_of(session.task, "baselines")
    if rules and session.heldout and not run.evaluation_file("baselines").is_file():
        begin(f"scoring answers without a model to {counted(len(session.heldout), 'problem')}")
        records = evaluation.evaluate_rules(rules, session.heldout, session.terms, session.task.metric)
        write_lines(run.evaluation_file("baselines"), records)


def _evaluate_now(session: Session, run: RunDir, state: State, watch: Watch) -> dict[str, float]:
    """Evaluate the policy where it is due, and after the last step; the state then knows whether it is the best."""
    settings, step = session.config.evaluate, state.step
    if not settings.every or (step % settings.every and step < session.config.run.steps):
        return {}
    numbers: dict[str, float] = {}
    for heldout_set in session.heldout_sets:
        records = _evaluate(session, heldout_set, run.evaluation_file(f"{step:06d}", heldout_set.name))
        numbers |= evaluation.heldout_metrics(records, settings.deploy, heldout_set.name)
        if heldout_set.name:
            continue
        latest = evaluation.follow_best(state, records, settings.deploy)
        if line := evaluation.best_message(state, latest, settings.patience):
            watch.note(line)
    return numbers


def _evaluation_phase(heldout_set: HeldoutSet) -> str:
    name = heldout_set.name and f" of {heldout_set.name!r}"
    return f"evaluating on {counted(len(heldout_set.problems), 'held-out problem')}{name}"


def _token_look(session: Session, state: State) -> TokenLook | None:
    """Return what measures single tokens of the next step, or None where none are recorded in it."""
    interval = session.config.run.token_details_every
    if not interval or state.step % interval:
        return None
    return TokenLook(session.backend, with_knobs(session, state).sampling, session.algorithm.needs)


def _doctor(session: Session, run: RunDir, step: int) -> LiveDoctor | None:
    """Return the doctor that follows the run, with what is known from before ``step``; None where none is wanted."""
    interval = session.config.run.doctor_every
    if not interval:
        return None
    ends = Ends(run.rollouts_file(0).parent)
    doctor = LiveDoctor(dump(session.config), interval, format="steadyrl", completions=ends)
    doctor.remember(row for row in run.metrics() if row["step"] < step)
    return doctor
