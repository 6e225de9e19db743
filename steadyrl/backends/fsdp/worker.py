"""What one rank does: the work of the backend ``torch`` on its share of the rows, with its share of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from steadyrl.backends.fsdp import state
from steadyrl.backends.fsdp.ranks import Ranks
from steadyrl.backends.fsdp.rows import contiguous, passes, shortest
from steadyrl.backends.fsdp.settings import FsdpSettings
from steadyrl.backends.fsdp.shard import Root, Sharding, gathered
from steadyrl.backends.huggingface import portable
from steadyrl.backends.settings import MICRO_BATCH_TOKENS
from steadyrl.backends.step import Measured, Objective, Reading, accumulate
from steadyrl.backends.torch.backend import Scores, TorchBackend
from steadyrl.backends.torch.device import lower_precision
from steadyrl.backends.torch.masters import cosine_of, numbers_of, products_with_momentum
from steadyrl.backends.torch.read.reader import Reader
from steadyrl.backends.torch.save import probe
from steadyrl.core.config import Config
from steadyrl.core.errors import ModelError
from steadyrl.core.protocols import Algorithm, Stats, Update
from steadyrl.core.types import Batch, Completion, Sampling, TokenScores
from steadyrl.maths.batch import loss_stats, take_rows


class Worker:
    """The methods of Backend, called on all ranks with the same arguments; each returns the same on all of them."""

    def __init__(self, config: Config, algorithm: Algorithm, ranks: Ranks):
        settings: FsdpSettings = config.backend.args
        self._ranks, self._config = ranks, config
        device = _device(config.backend.device, ranks.place.local_rank)
        weights, self._object_group = ranks.groups(device.type, settings.timeout_s)
        with ranks.one_after_another():  # a machine then holds one whole model at a time
            self.backend = TorchBackend(_unsharded_config(config, device), algorithm)
            self._description: dict[str, Any] = self.backend.describe()
            with self.backend.frozen() as model:  # once shared out, it could only be read by all ranks together
                self._reference_probe = probe.make(model) if ranks.place.rank == 0 and model is not None else None
            self._share_out(DeviceMesh.from_group(weights, device.type))
            self.backend.device = device
            self.backend.reads_once = False  # the update reads by a Reader of its own, and no graph waits for it
            self.backend.begin_training(config.update.weight_decay)
        self._root(lambda: None)  # FSDP takes the first module that is called for the root, and leaves it gathered
        with gathered(self._roots):
            pass
        state.fill(self.backend.optimizer)

    def _share_out(self, mesh: DeviceMesh) -> None:
        args, model, reference = self._config.backend.args, self.backend.model, self.backend.reference
        self._root = Root(model, self.backend.value_head)
        lower = torch.bfloat16 if self._description["precision"] == "bf16" else None
        self._read = Reader(model, self.backend.split, lower, args.gradient_checkpointing, args.activation_offload)
        sharding = Sharding(mesh, torch.bfloat16 if args.weights == "bf16" else None, args.cpu_offload)
        sharding.of_policy(self._root, model.get_base_model() if self._config.model.lora_rank else model)
        self._roots: list[nn.Module] = [self._root]
        if reference is not None:
            sharding.of_reference(reference.model)
            self._roots.append(reference.model)

    def describe(self) -> dict[str, object]:
        """See Backend."""
        ranks, total_memory = self._ranks.place.ranks, self._description["memory"]
        memory = {name: size / ranks for name, size in total_memory.items()}
        device, exact = self.backend.device, self.backend.device.type == "cpu"
        return {**self._description, "device": str(device), "deterministic": exact, "ranks": ranks, "memory": memory}

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend; a row's seed is its own, whichever rank samples it."""
        rows = self._local(contiguous(len(prompts), self._ranks.place.ranks))
        with gathered(self._roots[:1]):
            local = self.backend.generate([prompts[i] for i in rows], sampling, [seeds[i] for i in rows])
        return [completion for completions in self._ranks.all_gather(local) for completion in completions]

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""
        shares = contiguous(len(batch.lengths), self._ranks.place.ranks)
        local_rows, local_scores = self._local(shares), Scores()
        with self.backend.working(), gathered(self._roots):
            if batch.completion_mask[local_rows].any():
                local_scores = self.backend.measure(take_rows(batch, local_rows), sampling, needs)
        measured: Scores = {}
        for rows, scores in zip(shares, self._ranks.all_gather(local_scores), strict=True):
            for name, values in scores.items():  # [rows, T of the rank]
                measured.setdefault(name, np.zeros(batch.tokens.shape))[rows, : values.shape[1]] = values
        return TokenScores(**measured)

    def step(self, batch: Batch, update: Update) -> Stats:
        """See Backend."""
        self.backend.optimizer.zero_grad()
        try:
            with self.backend.working():
                local_sums = self._accumulate(batch, update)
        except (torch.OutOfMemoryError, MemoryError) as error:  # the others are in the middle of it: no second try
            tokens = self._config.backend.args.micro_batch_tokens or MICRO_BATCH_TOKENS
            raise ModelError(
                f"memory ran out in an update with backend.args.micro_batch_tokens = {tokens}; resume with half as "
                "many, or with backend.args.gradient_checkpointing=true"
            ) from error
        sums_by_rank = self._ranks.all_gather(local_sums)
        stats = loss_stats(batch, {name: sum(totals[name] for totals in sums_by_rank) for name in local_sums})
        scaled: Any = nn.utils.clip_grad_norm_(list(self.backend.trainable().values()), update.max_grad_norm)
        norm = float(scaled.full_tensor())  # over all ranks, before it was scaled down
        if math.isfinite(norm):  # otherwise the weights stay as they are, and the loop stops
            self.backend.set_rate(update.learning_rate)
            products = products_with_momentum(self.backend.trainable().values(), self.backend.optimizer)
            stats |= cosine_of(list(map(sum, zip(*self._ranks.all_gather(products), strict=True))))
            self.backend.optimizer.step()
        return stats | {"grad_norm": (norm, 1.0)}

    def _accumulate(self, batch: Batch, update: Update) -> dict[str, float]:
        """Add up the gradients of all passes; return the sums of what the loss measured on this rank's rows."""

        def read(micro_batch: Batch) -> Reading:
            logprobs, entropy, values = self._root(lambda: self._scores(micro_batch, update))
            return torch, TokenScores(logprobs, entropy, values), self.backend.arrays(micro_batch)

        tokens = self._config.backend.args.micro_batch_tokens or MICRO_BATCH_TOKENS
        rank_passes = passes(batch, self._ranks.place.ranks, tokens)[self._ranks.place.rank]
        own_passes = [rows for rows in rank_passes if rows is not None]
        idle = [shortest(batch)] * (len(rank_passes) - len(own_passes))
        sums = accumulate(batch, own_passes, update.loss, read, partial(_backward, 1.0), numbers_of)
        return accumulate(batch, idle, update.loss, read, partial(_backward, 0.0), numbers_of) | sums

    def _scores(self, micro_batch: Batch, update: Update) -> tuple[torch.Tensor | None, ...]:
        new = self.backend.new_scores(self._read(micro_batch), micro_batch, update)
        scores = new.logprobs, new.entropy, new.values
        # FSDP warns of every view of a tensor.
        return tuple(None if score is None else score.clone() for score in scores)

    def save(self, folder: Path) -> None:
        """See Backend."""
        state.save(folder, self.backend, self._object_group)
        with gathered(self._roots[:1]):
            if self._ranks.place.rank == 0:
                state.save_policy(folder, self.backend, adapter=self._config.model.lora_rank > 0)
        portable.write_probe(folder / portable.REFERENCE, self._reference_probe)

    def load(self, folder: Path) -> None:
        """See Backend."""
        state.load(folder, self.backend, self._object_group)

    def check_reference(self, folder: Path) -> None:
        """See Referring; on rank 0 alone."""
        if (reference_probe := self._reference_probe) is None:
            return

        def recalled(ids: np.ndarray) -> np.ndarray:
            """Return the log-probs of its own tokens; infinite ones for others, which another model has."""
            is_probe = ids.tolist() == reference_probe["tokens"]
            return np.array(reference_probe["logprobs"]) if is_probe else np.full(len(ids) - 1, np.inf)

        portable.check_reference(folder, self._config.model.path, recalled, reference_probe["precision"])

    def _local(self, shares: Sequence[np.ndarray]) -> np.ndarray:
        return shares[self._ranks.place.rank]


def _backward(share: float, objective: Objective) -> Measured:
    """Add a share of the objective's gradient: none where a rank only takes part in the others' pass."""
    value, sums = objective()
    (share * value).backward()
    return share * value, {name: share * scalar for name, scalar in sums.items()}


def _device(name: str, local_rank: int) -> torch.device:
    """Return the device of this rank: of GPUs the one with its number on this machine."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _unsharded_config(config: Config, device: torch.device) -> Config:
    """Return the config of the backend ``torch`` that holds the whole model before it is shared out: in float32."""
    lower = lower_precision(config.backend.precision, device)
    rounded = config.backend.args.weights == "bf16" or lower is not None
    backend_args = config.backend.args.model_copy(update={"weights": "fp32"})
    backend = config.backend.model_copy(
        update={"device": "cpu", "precision": "bf16" if rounded else "fp32", "args": backend_args}
    )
    return config.model_copy(update={"backend": backend})
