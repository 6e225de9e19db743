"""The memory that training takes on each device, counted from a model's shape before anything is loaded.

What stays from step to step is exact. What comes and goes is counted for the two phases that need most: an update of
one micro-batch, and sampling. Norms, biases and small buffers are left out. scripts/memory.py makes the tables of
docs/scaling.md of it, and compares it with measured peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steadyrl.backends.settings import MICRO_BATCH_TOKENS

# Of a micro-batch on a GPU: more tokens keep it no busier, and this part of its memory may be forecast for an update.
MOST_TOKENS, STEP_TOKENS, SHARE = 32768, 2048, 0.75
# On a GPU attention without a mask is faster: prompts are shared only where rows alone have so many times the tokens.
WORTH_SHARING = 1.25
FP32, BF16 = 4, 2
NF4 = 0.5 + FP32 / 64  # half a byte, and a float32 scale for 64 weights
ADAM, ADAM_8BIT = 2 * FP32, 2 + 2 * FP32 / 256  # two moments; in 8 bits a float32 scale for 256 numbers
CHUNKS = {"cpu": 2**23, "cuda": 2**27}  # of ``head``: logits computed at once
LEAST_ROWS, KEEP = 512, 2**26  # at least so many rows of them; probabilities that a CPU keeps
# While finished rows leave the batch, the cache is there as it was and as it will be: see ``batch.LEAVE_SHARE``.
CACHES = {"cpu": 1.9, "cuda": 1.5}


@dataclass(frozen=True)
class Shape:
    """A Llama-like model: sizes of its matrices."""

    vocabulary: int
    hidden: int
    layers: int
    queries: int
    keys: int  # heads times their width, of queries, and of keys and of values
    inner: int  # width of the feed-forward
    tied: bool  # whether the head is the embedding

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Shape:
        """Read config.json of a model folder."""
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        return cls(
            config["vocab_size"],
            config["hidden_size"],
            config["num_hidden_layers"],
            heads * width,
            config.get("num_key_value_heads", heads) * width,
            config["intermediate_size"],
            config.get("tie_word_embeddings", False),
        )

    @property
    def linear(self) -> int:
        """Weights of the layers' matrices."""
        attention = self.hidden * (2 * self.queries + 2 * self.keys)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def table(self) -> int:
        """Weights of the embedding, or of the head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.linear + self.table * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Return the weights of a LoRA adapter on all matrices of the layers."""
        sides = 4 * self.hidden + 2 * self.queries + 2 * self.keys + 3 * (self.hidden + self.inner)
        return self.layers * rank * sides


@dataclass(frozen=True)
class Setup:
    """How a model is trained."""

    bf16: bool = False
    """Weights are kept in bfloat16 (backend.args.weights)."""
    lora: bool = False
    quantized: bool = False
    """The matrices under the adapter are kept in 4 bits."""
    reference: bool = False
    """The loss or the reward asks for a reference, and it stays on the device. One that is kept on the CPU comes there
    to score only, when there are no gradients: these take at least as much."""
    optimizer_bits: int = 32
    """32 or 8."""
    products: int = FP32
    """Bytes of the type that matrices are multiplied in."""
    checkpointing: bool = False
    """Only each layer's input is stored for the backward pass."""
    offload: bool = False
    """These inputs are kept in the memory of the machine."""
    truncated: bool = False
    """Log-probs are normalised over the ids that top-p, top-k or min-p left."""
    ranks: int = 1
    """Of the backend fsdp."""
    device: str = "cuda"
    """"cpu" or "cuda"."""

    @property
    def kept_in(self) -> int:
        """Bytes of a weight of the model."""
        return BF16 if self.bf16 else FP32


@dataclass(frozen=True)
class Work:
    """What is computed at once."""

    tokens: int  # of a micro-batch, shared prompts counted once
    attended: int  # of a micro-batch, prompts counted for every row that continues them, and once more
    chosen: int  # completion tokens of a micro-batch
    rows: int  # completions sampled at once
    length: int  # of the longest, prompt included


