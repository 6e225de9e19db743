"""The faults: what goes wrong, from which step on, and in which algorithms it can."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import wrappers
from settings import Change, Data, put, scaled

from steadyrl.algorithms import grpo
from steadyrl.core.types import Score
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import Session

Record = dict[str, Any]
BOTH = ("ppo", "grpo")


@dataclass(frozen=True)
class Scene:
    """What a fault may look at when it breaks out.

    Attributes:
        session: As it was so far.
        state: The run's numbers; may be changed.
        seen: Metrics of the steps before.
        generator: Of the run and the fault.
    """

    session: Session
    state: State
    seen: Sequence[Record]
    generator: np.random.Generator

    def typical(self, name: str) -> float:
        """Return the median of a metric so far."""
        return float(np.median([record[name] for record in self.seen if record.get(name) is not None]))


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        meaning: What is wrong, in a line of the report.
        onset: The first sick step.
        algorithms: Those in which it is a fault at all.
        settings: Changes the settings of the whole run; for faults from the start.
        strike: Makes the session that goes on from the onset.
        record: Changes what the log shows from the onset on.
    """

    meaning: str
    onset: int = 0
    algorithms: tuple[str, ...] = BOTH
    settings: Change = lambda data: data
    strike: Callable[[Scene], Session] = lambda scene: scene.session
    record: Callable[[Record], Record] = lambda record: record


def setting(**values: Any) -> Change:
    """Return a change of several settings; "__" stands for the dot."""

    def change(data: Data) -> Data:
        for key, value in values.items():
            data = put(data, key.replace("__", "."), value)
        return data

    return change


def times(key: str, factor: float) -> Change:
    """Return a change that multiplies one setting."""
    return lambda data: scaled(data, key, factor)


def backend(make: Callable[[Any, int], Any]) -> Callable[[Scene], Session]:
    """Return a strike that replaces the backend by ``make(backend, seed)``."""

    def strike(scene: Scene) -> Session:
        return replace(scene.session, backend=make(scene.session.backend, scene.session.config.run.seed))

    return strike


def scores(make: Callable[[Scene], Callable[[Score], Score]]) -> Callable[[Scene], Session]:
    """Return a strike that changes the scores of the weightiest reward."""

    def strike(scene: Scene) -> Session:
        return replace(scene.session, terms=wrappers.changed_scores(scene.session.terms, make(scene)))

    return strike


def value_map(change: Callable[[Scene, float], float | None]) -> Callable[[Scene], Session]:
    """Return a strike that maps the value of every score; None leaves the rollout unscored."""

    def make(scene: Scene) -> Callable[[Score], Score]:
        def changed(score: Score) -> Score:
            if score.value is None:
                return score
            value = change(scene, score.value)
            return replace(score, value=value, unscored="the judge gave no verdict" if value is None else None)

        return changed

    return scores(make)


def _pad_leak(scene: Scene) -> Session:
    algorithm, pad_id = scene.session.algorithm, scene.session.backend.tokenizer.pad_id
    leaking = replace(algorithm, select=lambda groups: wrappers.with_padding(algorithm.select(groups), pad_id))
    return replace(scene.session, algorithm=leaking)


def _no_penalty(scene: Scene) -> Session:
    session = scene.session
    if "kl_coef" in scene.state.algorithm:
        scene.state.algorithm["kl_coef"] = 0.0
        return session
    free = grpo.build(session.config.algorithm.args.model_copy(update={"kl_coef": 0.0}))
    return replace(session, algorithm=replace(free, needs=session.algorithm.needs))  # the KL is measured on


def _rate(factor: float) -> Callable[[Scene], Session]:
    def strike(scene: Scene) -> Session:
        config = scene.session.config
        update = config.update.model_copy(update={"learning_rate": config.update.learning_rate * factor})
        return replace(scene.session, config=config.model_copy(update={"update": update}))

    return strike


def _noise(scene: Scene, value: float) -> float:
    return value + 5.0 * scene.typical("reward/std") * float(scene.generator.standard_normal())


