"""The doctor beside the trainers of TRL and transformers: ``trainer.add_callback(DoctorCallback())``.

It sees what the trainer logs, and measures one thing that no log holds: whether two passes of the model over the same
tokens agree, as ratios and KL estimates take for granted. What a callback cannot see it does not guess: the sampled
tokens and their log-probs (mean -log p against exact entropy) and the reference model stay inside the trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyrl.doctor.live import Change, LiveDoctor
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.errors import MissingExtraError
from steadyrl.rundir import append_line
from steadyrl.types import Finding

try:
    import torch
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise MissingExtraError(
        f"the package '{error.name}' is not installed but needed here; install it with: pip install 'steadyrl[torch]'"
    ) from error

log = logging.getLogger(__name__)

EVERY = 10  # logs between examinations
ROWS, LENGTH = 2, 16  # tokens of the two passes
PASS_GAP = 1e-3  # nats per token; two passes of one model without dropout differ by nothing, or by rounding (1e-6)
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
        self._every = every
        self._doctor = LiveDoctor({}, every, format="trainer_state")
        self._at_start: tuple[Finding, ...] = ()

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
        settings = flat_settings(args.to_dict())  # type: ignore[no-untyped-call]  # transformers does not type it
        vocabulary = None if model is None else vocabulary_size(model)
        if vocabulary is not None:
            settings["vocab_size"] = vocabulary
        self._doctor = LiveDoctor(settings, self._every, format="trainer_state")
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
        changes = self._doctor.add(state.global_step, logs or {})
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

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            found = change.finding
            if change.state == "cleared":
                log.info("step %d: %s (%s) no longer holds", change.step, found.check, found.cause)
            else:
                log.log(
                    LEVELS[found.severity], "step %d: %s: %s %s", change.step, found.check, found.message, found.remedy
                )
            if self.findings_file is not None:
                append_line(self.findings_file, change.record())


def vocabulary_size(model: torch.nn.Module) -> int | None:
    """Return the tokens that a causal language model chooses from, or None for another model."""
    config = getattr(model, "config", None)  # any module may be trained; only those of transformers have one
    size = getattr(config, "vocab_size", None)
    return size if isinstance(size, int) and not getattr(config, "is_encoder_decoder", False) else None


@torch.no_grad()
def passes_agree(model: torch.nn.Module, vocabulary: int) -> tuple[Finding, ...]:
    """Measure whether two passes over the same tokens, as the trainer makes them, give the same log-probs.

    The model and the generators of random numbers are left as they were.

    Args:
        model: A causal language model on one device.
        vocabulary: Its number of tokens.

    Returns:
        One finding where they differ, else none.
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
    return (
        Finding(
            check="passes_differ",
            severity="warning",
            since_step=0,
            cause="dropout",
            message=f"Two passes over the same tokens differ by {gap:.2g} nats/token before any update: dropout is on.",
            evidence=(f"mean |log p - log p| of two passes in training mode: {gap:.3g} nats/token, no update between",),
            remedy="Switch dropout off (TRL: disable_dropout=True): ratios and KL estimates compare two passes, and "
            "this difference goes into them as noise.",
            source="N Implementation Details of RLHF: with equal weights the first ratio is exactly 1, the first KL 0",
        ),
    )
