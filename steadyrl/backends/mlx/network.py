"""A policy in MLX: the weights that are trained, how they read rows, and the frozen weights they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from steadyrl.backends.mlx.likelihood import at_chosen, log_softmax
from steadyrl.backends.mlx.lora import add_lora, is_adapter
from steadyrl.backends.mlx.model import Loaded, load_model
from steadyrl.core.sections import ModelSection
from steadyrl.core.types import Batch

_HEAD = "value_head.linear."


class Network:
    """A model of mlx-lm and a linear value head, as one set of float32 parameters.

    In bfloat16 the model computes with rounded copies of them: an update of 1e-6 to a weight of 0.01 would be lost in
    eight bits.

    Attributes:
        loaded: See Loaded.
        params: What is trained, float32, by name: the model's parameters or its adapter's, and the value head's.
    """

    def __init__(self, section: ModelSection, seed: int, lower: mx.Dtype | None, values: bool, recompute: bool):
        self.lower = lower
        # Trained weights are rounded from float32; frozen ones are kept as they are computed with.
        dtype = lower if lower is not None and section.lora_rank else mx.float32
        self.loaded = load_model(section, dtype)
        if section.lora_rank:
            add_lora(self.loaded.net, section, seed)
        self.params: dict[str, mx.array] = dict(tree_flatten(self.loaded.net.trainable_parameters()))
        self._initial = dict(self.params)
        if values:
            # At zero, so that the first values are exactly 0 and the first advantages the rewards themselves.
            self.params |= {f"{_HEAD}weight": mx.zeros((1, self.loaded.width)), f"{_HEAD}bias": mx.zeros((1,))}
        _leave_padding(self.loaded)
        if recompute:
            _recompute(self.loaded.net.model.layers)
        self.use(self.params)

    def use(self, params: Mapping[str, mx.array]) -> None:
        """Let the model and the value head compute with these parameters from now on."""
        self._used = params
        arrays = {name: array for name, array in params.items() if not name.startswith(_HEAD)}
        if self.lower is not None:
            arrays = {name: array if is_adapter(name) else array.astype(self.lower) for name, array in arrays.items()}
        self.loaded.net.update(tree_unflatten(list(arrays.items())))

    def adopt(self, params: dict[str, mx.array]) -> None:
        """Take new values of all parameters."""
        mx.eval(params)
        self.params = params
        self.use(params)
        mx.eval(self.loaded.net.parameters())

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Compute with the weights that the run started with; an adapter's second matrix was zero then."""
        self.use(self._initial)
        try:
            yield
        finally:
            self.use(self.params)

    def hidden(self, part: Batch) -> mx.array:
        """Return the hidden state [N, H] before each completion token, in row-major order.

        Rows are padded on the right: under causal attention padding cannot reach what stands before it.
        """
        rows, columns = np.nonzero(part.completion_mask)
        width = part.tokens.shape[1] - 1
        states: mx.array = self.loaded.net.model(mx.array(part.tokens[:, :-1]))
        return states.reshape(-1, states.shape[-1])[mx.array(rows * width + columns - 1)]

    def values(self, hidden: mx.array) -> mx.array | None:
        """Return the value head's prediction [N] from hidden states [N, H]; None without a value head."""
        if f"{_HEAD}weight" not in self._used:
            return None
        predictions = hidden.astype(mx.float32) @ self._used[f"{_HEAD}weight"].T + self._used[f"{_HEAD}bias"]
        return predictions[:, 0]

    def measure(self, tokens: np.ndarray) -> np.ndarray:
        """Return the log-probs [P - 1] of all tokens [P] but the first, untempered."""
        states = self.loaded.net.model(mx.array(tokens[None, :-1]))[0].astype(mx.float32)
        logp = log_softmax(self.loaded.logits(states), 1.0, None)
        return np.array(at_chosen(logp, mx.array(tokens[1:]))).astype(np.float64)


def _leave_padding(loaded: Loaded) -> None:
    # transformers gives the embedding of the padding token no gradient, and chat models read that token.
    embedding, padding = loaded.net.model.embed_tokens, loaded.config.pad_token_id
    if padding is None:
        return
    kind: Any = type(embedding)

    class Padded(kind):  # type: ignore[misc]  # a class of MLX, which is not installed everywhere
        def __call__(self, x: mx.array) -> mx.array:
            embedded = super().__call__(x)
            return mx.where((x == padding)[..., None], mx.stop_gradient(embedded), embedded)

    embedding.__class__ = Padded


def _recompute(layers: Any) -> None:
    # mlx-lm's own switch would change all models of the process.
    kind: Any = type(layers[0])

    class Recomputed(kind):  # type: ignore[misc]  # a class of mlx-lm, which is not installed everywhere
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
            if cache is not None:
                return super().__call__(x, mask, cache=cache)
            forward = super().__call__
            return nn.utils.checkpoint(self, lambda inputs: forward(inputs, mask))(x)

    for layer in layers:
        layer.__class__ = Recomputed
