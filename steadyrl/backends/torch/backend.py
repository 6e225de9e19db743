"""The PyTorch backend: a Hugging Face causal model on one device, its frozen reference and its value head.

Log-probs are computed from the hidden states of completion tokens only, in float32, under the distribution that was
sampled from. The model is always in eval mode: with dropout on, the ratio of new to old probabilities would be noise
before the first update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from steadyrl.backends.huggingface import portable
from steadyrl.backends.huggingface.folder import context_length
from steadyrl.backends.limits import MOST_COMPARED, MOST_REMEMBERED, AtOnce, require_room
from steadyrl.backends.settings import MICRO_BATCH_TOKENS
from steadyrl.backends.step import Measured, Objective, Reading, accumulate, products_of
from steadyrl.backends.torch import footprint, memory
from steadyrl.backends.torch.arithmetic import fast_float32, full_float32
from steadyrl.backends.torch.deterministic import deterministic, prepare
from steadyrl.backends.torch.device import chosen_device, lower_precision, to_device
from steadyrl.backends.torch.draw.generation import Generation
from steadyrl.backends.torch.kernels.fused import fuse_layers, fuse_sums
from steadyrl.backends.torch.load.fits import through_ours
from steadyrl.backends.torch.load.model import load_model, split_head
from steadyrl.backends.torch.load.quantized import adam, count
from steadyrl.backends.torch.load.reference import Reference
from steadyrl.backends.torch.load.value_head import ValueHead
from steadyrl.backends.torch.masters import Masters, cosine_of, numbers_of, products_with_momentum
from steadyrl.backends.torch.read.head import chosen_logprobs, distributions, logits_of, products_on, sampled_tokens
from steadyrl.backends.torch.read.products import quicken
from steadyrl.backends.torch.read.reader import Reader
from steadyrl.backends.torch.read.reads import reads_of
from steadyrl.backends.torch.save import probe, state
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.errors import CheckpointError
from steadyrl.core.protocols import Algorithm, Apart, Stats, Update
from steadyrl.core.types import Batch, Completion, Sampling, TokenScores
from steadyrl.maths.batch import loss_arrays, loss_stats, micro_batches, take_rows

VALUE_HEAD = "value_head."  # before the names of its weights
Scores = dict[str, np.ndarray]  # [B, T] by name


@dataclass(frozen=True)
class Scored:
    """Rows that were scored, and their hidden states [N, H] with the way back; it holds until weights change."""

    batch: Batch
    hidden: torch.Tensor
    sampling: Sampling
    head: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    """What the head gave, as ``chosen_logprobs`` takes it; None where no kernels measured it."""

    def matches(self, batch: Batch, sampling: Sampling) -> bool:
        """Return whether these are the rows of ``batch``, under the distribution that is asked for."""
        if sampling != self.sampling:
            return False
        ours, theirs = ((rows.tokens, rows.completion_mask) for rows in (self.batch, batch))
        return all(map(np.array_equal, ours, theirs))


class TorchBackend:
    """See Backend."""

    def __init__(self, config: Config, algorithm: Algorithm):
        self._settings = settings = config.backend.args
        self._repeats = settings.deterministic
        self._model_path = config.model.path
        if config.backend.threads:
            torch.set_num_threads(config.backend.threads)
        self.device = chosen_device(config.backend.device)
        memory.keep_freed(self.device)
        prepare(self.device, settings.deterministic)
        # First, for a server that is not there is quicker found out than a model is loaded.
        self._engine = (
            None
            if config.sampler.engine == "own"
            else plugins.make("sampler", config.sampler.engine, config.sampler.args, config.model)
        )
        with torch.random.fork_rng(devices=[]):  # what is not in the files (an adapter) starts from the run's seed
            torch.manual_seed(config.run.seed)
            kept_in = torch.bfloat16 if settings.weights == "bf16" else torch.float32
            self.model, self.tokenizer = load_model(config.model, self.device, kept_in, settings.quantize)
        self._lora = config.model.lora_rank > 0
        sampling = Sampling(**config.sampling.model_dump())
        self._truncated = sampling.truncates and sampling.logprobs == "sampled"
        self._context = context_length(self._inner().config)
        self.split = through_ours(self.model, split_head(self.model))
        self._head = self.split.head
        self._lower = kept_in if kept_in == torch.bfloat16 else lower_precision(config.backend.precision, self.device)
        model_type = self._inner().config.model_type
        quicken(self.model)
        if self.device.type == "cuda" and self.split.ours:
            fuse_layers(self.split.body)
            reads = reads_of(self.split.body)
            fuse_sums(self.split.body, reads.multiplied)
            self.split = replace(self.split, siblings=reads.siblings)
        self._generation = Generation(self.split, model_type, self.tokenizer, self._lower, settings.generate_rows)
        self._read = Reader(
            self.model, self.split, self._lower, settings.gradient_checkpointing, settings.activation_offload
        )
        self.value_head: ValueHead | None = None
        if "values" in algorithm.needs:
            self.value_head = ValueHead(self._head.in_features).to(self.device)
        self.reference: Reference | None = None  # of all weights; an adapter's is the model without it
        if "ref_logprobs" in algorithm.needs and not self._lora:
            self.reference = Reference(self.model, self.split, self._lower, settings.reference)
        self.reads_once = config.update.epochs * config.update.minibatches == 1
        self._scored: Scored | None = None
        self._value_rate = algorithm.value_rate
        self._tokens_at_once = settings.micro_batch_tokens or self._tokens_that_fit(config)
        self._micro_batch = AtOnce(self._tokens_at_once, "backend.args.micro_batch_tokens", memory.ran_out)
        self.begin_training(config.update.weight_decay)

    def begin_training(self, weight_decay: float) -> None:
        """Let a new optimizer move the weights as they are now."""
        self._half_moved = False
        self._masters = Masters(self.trainable())
        groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "least_rate": self._value_rate}]
        for name, weight in self._masters.named.items():
            groups[name.startswith(VALUE_HEAD)]["params"].append(weight)
        self.optimizer = adam(groups, self.device, self._settings.optimizer_bits, weight_decay)

    def set_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next step; that of a value head may be higher."""
        for group in self.optimizer.param_groups:
            group["lr"] = max(learning_rate, group.get("least_rate", 0.0))

    def describe(self) -> dict[str, object]:
        """Return what run.json records of the model."""
        parameters, trained = (sum(map(count, ps)) for ps in (self.model.parameters(), self.trainable().values()))
        base = [p for p in self.model.parameters() if not (self._lora and p.requires_grad)]
        packed = sum(count(p) for p in base if p.dtype == torch.uint8)
        return {
            "type": self._inner().config.model_type,
            "decoder": "fast" if self.split.ours else "transformers",
            "context": self._context,
            "precision": "fp32" if self._lower is None else "bf16",
            "parameters": parameters,
            "trained": trained,
            "memory": footprint.resident(sum(map(count, base)), packed, trained, self._setup()),
            "micro_batch_tokens": self._tokens_at_once,
            "device": str(self.device),
            "deterministic": self.device.type == "cpu" or self._settings.deterministic,
            "threads": torch.get_num_threads(),
        }

    def _setup(self) -> footprint.Setup:
        settings = self._settings
        return footprint.Setup(
            bf16=settings.weights == "bf16",
            lora=self._lora,
            quantized=settings.quantize != "none",
            reference=self.reference is not None and (settings.reference == "device" or self.device.type == "cpu"),
            optimizer_bits=settings.optimizer_bits,
            products=footprint.FP32 if self._lower is None else footprint.BF16,
            checkpointing=settings.gradient_checkpointing,
            offload=settings.activation_offload,
            truncated=self._truncated,
            device=self.device.type,
        )

    def _tokens_that_fit(self, config: Config) -> int:
        """Return how many tokens a micro-batch has where no setting says so."""
        if self.device.type != "cuda":
            return MICRO_BATCH_TOKENS
        try:
            shape = footprint.Shape.of_config(self._inner().config.get_text_config().to_dict())
        except (KeyError, TypeError):  # no model that the formula knows
            return MICRO_BATCH_TOKENS
        room = torch.cuda.get_device_properties(self.device).total_memory
        return footprint.micro_batch_tokens(shape, self._setup(), room, config.model.lora_rank)

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        require_room(self._context, max(map(len, prompts), default=0), sampling.max_new_tokens)
        if self._engine is not None:
            completions: list[Completion] = self._engine.generate(self, prompts, sampling, seeds)
            return completions
        with self.working():
            return self._generation(prompts, sampling, seeds, self._read.autocast)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Sample, score and train in the arithmetic of this run, whatever the process has switched on."""
        exactness = full_float32() if self._lower is None else fast_float32()
        # The present card is one of each thread.
        card = torch.cuda.device_of(next(self.model.parameters()))  # type: ignore[no-untyped-call]  # of torch
        with card, exactness, deterministic(self._repeats, self.device):
            yield

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """See Repeatable."""
        self._repeats = True
        try:
            yield
        finally:
            self._repeats = self._settings.deterministic

    def prefix_cache(self, together: bool) -> AbstractContextManager[None]:
        """See PrefixCaching."""
        return self._generation.keeping(together) if self._engine is None else nullcontext()

    def sampler_apart(self) -> AbstractContextManager[bool]:
        """See Detached."""
        return self._engine.apart(self) if isinstance(self._engine, Apart) else nullcontext(False)

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""
        if self._engine is not None:
            self._engine.rest()
        with self.working():
            return TokenScores(**self.measure(batch, sampling, needs))

    def measure(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> Scores:
        """Return all measurements [B, T] by name.

        Where the step makes one update, of rows that fit into one micro-batch, the pass over them is made once: here,
        and it keeps its way back for the update. The graphs of several micro-batches would need more memory than the
        update does.
        """
        self._scored = None
        reference = self.reference if "ref_logprobs" in needs else None
        with nullcontext() if reference is None else reference.on(self.device):
            return self._micro_batch.fitting(lambda tokens: self._measure_micro_batches(batch, sampling, needs, tokens))

    def _measure_micro_batches(self, batch: Batch, sampling: Sampling, needs: frozenset[str], tokens: int) -> Scores:
        micro = [(rows, take_rows(batch, rows)) for rows in micro_batches(batch, tokens)]
        flats = []
        for _, micro_batch in micro:
            with torch.set_grad_enabled(self.reads_once and len(micro) == 1):
                hidden = self._read(micro_batch)
            with torch.inference_mode():
                flat = self._measure(micro_batch, hidden.detach(), sampling, needs)
            norms = flat.pop("norms", None)
            if hidden.requires_grad:
                # Copies: what was made in inference mode has no way back.
                head = None if norms is None else (flat["logprobs"].clone(), flat["entropy"].clone(), norms.clone())
                self._scored = Scored(micro_batch, hidden, sampling, head)
            flats.append(flat)
        sizes = [int(micro_batch.completion_mask.sum()) for _, micro_batch in micro]
        names = tuple(dict.fromkeys(name for flat in flats for name in flat))
        missing = [hidden.new_zeros(size) for size in sizes]  # a row of zeros where not measured
        columns = [
            torch.cat([flat.get(name, zeros) for flat, zeros in zip(flats, missing, strict=True)]) for name in names
        ]
        measured: Scores = {name: np.zeros(batch.tokens.shape) for name in names}
        # Once all is done, and all at once, for the host waits for the device.
        for name, numbers in zip(names, torch.stack(columns).cpu().double().numpy(), strict=True):
            for (rows, micro_batch), values in zip(micro, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
                full = np.zeros(micro_batch.tokens.shape)
                full[micro_batch.completion_mask] = values
                measured[name][rows, : micro_batch.tokens.shape[1]] = full
        return measured

    def _measure(
        self, micro_batch: Batch, hidden: torch.Tensor, sampling: Sampling, needs: frozenset[str]
    ) -> dict[str, torch.Tensor]:
        """Return the measurements of a micro-batch from its hidden states [N, H]: [N] each, row-major."""
        measured: dict[str, torch.Tensor] = {}
        if "values" in needs:
            assert self.value_head is not None, "values asked of a backend built without a value head"
            measured["values"] = self.value_head(hidden)
        reference, products = None, products_on(hidden.device, self._lower)
        if "ref_logprobs" in needs:
            with self._as_reference() as (read, head):
                head_logits, ref_hidden = logits_of(head, products), read(micro_batch)

            def ref_logits(ref_rows: torch.Tensor) -> torch.Tensor:
                with self._as_reference():  # an adapter may be on the head itself
                    return head_logits(ref_rows)

            reference = (ref_logits, ref_hidden)
        sampled = sampled_tokens(micro_batch, sampling, self._head.out_features, self.device)
        logits = logits_of(self._head, products)
        for rows, name, values in distributions(
            lambda rows: logits(hidden[rows]), reference, sampled, self._head.out_features
        ):
            measured.setdefault(name, torch.zeros_like(hidden[:, 0]))[rows] = values
        return measured

    @contextmanager
    def _as_reference(self) -> Iterator[tuple[Reader, Any]]:
        """Yield (reader, head) of the frozen reference: a copy, or the model with its adapter off."""
        if self.reference is not None:
            yield self.reference.read, self.reference.head
            return
        with self.model.disable_adapter():
            yield self._read, self._head

    def step(self, batch: Batch, update: Update) -> Stats:
        """See Backend."""
        _, stats = self.gradients(batch, update)
        with self.working():
            norm = nn.utils.clip_grad_norm_(list(self._masters.named.values()), update.max_grad_norm).item()
            if math.isfinite(norm):  # otherwise the weights stay as they are, and the loop stops
                self.set_rate(update.learning_rate)
                stats |= cosine_of(products_with_momentum(self._masters.named.values(), self.optimizer))
                with self.moving():
                    self.optimizer.step()
        self._masters.forget_gradients()  # sampling needs the room
        return stats | {"grad_norm": (norm, 1.0)}

    def gradients(self, batch: Batch, update: Update) -> tuple[dict[str, torch.Tensor], Stats]:
        """Return the gradient of each weight that the loss reaches, in float32 by name, and what the loss measured."""

        def read(micro_batch: Batch) -> Reading:
            scored, self._scored = self._scored, None
            if scored is not None and scored.matches(micro_batch, update.sampling):
                return torch, self.new_scores(scored.hidden, micro_batch, update, scored.head), self.arrays(micro_batch)
            return torch, self.new_scores(self._read(micro_batch), micro_batch, update), self.arrays(micro_batch)

        def run_micro_batches(tokens: int) -> dict[str, float]:
            self._masters.forget_gradients()
            return accumulate(batch, micro_batches(batch, tokens), update.loss, read, self._backward, numbers_of)

        with self.working():
            totals = self._micro_batch.fitting(run_micro_batches)
        named = {name: weight.grad for name, weight in self._masters.named.items() if weight.grad is not None}
        return named, loss_stats(batch, totals)

    def gradient_products(self, batches: Sequence[Batch], update: Update) -> np.ndarray | None:
        """See GradientProducts."""
        if len(batches) * sum(weight.nbytes for weight in self._masters.named.values()) > MOST_COMPARED:
            return None
        scored, self._scored = self._scored, None  # its way back is kept for the update
        gradients = [self.gradients(batch, update)[0] for batch in batches]
        self._masters.forget_gradients()
        self._scored = scored
        return products_of(gradients)

    def _backward(self, objective: Objective) -> Measured:
        value, sums = objective()
        value.backward()
        self._masters.take_gradients()
        return value, sums

    @contextmanager
    def moving(self) -> Iterator[dict[str, nn.Parameter]]:
        """Let all trained weights be moved inside, in float32 by name; afterwards the model computes with them."""
        self._half_moved = True  # until all weights are moved: memory may run out in between
        with torch.no_grad():
            yield self._masters.named
        self._masters.write()
        self._half_moved = False
        self._weights_changed()

    def remember(self) -> Callable[[], None] | None:
        """See Reversible."""
        undo = state.remember(self.optimizer, self._masters.named, MOST_REMEMBERED)
        if undo is None:
            return None

        def put_back() -> None:
            with self.moving():
                undo()

        return put_back

    def new_scores(
        self,
        hidden: torch.Tensor,
        micro_batch: Batch,
        update: Update,
        measured: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> TokenScores:
        """Return what a loss is computed from, [B, T] with gradients, of hidden states [N, H]; see chosen_logprobs."""
        kept_mask, chosen, scale = sampled_tokens(micro_batch, update.sampling, self._head.out_features, self.device)
        products, entropy_too = products_on(hidden.device, self._lower), "entropy" in update.needs
        logprobs, entropy = chosen_logprobs(
            hidden, self._head, chosen, scale, kept_mask, entropy_too, products, measured
        )
        flat_index = to_device(np.flatnonzero(micro_batch.completion_mask), self.device)  # [N]

        def spread(flat: torch.Tensor) -> torch.Tensor:
            full = flat.new_zeros(micro_batch.completion_mask.size)
            return full.index_copy(0, flat_index, flat).view(micro_batch.completion_mask.shape)

        return TokenScores(
            logprobs=spread(logprobs),
            entropy=None if entropy is None else spread(entropy),
            values=spread(self.value_head(hidden)) if self.value_head is not None else None,
        )

    def save(self, folder: Path) -> None:
        """See Backend."""
        if self._half_moved:
            raise CheckpointError("an update ended before all weights were moved; resume from the newest checkpoint")
        with portable.writing():
            self.save_policy(folder / state.POLICY)
            state.save_tensors(folder / state.VALUE_HEAD, self.value_head.state_dict() if self.value_head else {})
            state.save_optimizer(folder / state.OPTIMIZER, self.optimizer, self._masters.named)
            self._masters.save(folder)
            with self.frozen() as model:
                if model is not None:
                    portable.write_probe(folder / portable.REFERENCE, probe.make(model))

    def save_policy(self, folder: Path) -> None:
        """Write the weights (or the adapter) and the tokenizer in Hugging Face layout."""
        self.model.save_pretrained(folder)
        state.finish_policy(folder, self.model, self._lora)
        self.tokenizer.save(folder)

    def load(self, folder: Path) -> None:
        """See Backend."""
        state.require_one_process(folder)
        state.load_policy(folder / state.POLICY, self.model, self._lora)
        if self.value_head is not None:
            state.load_into(self.value_head, folder / state.VALUE_HEAD)
        state.load_optimizer(folder / state.OPTIMIZER, self.optimizer, self._masters.named)
        self._masters.load(folder)
        self._half_moved = False
        self._weights_changed()

    def check_reference(self, folder: Path) -> None:
        """See Referring."""
        with self.frozen() as model:
            if model is not None:
                portable.check_reference(folder, self._model_path, *probe.measure_of(model))

    @contextmanager
    def frozen(self) -> Iterator[Any]:
        """Yield the model that the run began from, or None where nothing needs it any more."""
        if self.reference is not None:
            with self.reference.on(self.device):
                yield self.reference.model
        elif self._lora:
            with self.model.disable_adapter():
                yield self.model
        else:
            yield None

    def _inner(self) -> Any:
        """Return the transformers model, without an adapter's wrapper."""
        return self.model.get_base_model() if self._lora else self.model

    def _weights_changed(self) -> None:
        self._scored = None
        if self._engine is not None:
            self._engine.stale = True

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return what is trained, by name."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if self.value_head is not None:
            named |= {f"{VALUE_HEAD}{name}": p for name, p in self.value_head.named_parameters()}
        return named

    def arrays(self, micro_batch: Batch) -> dict[str, Any]:
        """Return what a loss may use of a batch."""
        return {
            name: to_device(array if array.dtype == bool else array.astype(np.float32), self.device)
            for name, array in loss_arrays(micro_batch).items()
        }
