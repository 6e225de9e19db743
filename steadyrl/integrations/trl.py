"""The doctor beside the trainers of TRL and transformers: ``trainer.add_callback(DoctorCallback())``.

It sees what the trainer logs, and measures what no log holds. As a callback alone: whether two passes of the model
over the same tokens agree, as ratios and KL estimates take for granted. With ``DoctorCallback().watch(trainer)``, which
hands it the batches of TRL's GRPO and RLOO trainers as well: the form of the answers, whose texts it reads; the mean
-log p of the sampled tokens against the exact entropy, which tells whether they were drawn from the policy that trains;
and, before the first update, the distance to the reference, which should be none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.core.errors import ConfigError, MissingExtraError
from steadyrl.core.rundir import append_line
from steadyrl.core.types import Finding
from steadyrl.doctor.live import Change, LiveDoctor, Seen
from steadyrl.doctor.series import Written

try:
    import torch
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise MissingExtraError(
        f"the package '{error.name}' is not installed but needed here; install it with: pip install 'steadyrl[torch]'"
    ) from error

log = logging.getLogger(__name__)

EVERY = 10  # logs between examinations
ROWS, LENGTH = 2, 16  # tokens of the two passes
PASS_GAP = 1e-3  # nats per token; two passes of one model without dropout differ by nothing, or by rounding (1e-6)
SAMPLED_EVERY, SAMPLED_ROWS = 2, 8  # steps between measurements on the trainer's batches, and rows of one
BATCH = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")  # of TRL's GRPO and RLOO, since v0.14
ROW = (*BATCH, "tool_mask", "ref_per_token_logps")
TEXTS = 64  # completions of a batch that are kept as text
CHUNK = 256  # tokens whose distributions are held at once
IMAGES = ("pixel_values", "image_grid_thw", "token_type_ids")  # a pass over tokens alone is not the trainer's there
LEVELS = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


class DoctorCallback(TrainerCallback):
    """Examines a run while it goes on, and says what it finds through ``logging``.

    It switches ``logging_nan_inf_filter`` off: with it, transformers logs an earlier mean instead of a NaN loss.

    Attributes:
        stop_on_critical: True ends the training after a critical finding.
        findings_file: Where changes are also appended as JSON lines; None for nowhere.
    """

    def __init__(self, every: int = EVERY, stop_on_critical: bool = False, findings_file: Path | str | None = None):
        self.stop_on_critical = stop_on_critical
        self.findings_file = None if findings_file is None else Path(findings_file)
        self._interval = every
        self._completions = Seen()
        self._doctor = LiveDoctor({}, every, format="trainer_state", completions=self._completions)
        self._at_start: tuple[Finding, ...] = ()
        self._sampled: list[tuple[float, float]] = []  # (mean -log p, exact entropy) since the last log
        self._measured_at: int | None = None

    def watch(self, trainer: Trainer) -> DoctorCallback:
        """Add the callback to a GRPO or RLOO trainer of TRL, measure on its batches what its log lacks, and return it.

        Every second step up to 8 completions of a batch are read once more, without gradients. Nothing in the
        trainer changes but its attribute ``compute_loss``, which then measures before it does what it did.

        Args:
            trainer: Before ``train``.

        Raises:
            ConfigError: It has no ``compute_loss``, such as TRL's PPO.
        """
        compute: Callable[..., Any] | None = getattr(trainer, "compute_loss", None)
        if compute is None:
            raise ConfigError(
                f"{type(trainer).__name__} has no compute_loss to measure at; expected TRL's GRPOTrainer or "
                "RLOOTrainer. Use trainer.add_callback(DoctorCallback()), which reads what it logs"
            )

        def compute_and_measure(model: torch.nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            due = self._measured_at is None or trainer.state.global_step >= self._measured_at + SAMPLED_EVERY
            if due and model.training and set(BATCH) <= set(inputs) and not set(IMAGES) & set(inputs):
                self._measure(
                    model, inputs, trainer.state.global_step, float(getattr(trainer.args, "temperature", 1.0))
                )
                if trainer.processing_class is not None:
                    self._completions.add(texts(trainer.processing_class, inputs, trainer.state.global_step))
            return compute(model, inputs, *args, **kwargs)

        trainer.compute_loss = compute_and_measure  # type: ignore[method-assign]  # of this trainer, not of its class
        trainer.add_callback(self)
        return self

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What holds now: what was measured at the start, then what the log shows, causes before consequences."""
        return (*self._at_start, *self._doctor.findings)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the settings, and the rows of a run that is resumed; measure what can be measured before training."""
        args.logging_nan_inf_filter = False
        settings = args.to_dict()  # type: ignore[no-untyped-call]  # transformers does not type it
        vocabulary = None if model is None else vocabulary_size(model)
        if vocabulary is not None:
            settings["vocab_size"] = vocabulary
        self._doctor = LiveDoctor(settings, self._interval, format="trainer_state", completions=self._completions)
        self._doctor.remember(row for row in state.log_history if "step" in row)
        # Sharded weights answer only when every process asks in step with the trainer; and what trains without
        # samples of its own, such as SFT, has no ratios that dropout could spoil.
        if model is not None and vocabulary is not None and args.world_size == 1 and "temperature" in settings:
            self._at_start = passes_agree(model, vocabulary)
            self._tell([Change(state.global_step, "raised", finding) for finding in self._at_start])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take in a row, examine where its turn has come, and stop where that was asked for."""
        changes = self._doctor.add(state.global_step, {**(logs or {}), **self._drain()})
        if state.is_world_process_zero:
            self._tell(changes)
        critical = any(change.state == "raised" and change.finding.severity == "critical" for change in changes)
        if critical and self.stop_on_critical:
            log.error("step %d: training stops, for a finding is critical", state.global_step)
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Examine what was logged since the last turn."""
        changes = self._doctor.look(state.global_step)
        if state.is_world_process_zero:
            self._tell(changes)

    def _measure(self, model: torch.nn.Module, inputs: Mapping[str, Any], step: int, temperature: float) -> None:
        is_first, self._measured_at = self._measured_at is None, step
        measurement = read_batch(model, inputs, temperature)
        if measurement is None:
            return
        self._sampled.append((measurement.sampled, measurement.exact))
        if is_first and step == 0 and measurement.reference is not None and measurement.reference > PASS_GAP:
            finding = _passes_differ(
                "reference",
                message=f"Policy and reference differ by {measurement.reference:.2g} nats/token before any update; "
                "they should be one model.",
                evidence=f"mean |log p - log ref| of sampled tokens: {measurement.reference:.3g} nats/token at step 0",
                remedy="Load both from the same weights in the same precision, without dropout, and with any adapter "
                "that was trained before in both: the KL penalty pulls towards another model otherwise.",
            )
            self._at_start = (*self._at_start, finding)
            self._tell([Change(step, "raised", finding)])

    def _drain(self) -> dict[str, float]:
        """Return what was measured since the last log.

        The exact entropy is that of the same tokens, in place of the trainer's own of all tokens, whose difference from
        the sampled one would be noise of the rows.
        """
        if not self._sampled:
            return {}
        sampled, exact = (sum(values) / len(self._sampled) for values in zip(*self._sampled, strict=True))
        self._sampled = []
        return {"entropy": exact, "entropy_sampled": sampled}

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            finding = change.finding
            if change.state == "cleared":
                log.info("step %d: %s (%s) no longer holds", change.step, finding.check, finding.cause)
            else:
                settings = f" Set {' '.join(finding.overrides)}" if finding.overrides else ""
                advice = f"{finding.message.rstrip('.')}. {finding.remedy}".rstrip() + settings
                log.log(LEVELS[finding.severity], "step %d: %s: %s", change.step, finding.check, advice)
            if self.findings_file is not None:
                append_line(self.findings_file, change.record())


def texts(tokenizer: Any, inputs: Mapping[str, torch.Tensor], step: int) -> list[Written]:
    """Return the first completions of a batch as text, with their prompts.

    Args:
        tokenizer: The trainer's ``processing_class``.
        inputs: Of ``compute_loss``: prompt_ids [B, P], completion_ids [B, T] and their masks.
        step: At which they train.
    """
    prompts, completions = (
        tokenizer.batch_decode(
            [
                ids[mask.bool()].tolist()
                for ids, mask in zip(inputs[f"{field}_ids"][:TEXTS], inputs[f"{field}_mask"][:TEXTS], strict=True)
            ],
            skip_special_tokens=True,
        )
        for field in ("prompt", "completion")
    )
    return [Written(step, *pair) for pair in zip(prompts, completions, strict=True)]


@dataclass(frozen=True)
class BatchReading:
    """What one pass over a batch of the trainer says, nats per token."""

    sampled: float  # mean -log p of the completions' tokens
    exact: float  # mean entropy of the distributions that they are compared with
    reference: float | None  # mean absolute difference of log-probs to the reference's; None where the batch has none


@torch.no_grad()
def read_batch(model: torch.nn.Module, inputs: Mapping[str, Any], temperature: float) -> BatchReading | None:
    """Read some completions of a batch as the trainer reads them, one after the other, for the sake of memory.

    Args:
        model: A causal language model.
        inputs: Of ``compute_loss``: prompt_ids [B, P], completion_ids [B, T] and their masks; ref_per_token_logps
            [B, T] where the trainer has a reference.
        temperature: By which the trainer divides logits.

    Returns:
        None where the rows have no token that counts.
    """
    count = len(inputs["completion_ids"])
    rows = sorted({round(i * (count - 1) / max(1, SAMPLED_ROWS - 1)) for i in range(SAMPLED_ROWS)})
    readings = [
        _read_row(model, {name: inputs[name][row] for name in ROW if name in inputs}, temperature) for row in rows
    ]
    sampled, exact, gap = (torch.cat(numbers) for numbers in zip(*readings, strict=True))  # [tokens that count]
    if not len(sampled):
        return None
    return BatchReading(float(sampled.mean()), float(exact.mean()), float(gap.mean()) if len(gap) else None)


def _read_row(
    model: torch.nn.Module, row: Mapping[str, torch.Tensor], temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return -log p, entropy and distance to the reference of a completion's tokens that count."""
    ids, mask = (torch.cat([row[f"prompt_{name}"], row[f"completion_{name}"]])[None] for name in ("ids", "mask"))
    first, counts = len(row["prompt_ids"]), row["completion_mask"].bool()
    counts = counts & row["tool_mask"].bool() if "tool_mask" in row else counts
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0, first - 1 : -1][counts]  # [C, V]
    tokens = row["completion_ids"][counts]  # [C]
    sampled, exact = [], []
    for chunk, chunk_tokens in zip(torch.split(logits, CHUNK), torch.split(tokens, CHUNK), strict=True):
        logprobs = (chunk.float() / temperature).log_softmax(-1)
        sampled.append(-logprobs.gather(-1, chunk_tokens[:, None])[:, 0])
        exact.append(-(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1))  # 0 log 0 = 0
    nothing = logits.new_zeros(0)
    minus_logp = torch.cat([*sampled, nothing])
    ref_logprobs = row.get("ref_per_token_logps")
    gap = nothing if ref_logprobs is None else (minus_logp + ref_logprobs[counts]).abs()
    return minus_logp, torch.cat([*exact, nothing]), gap