def _outlier(scene: Scene, value: float) -> float:
    return 1000.0 * max(abs(value), scene.typical("reward/std")) if scene.generator.random() < 0.01 else value


def _garbage(scene: Scene, value: float) -> float:
    return float(scene.generator.random()) if scene.generator.random() < 0.5 else value


def _unscored(scene: Scene, value: float) -> float | None:
    return None if scene.generator.random() < 0.6 else value


def _constant(scene: Scene) -> Session:
    def equal(pairs: Sequence[Any]) -> list[Score]:
        return [Score(0.5) for _ in pairs]

    terms = [replace(term, reward=equal) if term.weight else term for term in scene.session.terms]
    return replace(scene.session, terms=terms)


def _hit(ids: np.ndarray) -> bool:
    """Return True for 4 of 5 prompts, always the same ones."""
    return zlib.crc32(ids.tobytes()) % 5 != 0


def _unparsed(inner: Any, seed: int) -> wrappers.Altered:
    tokenizer = wrappers.Stripping(inner.tokenizer, lambda ids: zlib.crc32(ids.tobytes()) % 10 < 7)
    return wrappers.Altered(inner, tokenizer=tokenizer)


def _only_length(data: Data) -> Data:
    return {**put(data, "algorithm.args.kl_coef", 0.0 if data["algorithm"]["name"] == "grpo" else 0.005)} | {
        "rewards": {"length": 1.0}
    }


def _not_finite(*prefixes: str) -> Callable[[Record], Record]:
    return lambda record: {k: float("nan") if k.startswith(prefixes) else v for k, v in record.items()}


def _idle_part(data: Data) -> Data:
    return {**data, "rewards": {**data["rewards"], "scores:never": 0.5}}


_ADAPTIVE = {"algorithm__args__kl_control": "adaptive"}

