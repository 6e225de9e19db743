"""The MLX backend: a model of mlx-lm on Apple silicon, or on the CPU of a Linux machine.

The same losses, log-probs and files as those of the PyTorch backend. What differs follows from MLX: arrays never
change, so that a frozen reference costs nothing until the policy has moved away from it, and gradients are those of a
function of all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map

from steadyrl.backends.huggingface import portable
from steadyrl.backends.limits import MOST_COMPARED, MOST_REMEMBERED, AtOnce, require_room
from steadyrl.backends.mlx import memory, state
from steadyrl.backends.mlx.kernels import fused_or_plain
from steadyrl.backends.mlx.likelihood import at_chosen, chosen_logprobs, chunks, entropy_of, log_softmax, total
from steadyrl.backends.mlx.network import Network
from steadyrl.backends.mlx.sampler import sample
from steadyrl.backends.settings import MICRO_BATCH_TOKENS
from steadyrl.backends.step import Measured, Objective, Reading, accumulate, products_of
from steadyrl.backends.stops import StopStrings
from steadyrl.core.config import Config
from steadyrl.core.protocols import Algorithm, Stats, Update
from steadyrl.core.types import Batch, Completion, Sampling, TokenScores
from steadyrl.maths.batch import loss_arrays, loss_stats, micro_batches, take_rows

ADAM_BETAS, ADAM_EPS = [0.9, 0.95], 1e-8  # of the PyTorch backend
_NORM_EPS = 1e-6  # that PyTorch adds to a norm before it divides by it


class MlxBackend:
    """See Backend."""

    def __init__(self, config: Config, algorithm: Algorithm):
        if config.backend.device != "auto":
            mx.set_default_device(mx.Device(mx.cpu if config.backend.device == "cpu" else mx.gpu))
        memory.limit(config.backend.args.memory_gib)
        fused_or_plain()
        self._section = config.model
        settings = config.backend.args
        tokens = settings.micro_batch_tokens or MICRO_BATCH_TOKENS
        self._micro_batch = AtOnce(tokens, "backend.args.micro_batch_tokens", memory.ran_out)
        self._rows = AtOnce(settings.generate_rows, "backend.args.generate_rows", memory.ran_out)
        self._has_reference = "ref_logprobs" in algorithm.needs
        self._value_rate = algorithm.value_rate
        self._bf16_weights = settings.weights == "bf16" and not config.model.lora_rank
        lower = mx.bfloat16 if "bf16" in {settings.weights, config.backend.precision} else None
        values, recompute = "values" in algorithm.needs, settings.gradient_checkpointing
        self._net = Network(config.model, config.run.seed, lower, values, recompute)
        self._loaded, self.tokenizer = self._net.loaded, self._net.loaded.tokenizer
        self._vocabulary = self._loaded.head.weight.shape[0]
        portable.check_probe(self._loaded.source, self._net.measure, self._precision)
        self.optimizer = optim.AdamW(
            0.0, ADAM_BETAS, ADAM_EPS, weight_decay=config.update.weight_decay, bias_correction=True
        )
        self.optimizer.init(self._net.params)

    @property
    def _precision(self) -> str:
        return "fp32" if self._net.lower is None else "bf16"

    def describe(self) -> dict[str, object]:
        """Return what run.json records of the model."""
        sizes = [array.size for _, array in tree_flatten(self._loaded.net.parameters())]
        return {
            "type": self._loaded.config.model_type,
            "decoder": f"mlx-lm {version('mlx-lm')}",
            "context": self._loaded.context,
            "precision": self._precision,
            "parameters": sum(sizes),
            "trained": sum(array.size for array in self._net.params.values()),
            "device": str(mx.default_device()),
        }

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        require_room(self._loaded.context, max(map(len, prompts), default=0), sampling.max_new_tokens)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # prompts of like length pad little
        end_ids, pad_id = self.tokenizer.end_ids, self.tokenizer.pad_id
        stops = StopStrings(sampling.stop, self.tokenizer.decode) if sampling.stop else None

        def sample_rows(rows: Sequence[int]) -> list[Completion]:
            row_prompts, row_seeds = [prompts[i] for i in rows], [seeds[i] for i in rows]
            net, logits = self._loaded.net, self._loaded.logits
            return sample(net, logits, row_prompts, sampling, row_seeds, end_ids, pad_id, stops)

        return self._rows.map_batches(order, sample_rows, "completions in all")

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""
        return TokenScores(
            **self._micro_batch.fitting(lambda size: self._measured(micro_batches(batch, size), batch, sampling, needs))
        )

    def _measured(
        self, row_sets: list[np.ndarray], batch: Batch, sampling: Sampling, needs: frozenset[str]
    ) -> dict[str, np.ndarray]:
        """Return all measurements [B, T], taken a set of rows at a time."""
        measured: dict[str, np.ndarray] = {}
        for rows in row_sets:
            micro = take_rows(batch, rows)
            for name, flat in self._measure(micro, sampling, needs).items():
                full = np.zeros(micro.tokens.shape)
                full[micro.completion_mask] = flat
                measured.setdefault(name, np.zeros(batch.tokens.shape))[rows, : micro.tokens.shape[1]] = full
        return measured

    def _measure(self, micro: Batch, sampling: Sampling, needs: frozenset[str]) -> dict[str, np.ndarray]:
        """Return the measurements of a micro-batch, [N] each, completion tokens in row-major order."""
        hidden, reference = self._net.hidden(micro), None
        chosen = micro.tokens[micro.completion_mask]  # [N]
        kept_mask, scale = self._kept_mask(micro, sampling), _scale(sampling)
        measured: dict[str, list[np.ndarray]] = {}

        def keep(name: str, array: mx.array) -> None:
            measured.setdefault(name, []).append(np.array(array).astype(np.float64))

        if "values" in needs and (predictions := self._net.values(hidden)) is not None:
            keep("values", predictions)
        if "ref_logprobs" in needs:
            with self._net.as_reference():
                reference = self._net.hidden(micro)
                mx.eval(reference)
        for rows in chunks(len(chosen), self._vocabulary):
            chunk_mask, tokens = None if kept_mask is None else mx.array(kept_mask[rows]), mx.array(chosen[rows])
            logp = log_softmax(self._loaded.logits(hidden[rows].astype(mx.float32)), scale, chunk_mask)
            keep("logprobs", at_chosen(logp, tokens))
            keep("entropy", entropy_of(logp))
            if reference is not None:
                with self._net.as_reference():
                    ref_logits = self._loaded.logits(reference[rows].astype(mx.float32))
                ref, p = log_softmax(ref_logits, scale, chunk_mask), mx.exp(logp)
                ref_logprobs, exact = at_chosen(ref, tokens), total(mx.where(p > 0, p * (logp - ref), 0.0))
                keep("ref_logprobs", ref_logprobs)
                keep("kl_ref_exact", exact)
                if chunk_mask is not None:  # the same for every kept token: see the torch backend's
                    keep("kl_ref_full", exact + ref_logprobs - at_chosen(log_softmax(ref_logits, scale, None), tokens))
        return {name: np.concatenate(chunk_values) for name, chunk_values in measured.items()}

    def step(self, batch: Batch, update: Update) -> Stats:
        """See Backend."""
        gradients, stats = self.gradients(batch, update)
        norm = math.sqrt(sum(_square(gradient) for gradient in gradients.values()))
        if math.isfinite(norm):  # otherwise the weights stay as they are, and the loop stops
            factor = min(1.0, update.max_grad_norm / (norm + _NORM_EPS))
            clipped = {name: gradient * factor for name, gradient in gradients.items()}
            stats |= self._momentum_cosine(clipped)
            self._net.adopt(self._adam_step(clipped, update.learning_rate))
            mx.eval(self.optimizer.state)
        return stats | {"grad_norm": (norm, 1.0)}

    def _adam_step(self, gradients: dict[str, mx.array], learning_rate: float) -> dict[str, mx.array]:
        """Return the parameters after a step of Adam; the rate of a value head may be higher."""
        params, adam = self._net.params, self.optimizer
        model_gradients, head_gradients = state.split_value_head(gradients)
        adam.init(gradients)  # of what it has no state of yet
        adam.learning_rate = learning_rate
        moved: dict[str, mx.array] = adam.apply_gradients(model_gradients, params)
        adam.learning_rate = max(learning_rate, self._value_rate)
        return moved | {n: adam.apply_single(g, params[n], adam.state[n]) for n, g in head_gradients.items()}

    def remember(self) -> Callable[[], None] | None:
        """See Reversible; updates put new arrays in the place of old ones, which stay as they are."""
        params, optimizer_state = dict(self._net.params), tree_map(lambda array: array, self.optimizer.state)
        if sum(array.nbytes for _, array in tree_flatten([params, optimizer_state])) > MOST_REMEMBERED:
            return None

        def put_back() -> None:
            self._net.adopt(params)
            self.optimizer.state = optimizer_state

        return put_back

    def _momentum_cosine(self, gradients: Mapping[str, mx.array]) -> dict[str, tuple[float, float]]:
        """Return the cosine of gradients with Adam's mean of those before them, as a statistic; empty without one."""
        means = {name: self.optimizer.state.get(name, {}).get("m", mx.zeros(1)) for name in gradients}
        new, mean = (sum(map(_square, arrays.values())) for arrays in (gradients, means))
        dot = sum(float((gradient * means[name]).sum()) for name, gradient in gradients.items())
        return {"grad_cosine": (dot / math.sqrt(new * mean), 1.0)} if new * mean > 0 else {}

    def gradients(self, batch: Batch, update: Update) -> tuple[dict[str, mx.array], Stats]:
        """Return the gradient of each parameter, and what the loss measured."""
        try:
            gradients, totals = self._micro_batch.fitting(
                lambda size: self._accumulate(micro_batches(batch, size), batch, update)
            )
        finally:
            self._net.use(self._net.params)  # what was differentiated must not stay in the model
        return gradients, loss_stats(batch, totals)

    def gradient_products(self, batches: Sequence[Batch], update: Update) -> np.ndarray | None:
        """See GradientProducts."""
        if len(batches) * sum(array.nbytes for _, array in tree_flatten(self._net.params)) > MOST_COMPARED:
            return None
        return products_of([self.gradients(batch, update)[0] for batch in batches])

    def _accumulate(
        self, row_sets: list[np.ndarray], batch: Batch, update: Update
    ) -> tuple[dict[str, mx.array], dict[str, float]]:
        """Return the sum of the gradients of all micro-batches, and the sums of what the loss measured."""
        gradients: dict[str, mx.array] = {}

        def read(micro: Batch) -> Reading:
            arrays = {
                name: mx.array(array if array.dtype == bool else array.astype(np.float32))
                for name, array in loss_arrays(micro).items()
            }
            return mx, self._new_scores(micro, update), arrays

        def backward(objective: Objective) -> Measured:
            def objective_of(params: dict[str, mx.array]) -> Measured:
                self._net.use(params)
                return objective()

            (value, sums), new_gradients = mx.value_and_grad(objective_of)(self._net.params)
            gradients.update({name: new + gradients.get(name, 0.0) for name, new in new_gradients.items()})
            mx.eval(value, sums, gradients)
            return value, sums

        return gradients, accumulate(batch, row_sets, update.loss, read, backward)

    def _new_scores(self, micro: Batch, update: Update) -> TokenScores:
        hidden, mask = self._net.hidden(micro), micro.completion_mask
        logprobs, entropy = chosen_logprobs(
            hidden,
            self._loaded.head,
            self._loaded.logits,
            micro.tokens[mask],
            _scale(update.sampling),
            self._kept_mask(micro, update.sampling),
            "entropy" in update.needs,
        )
        positions = mx.array(np.where(mask, np.cumsum(mask).reshape(mask.shape) - 1, 0))

        def scatter(flat: mx.array | None) -> mx.array | None:
            return None if flat is None else mx.where(mx.array(mask), flat[positions], 0.0)

        return TokenScores(scatter(logprobs), scatter(entropy), scatter(self._net.values(hidden)))

    def _kept_mask(self, micro: Batch, sampling: Sampling) -> np.ndarray | None:
        """Return [N, V] bool, True for the ids that truncation left, or None where nothing was cut."""
        if micro.kept is None or sampling.logprobs == "raw":
            return None
        lengths = micro.kept.lengths[micro.completion_mask]
        keep = np.zeros((len(lengths), self._vocabulary), bool)
        keep[np.repeat(np.arange(len(lengths)), lengths), micro.kept.ids] = True
        keep[lengths == 0] = True
        return keep

    def save(self, folder: Path) -> None:
        """See Backend."""
        model_params, head_params = state.split_value_head(self._net.params)
        with portable.writing(RuntimeError):
            self.save_policy(folder / state.POLICY)
            state.save_value_head(folder, head_params)
            state.save_optimizer(folder / state.OPTIMIZER, self.optimizer.state, self._net.params)
            if self._bf16_weights:
                state.write_arrays(folder / state.MASTERS, model_params)
            if self._has_reference:
                with self._net.as_reference():
                    self._write_probe(folder / portable.REFERENCE)

    def check_reference(self, folder: Path) -> None:
        """See Referring."""
        if self._has_reference:
            with self._net.as_reference():
                portable.check_reference(folder, self._section.path, self._net.measure, self._precision)

    def save_policy(self, folder: Path) -> None:
        """Write the weights (or the adapter, as PEFT has it) and the tokenizer in Hugging Face layout."""
        folder.mkdir(parents=True, exist_ok=True)
        params, _ = state.split_value_head(self._net.params)
        if self._section.lora_rank:
            state.save_adapter(folder, params, self._section, self._loaded.source)
        else:
            dtype = mx.bfloat16 if self._bf16_weights else mx.float32
            arrays = {name: array.astype(dtype) for name, array in params.items()}
            state.save_weights(folder, arrays, self._loaded.config, self._loaded.source)
        self.tokenizer.save(folder)
        self._write_probe(folder)

    def _write_probe(self, folder: Path) -> None:
        context = self._loaded.context
        probe = portable.make_probe(self._vocabulary, context, self._net.measure, self._precision)
        portable.write_probe(folder, probe)

    def load(self, folder: Path) -> None:
        """See Backend."""
        model_params, head_params = state.split_value_head(self._net.params)
        params = self._load_policy(folder, model_params) | state.load_value_head(folder, head_params)
        steps, moments = state.load_optimizer(folder / state.OPTIMIZER, self._net.params)
        self._net.adopt(params)
        portable.check_probe(folder / state.POLICY, self._net.measure, self._precision)
        self.optimizer.state = {"step": mx.array(steps, mx.uint64), "learning_rate": mx.array(0.0)}
        self.optimizer.init(params)
        self.optimizer.state.update(moments)
        mx.eval(self.optimizer.state)

    def _load_policy(self, folder: Path, expected: Mapping[str, mx.array]) -> dict[str, mx.array]:
        if self._bf16_weights:
            path = folder / state.MASTERS
            return state.fitting(path, state.read_arrays(path), expected)
        policy = folder / state.POLICY
        if self._section.lora_rank:
            return state.load_adapter(policy, expected)
        files = sorted(policy.glob("model*.safetensors")) or [policy / "model.safetensors"]
        saved = {name: array for file in files for name, array in state.read_arrays(file).items()}
        return state.fitting(policy, self._loaded.net.sanitize(saved), expected)


def _square(array: mx.array) -> float:
    # In float64 and row by row: millions of squares added one after the other in float32 would lose their tail.
    return float(np.array(mx.square(array).sum(axis=-1)).sum(dtype=np.float64))


def _scale(sampling: Sampling) -> float:
    return 1.0 if sampling.logprobs == "raw" else 1.0 / sampling.temperature