def _passes_differ(cause: str, message: str, evidence: str, remedy: str) -> Finding:
    """Return the finding of two passes that should agree before any update."""
    return Finding(
        check="passes_differ",
        severity="warning",
        since_step=0,
        cause=cause,
        message=message,
        evidence=(evidence,),
        remedy=remedy,
        source="N Implementation Details of RLHF: with equal weights the first ratio is exactly 1, the first KL 0",
    )


def vocabulary_size(model: torch.nn.Module) -> int | None:
    """Return the tokens that a causal language model chooses from, or None for another model."""
    config = getattr(model, "config", None)  # any module may be trained; only those of transformers have one
    size = getattr(config, "vocab_size", None)
    return size if isinstance(size, int) and not getattr(config, "is_encoder_decoder", False) else None


@torch.no_grad()
def passes_agree(model: torch.nn.Module, vocabulary: int) -> tuple[Finding, ...]:
    """Return a finding where two passes over the same tokens, as the trainer makes them, differ in log-probs.

    The model and the generators of random numbers are left as they were.
    """
    device = next(model.parameters()).device
    tokens = torch.arange(ROWS * LENGTH, device=device).reshape(ROWS, LENGTH) % vocabulary  # [ROWS, LENGTH]
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model.train()
        first, second = (
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits.float()
            for _ in range(2)
        )
    for module, training in modes.items():
        module.training = training
    gap = float((first.log_softmax(-1) - second.log_softmax(-1)).abs().mean())
    if gap <= PASS_GAP:
        return ()
    finding = _passes_differ(
        "dropout",
        message=f"Two passes over the same tokens differ by {gap:.2g} nats/token before any update: dropout is on.",
        evidence=f"mean |log p - log p| of two passes in training mode: {gap:.3g} nats/token, no update between",
        remedy="Switch dropout off (TRL: disable_dropout=True): ratios and KL estimates compare two passes, and this "
        "difference goes into them as noise.",
    )
    return (finding,)