def resident(parameters: int, quantized: int, trained: int, setup: Setup) -> dict[str, float]:
    """Return the bytes that are held on each device from step to step, by what they hold."""
    sharded = setup.ranks > 1
    per_weight = FP32 if sharded else setup.kept_in  # ranks keep float32, and gather in the precision of the weights
    weights = per_weight * (parameters - quantized) + NF4 * quantized
    sizes = {
        "weights": weights,
        "adapter": FP32 * trained if setup.lora else 0,
        "reference": weights if setup.reference and not setup.lora else 0,
        "masters": FP32 * trained if setup.bf16 and not setup.lora and not sharded else 0,
        "optimizer": (ADAM if setup.optimizer_bits == 32 else ADAM_8BIT) * trained,
    }
    return {name: size / setup.ranks for name, size in sizes.items() if size}


def gradients(trained: int, setup: Setup) -> float:
    """Return the bytes of gradients on each device; those of bfloat16 weights are added up in float32 copies."""
    rounded = BF16 * trained if setup.bf16 and not setup.lora and setup.ranks == 1 else 0
    return (FP32 * trained + rounded) / setup.ranks


def resident_of(shape: Shape, setup: Setup, rank: int = 0) -> dict[str, float]:
    """Return ``resident`` of a model; ``rank`` is the adapter's."""
    trained = shape.adapter(rank) if setup.lora else shape.parameters
    return resident(shape.parameters, shape.linear if setup.quantized else 0, trained, setup)


def update_peak(shape: Shape, setup: Setup, work: Work, rank: int = 0) -> float:
    """Return the most bytes in use during an update of several micro-batches, on each device."""
    trained = shape.adapter(rank) if setup.lora else shape.parameters
    layer = _layer(shape, setup, work)
    layers = shape.layers * layer
    if setup.checkpointing:
        stored_layers = 1 if setup.offload and setup.device == "cuda" else shape.layers
        layers = stored_layers * work.tokens * shape.hidden * _stream_number(setup) + layer
    copies = 0.0
    if setup.products < setup.kept_in and not setup.quantized:  # autocast keeps what it has rounded
        copies += setup.products * shape.linear
    if setup.quantized:  # one matrix at a time
        copies += setup.kept_in * shape.hidden * shape.inner
    if setup.ranks > 1:  # two layers are gathered, with the gradients of one
        copies += (2 * setup.kept_in + FP32) * shape.linear / shape.layers + setup.kept_in * shape.table
    # Float32 gradients are there from the micro-batch before. Those of weights in bfloat16 are whole when activations
    # are gone; gradients of what one layer computed come with it.
    fp32_gradients, rounded = FP32 * trained / setup.ranks, gradients(trained, setup) - FP32 * trained / setup.ranks
    transient = max(layers + layer / 2, layers + _head(shape, setup, work), rounded + layer)
    return sum(resident_of(shape, setup, rank).values()) + fp32_gradients + transient + copies


def micro_batch_tokens(shape: Shape, setup: Setup, room: float, rank: int = 0) -> int:
    """Return how many tokens a micro-batch may have for an update to take its share of a GPU's room, in bytes.

    The memory of the device decides and not what others leave of it, so that a resumed run adds up its gradients in the
    same parts.
    """
    for tokens in range(MOST_TOKENS, MICRO_BATCH_TOKENS, -STEP_TOKENS):
        # More attended tokens lie beside where prompts are long and shared.
        if update_peak(shape, setup, Work(tokens, tokens, tokens, 0, 0), rank) <= SHARE * room:
            return tokens
    return MICRO_BATCH_TOKENS


def _stream_number(setup: Setup) -> int:
    """Return the bytes of a number that runs from layer to layer."""
    return FP32 if setup.kept_in == FP32 else setup.products


