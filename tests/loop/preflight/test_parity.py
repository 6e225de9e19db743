"""Sampler, trainer and reference: each fault is put into a real backend, and must be told by its cause."""

import json
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.loop.preflight.parity import reference_parity, sampled_entropy, sampler_parity
from steadyrl.loop.preflight.trial import begin_trial

NARROW = ("sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.top_k=20")


class Peaked(ToyBackend):
    """The toy backend with next-token distributions far from uniform, so that warping them shows."""

    def __init__(self, seed=0):
        super().__init__(seed)
        table = self.parameters["logits"]
        table[:, : self.tokenizer.pad_id] *= 20  # standard deviation 2
        self._reference = table.copy()


@pytest.fixture
def trial(toy, tmp_path):
    """Return a function that begins a trial of a backend, on prompts of several lengths."""
    prompts = tmp_path / "ragged.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "ab" * (1 + i) + "c"}) + "\n" for i in range(20)))

    def begin(backend, *overrides):
        ragged = f"task.args.path={json.dumps(str(prompts))}"
        session = toy(ragged, "rollout.prompts_per_step=64", "sampling.max_new_tokens=12", *overrides)
        return begin_trial(replace(session, backend=backend))

    return begin


def causes(trial):
    """Return the cause by name of what failed."""
    looks = (sampler_parity, sampled_entropy, reference_parity)
    return {v.check: v.cause for look in looks for v in look(trial) if v.state != "ok"}


@pytest.mark.parametrize("overrides", [(), NARROW, ("sampling.temperature=2.0",)])
def test_a_sound_backend_passes(trial, overrides):
    assert causes(trial(Peaked(), *overrides)) == {}


def test_a_policy_that_is_almost_sure_passes(trial):
    """Its few tokens are all the likeliest: -log p has no variance in them, and is below the entropy."""
    backend = Peaked()
    backend.parameters["logits"][:, : backend.tokenizer.pad_id] = 0.0
    backend.parameters["logits"][:, 0] = 12.0  # "a" with probability 0.9998
    backend._reference = backend.parameters["logits"].copy()
    assert causes(trial(backend)) == {}


def test_log_probs_that_leave_out_the_warp_on_purpose_are_flagged(trial):
    found = trial(Peaked(), *NARROW, "sampling.logprobs=raw")
    assert causes(found) == {"sampler_parity": "raw_logprobs", "sampled_entropy": "raw_logprobs"}
    assert sampler_parity(found)[0].overrides == ("sampling.logprobs=sampled",)


def test_raw_log_probs_without_a_warp_are_no_mismatch(trial):
    assert causes(trial(Peaked(), "sampling.logprobs=raw")) == {}


class DrawsSharper(Peaked):
    """Draws at temperature 0.5 and reports the log-probs of that."""

    def generate(self, prompts, sampling, seeds):
        return super().generate(prompts, replace(sampling, temperature=0.5), seeds)


def test_another_temperature_of_the_sampler_is_found(trial):
    found = trial(DrawsSharper())
    assert causes(found) == {"sampler_parity": "warp", "sampled_entropy": "warp"}
    (verdict,) = sampler_parity(found)
    assert "at temperature 0.50 in place of 1" in verdict.message
    assert verdict.overrides == ("sampling.temperature=0.50",)


class DrawsSharperInSecret(Peaked):
    """Draws at temperature 0.5 and reports what the trainer would: only the entropy tells."""

    def generate(self, prompts, sampling, seeds):
        drawn = super().generate(prompts, replace(sampling, temperature=0.5), seeds)
        return [replace(c, logprobs=self._reported(p, c)) for p, c in zip(prompts, drawn, strict=True)]

    def _reported(self, prompt, completion):
        before = np.concatenate([prompt[-1:], completion.ids[:-1]])
        logits = self.parameters["logits"][before]
        logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logp[np.arange(len(before)), completion.ids].astype(np.float32)


def test_warped_sampling_with_log_probs_that_agree_is_told_by_the_entropy(trial):
    found = trial(DrawsSharperInSecret())
    assert causes(found) == {"sampled_entropy": "warp"}
    message = sampled_entropy(found)[0].message
    assert "sharper" in message
    fitting = float(message.partition("they fit temperature ")[2].partition(",")[0])
    assert fitting == pytest.approx(0.5, abs=0.06)


class ReportsUnwarped(Peaked):
    def generate(self, prompts, sampling, seeds):
        return super().generate(prompts, replace(sampling, logprobs="raw"), seeds)


class ScoresUnwarped(Peaked):
    def score(self, batch, sampling, needs):
        return super().score(batch, replace(sampling, logprobs="raw"), needs)