FAULTS: Mapping[str, Fault] = {
    "warped_temperature": Fault(
        "sampling at temperature 0.7, log-probs of the plain softmax",
        settings=setting(sampling__logprobs="raw", sampling__temperature=0.7),
    ),
    "warped_top_p": Fault(
        "sampling with top-p 0.8, log-probs of the whole softmax",
        settings=setting(sampling__logprobs="raw", sampling__temperature=1.0, sampling__top_p=0.8),
    ),
    "pad_leak": Fault("padding after the end counts as completion tokens", strike=_pad_leak),
    "reference_dropout": Fault(
        "dropout 0.1 left on in the reference", strike=backend(lambda b, seed: wrappers.dropout_in_reference(b))
    ),
    "policy_dropout": Fault(
        "dropout 0.1 left on in the policy's passes, not in the sampler",
        strike=backend(lambda b, seed: wrappers.dropout_in_policy(b)),
    ),
    "reference_other": Fault(
        "the reference is another checkpoint", strike=backend(lambda b, seed: wrappers.other_reference(b, 0.15, seed))
    ),
    "kl_coef_zero": Fault(
        "the KL penalty is switched off",
        onset=15,
        settings=times("update.learning_rate", 3.0),
        strike=_no_penalty,
    ),
    "lr_x10": Fault("learning rate 10 times too high", settings=times("update.learning_rate", 10.0)),
    "lr_x100": Fault("learning rate 100 times too high", onset=20, strike=_rate(100.0)),
    "lr_div100": Fault("learning rate 100 times too low", settings=times("update.learning_rate", 0.01)),
    "no_update": Fault("learning rate 0", settings=times("update.learning_rate", 0.0)),
    "epochs_8": Fault(
        "eight passes over every batch, without a limit to the KL",
        settings=lambda data: scaled(
            setting(update__epochs=8, update__kl_old_limit=1000.0)(data), "update.learning_rate", 3.0
        ),
    ),
    "reward_offset": Fault(
        "20 is added to every reward", onset=20, algorithms=("ppo",), strike=value_map(lambda scene, x: x + 20.0)
    ),
    "reward_noise": Fault("noise of 5 standard deviations on every reward", onset=20, strike=value_map(_noise)),
    "reward_outliers": Fault("one reward in a hundred is 1000 times too high", onset=20, strike=value_map(_outlier)),
    "value_head_reset": Fault(
        "the value head loses its weights",
        onset=30,
        algorithms=("ppo",),
        strike=backend(wrappers.reset_value_head),
    ),
    "overflow_gradient": Fault(
        "gradients overflow, and the scaler skips the updates",
        onset=25,
        strike=backend(lambda b, seed: wrappers.skipping_updates(b)),
        record=lambda record: {**record, "grad_norm": float("inf")},
    ),
    "overflow_logprobs": Fault(
        "log-probs underflow: NaN in all that is made of them",
        onset=25,
        strike=backend(lambda b, seed: wrappers.skipping_updates(b)),
        record=_not_finite("entropy", "kl_", "loss/", "grad_norm", "advantage/", "return/", "value/"),
    ),
    "empty_template": Fault(
        "the template makes the engine stop at the first token of 4 prompts in 5",
        strike=backend(lambda b, seed: wrappers.first_token_only(b, _hit)),
    ),
    "empty_parser": Fault("the answers of 7 completions in 10 are not found", onset=25, strike=backend(_unparsed)),
    "stale_sampler": Fault(
        "the sampler's weights are 8 steps old",
        onset=10,
        strike=backend(lambda b, seed: wrappers.stale_sampler(b, 8)),
    ),
    "constant_reward": Fault("every completion gets the same reward", onset=20, strike=_constant),
    "judge_garbage": Fault("half of the rewards are random", onset=20, strike=value_map(_garbage)),
    "judge_silent": Fault("60 % of the completions get no reward", onset=20, strike=value_map(_unscored)),
    "length_exploited": Fault("only shortness is rewarded", settings=_only_length),
    "controller_slow": Fault(
        "an adaptive KL controller that needs more steps to double than the run has",
        algorithms=("ppo",),
        settings=lambda data: scaled(
            setting(**_ADAPTIVE, algorithm__args__kl_coef=0.002, algorithm__args__kl_target=0.3,
                    algorithm__args__kl_horizon=10_000.0)(data), "update.learning_rate", 2.0
        ),
    ),
    "unit_clash": Fault(
        "the KL's target is meant per token and compared with sums per sequence",
        algorithms=("ppo",),
        settings=setting(
            **_ADAPTIVE, algorithm__args__kl_coef=0.01, algorithm__args__kl_target=0.1, algorithm__args__kl_horizon=20.0
        ),
    ),
    "entropy_bonus": Fault(
        "an entropy bonus 100 times too high", algorithms=("ppo",), settings=setting(algorithm__args__entropy_coef=0.5)
    ),
}  # fmt: skip

# Faults that only the fresh part has.
NEW: Mapping[str, Fault] = {
    "warped_hot": Fault(
        "sampling at temperature 1.5, log-probs of the plain softmax",
        settings=setting(sampling__logprobs="raw", sampling__temperature=1.5),
    ),
    "cut_off": Fault("completions may have three tokens", settings=setting(sampling__max_new_tokens=3)),
    "part_never_pays": Fault("a part of the reward asks for a form that no answer has", settings=_idle_part),
}
FRESH = (("letters", "ppo"), ("bits", "grpo"), ("letters", "grpo"), ("bits", "ppo"))
FRESH_SEED = 20
EVERY: Mapping[str, Fault] = {**FAULTS, **NEW}

# Whose settings a seed takes: (task, algorithm), where the fault can occur in both algorithms and in PPO only.
PLACES = {
    BOTH: (
        ("stdlib", "ppo"), ("format", "grpo"),
        ("generated", "ppo"), ("generated", "grpo"), ("words", "ppo"),
        ("operators", "ppo"), ("retrieval", "grpo"),
    ),
    ("ppo",): (
        ("stdlib", "ppo"), ("format", "ppo"),
        ("generated", "ppo"), ("words", "ppo"), ("words", "ppo"),
        ("operators", "ppo"), ("retrieval", "ppo"),
    ),
}  # fmt: skip