def _layer(shape: Shape, setup: Setup, work: Work) -> float:
    """Return the bytes that the way back through one layer needs."""
    if setup.device == "cuda" and setup.ranks == 1:  # see ``fused``
        # The stream and its norms, twice; queries, keys and values, and what the heads found; gate, up, and both.
        token_bytes = 2 * shape.hidden * (_stream_number(setup) + setup.products)
        token_bytes += setup.products * (2 * shape.queries + 2 * shape.keys + 3 * shape.inner)
        # All of attention once more in rows, where prompts are shared with keys and values repeated for all heads.
        keys = shape.queries if work.attended > WORTH_SHARING * work.tokens else shape.keys
        return work.tokens * token_bytes + work.attended * setup.products * 2 * (shape.queries + keys)
    # What a norm reads; on a CPU in float32, and once more scaled if its weights are trained.
    normed = FP32 * (1 if setup.lora else 2) if setup.device == "cpu" else _stream_number(setup)
    # What a norm gives is rounded for each of the five matrices that read it, unless it is rounded already.
    read = setup.products * (5 if setup.products < _stream_number(setup) else 2)
    # Queries, keys and values as they come, and what the heads found; gate, it activated, up, and what follows.
    inside = setup.products * (2 * shape.queries + 2 * shape.keys + 4 * shape.inner)
    # Queries and what the heads found in rows; keys and values, repeated for all heads, prompts for all rows.
    attention = 2 * shape.queries * (FP32 if setup.device == "cpu" else setup.products)
    return work.tokens * (2 * shape.hidden * normed + shape.hidden * read + inside + attention) + (
        work.attended * attention
    )


def _head(shape: Shape, setup: Setup, work: Work) -> float:
    """Return the bytes of logits and of the head's own copies and gradients."""
    logits = work.chosen * shape.vocabulary
    chunk = min(logits, max(CHUNKS[setup.device], LEAST_ROWS * shape.vocabulary))
    # Probabilities and their gradients; where the former are not kept, the logits that they are computed of once more.
    logits_bytes = FP32 * (logits + chunk if logits <= KEEP else 3 * chunk)
    wide = FP32 * shape.table if setup.kept_in < FP32 else 0
    if setup.device == "cuda":  # the kernels' gradient takes the place of the logits, or is in the lower type
        logits_bytes = chunk * (FP32 if setup.products == FP32 else FP32 + setup.products)
        wide = setup.products * shape.table if setup.kept_in > setup.products else 0
    steep = 0 if setup.lora else shape.table  # of the head; the embedding's comes after it
    marks = work.chosen * shape.vocabulary if setup.truncated else 0  # a byte for each id that may stay
    return logits_bytes + marks + wide + FP32 * (steep + 4 * work.chosen * shape.hidden)


def sampling_peak(shape: Shape, setup: Setup, work: Work, rank: int = 0) -> float:
    """Return the most bytes in use while completions are sampled, on each device."""
    lower = min(setup.products, setup.kept_in)
    cache = 2 * shape.layers * shape.keys * work.length * work.rows * lower
    logits = 4 * FP32 * work.rows * shape.vocabulary
    gathered = setup.kept_in * shape.parameters if setup.ranks > 1 else 0
    return (
        sum(resident_of(shape, setup, rank).values())
        + gathered
        + _decoder(shape, setup, lower)
        + CACHES[setup.device] * cache
        + logits
    )


def _decoder(shape: Shape, setup: Setup, lower: int) -> float:
    """Return the bytes of the weights that the decoder lays out once more."""
    if setup.quantized:
        return FP32 * shape.table
    if setup.device == "cpu":  # in blocks
        return lower * shape.linear + FP32 * shape.table
    # Queries, keys and values are joined, and gate and up.
    joined = shape.linear - shape.layers * shape.hidden * (shape.queries + shape.inner)
    merged = shape.linear if setup.lora else joined
    return lower * merged + (lower * shape.table if setup.kept_in > lower else 0)


def peak(shape: Shape, setup: Setup, work: Work, rank: int = 0) -> float:
    """Return the most bytes in use on each device."""
    return max(update_peak(shape, setup, work, rank), sampling_peak(shape, setup, work, rank))