@pytest.mark.parametrize(
    ("backend", "words"),
    [(ReportsUnwarped, "the sampler reports log-probs from before the"), (ScoresUnwarped, "it ignores them")],
)
def test_a_warp_on_one_side_only_is_told_with_its_side(trial, backend, words):
    (verdict,) = sampler_parity(trial(backend(), *NARROW))
    assert (verdict.state, verdict.cause) == ("found", "warp")
    assert words in verdict.message
    assert verdict.overrides == ("sampling.temperature=1.0", "sampling.top_p=1.0", "sampling.top_k=0")


class Scores(Peaked):
    """Scores with something added to the log-probs."""

    def __init__(self, added):
        super().__init__()
        self._added = added

    def score(self, batch, sampling, needs):
        scores = super().score(batch, sampling, needs)
        return replace(scores, logprobs=scores.logprobs + np.where(batch.completion_mask, self._added(batch), 0.0))


class Draws(Peaked):
    """Reports log-probs with something added."""

    def __init__(self, added):
        super().__init__()
        self._added = added

    def generate(self, prompts, sampling, seeds):
        widest = max(map(len, prompts))
        drawn = super().generate(prompts, sampling, seeds)
        return [
            replace(c, logprobs=c.logprobs + self._added(widest - len(p), len(c.ids)).astype(np.float32))
            for p, c in zip(prompts, drawn, strict=True)
        ]


def off_in_padded_rows(batch):
    return np.where(batch.lengths < batch.lengths.max(), 0.3, 0.0)[:, None] * np.sin(batch.tokens)


def grows(batch):
    return 0.004 * np.arange(batch.tokens.shape[1]) * np.sin(batch.tokens)


def shifts_tokens(batch):
    return 0.5 * np.sin(3.0 * batch.tokens)


NOISE = np.random.default_rng(0)

FAULTS = {
    "trainer: constant": (Scores(lambda batch: 0.1), "warp", "constant offset of +0.1"),
    "trainer: padding": (Scores(off_in_padded_rows), "padding", "in the trainer"),
    "trainer: dropout": (Scores(lambda b: NOISE.normal(0, 0.1, b.tokens.shape)), "dropout", "between two scorings"),
    "trainer: precision": (Scores(grows), "precision", "more before them"),
    "trainer: other weights": (Scores(shifts_tokens), "weights", "other weights"),
    "trainer: not finite": (Scores(lambda batch: np.nan), "not_finite", "not finite"),
    "sampler: padding": (Draws(lambda pad, n: np.full(n, 0.03 * pad)), "padding", "in the sampler"),
    "sampler: dropout": (Draws(lambda pad, n: NOISE.normal(0, 0.1, n)), "dropout", "drawn again"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_gap_between_sampler_and_trainer_is_told_by_its_cause(trial, name):
    backend, cause, words = FAULTS[name]
    (verdict,) = sampler_parity(trial(backend))
    assert (verdict.state, verdict.cause) == ("found", cause)
    assert words in verdict.message
    assert verdict.remedy


def test_stale_weights_of_the_sampler_are_told(trial):
    class Stale(Peaked):
        def generate(self, prompts, sampling, seeds):
            return Peaked(5).generate(prompts, sampling, seeds)

    assert causes(trial(Stale()))["sampler_parity"] == "weights"


def test_another_model_as_reference_is_told(trial):
    backend = Peaked()
    backend._reference = backend._reference + 0.05 * np.sin(np.arange(backend._reference.size)).reshape(
        backend._reference.shape
    )
    assert causes(trial(backend)) == {"reference_parity": "weights"}


class Reference(Peaked):
    """Reports something else for the reference."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def score(self, batch, sampling, needs):
        scores = super().score(batch, sampling, needs)
        plain = super().score(batch, replace(sampling, logprobs="raw"), needs)
        return replace(scores, ref_logprobs=self._change(scores.ref_logprobs, plain.ref_logprobs))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda ref, plain: plain, "warp"),
        (lambda ref, plain: ref + NOISE.normal(0, 0.05, ref.shape), "dropout"),
        (lambda ref, plain: ref * np.inf, "not_finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_reference_that_is_scored_otherwise_is_told_by_its_cause(trial, change, cause):
    assert causes(trial(Reference(change), *NARROW)) == {"reference_parity": cause}


def test_without_a_reference_there_is_nothing_to_tell(trial):
    (verdict,) = reference_parity(trial(Peaked(), "algorithm.name=grpo", "algorithm.args.kl_coef=0.0"))
    assert (verdict.state, verdict.message) == ("unknown", "the algorithm uses no reference")


@pytest.mark.parametrize(("precision", "found"), [("bf16", None), ("fp32", "precision"), ("unheard of", "precision")])
def test_the_tolerance_is_that_of_the_precision_the_backend_computes_in(trial, precision, found):
    class Rounded(Scores):
        def describe(self):
            return {**super().describe(), "precision": precision}

    rounding = Rounded(lambda batch: 0.01 * np.sin(batch.tokens))
    assert causes(trial(rounding)).get("sampler_parity") == found
