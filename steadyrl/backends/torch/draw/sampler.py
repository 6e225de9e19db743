"""Batched sampling from a causal model, with the log-probability of what was sampled.

Prompts are padded on the left and read once each, however many samples are drawn from one; finished rows leave the
batch, so that one long completion does not make all others wait. Each row draws from its own seed, one uniform number
a token, so that what a row becomes does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from steadyrl.backends.stops import StopStrings
from steadyrl.backends.torch.deterministic import running_sums
from steadyrl.backends.torch.device import sent
from steadyrl.backends.torch.draw.cache import Cache, Known
from steadyrl.backends.torch.draw.decoder import Decoder, kernels
from steadyrl.backends.torch.draw.forward import ForwardDecoder
from steadyrl.backends.torch.draw.graph import GraphDecoder
from steadyrl.backends.torch.load.model import Parts
from steadyrl.backends.torch.read.products import laid_out
from steadyrl.core.counting.count import tell
from steadyrl.core.types import Completion, Sampling

# Of the rows so many must be finished before the batch is made smaller: that copies the cache and, on a GPU, captures
# another graph.
LEAVE_SHARE = {"cpu": 0.1, "cuda": 0.5}
# Tokens between looks at how many rows are left, at what truncation left and at stop strings: on a GPU a look waits.
LOOK_EVERY = {"cpu": 1, "cuda": 8}
BLOCK = 128  # tokens whose probabilities are summed together when one is drawn
LARGEST = 1024  # tokens of a row that are sorted for top-p first; they nearly always hold all that it keeps


# The ids [N] of a row that leaves the batch, the cache, and its place there.
Leaving = Callable[[np.ndarray, Cache, int], None]


class Engine(Protocol):
    """What goes on from prompts that were read: our decoder, or transformers' own forward."""

    def step(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        """Append tokens [B]; return logits [B, V] float32 of the next."""


@torch.inference_mode()
def sample(
    parts: Parts,
    prompts: Sequence[np.ndarray],
    sampling: Sampling,
    seeds: Sequence[int],
    end_ids: Sequence[int],
    pad_id: int,
    lower: torch.dtype | None = None,
    stops: StopStrings | None = None,
    known_prefixes: list[Known | None] | None = None,
    leaving: Leaving | None = None,
) -> list[Completion]:
    """Sample one completion per prompt.

    Args:
        parts: Of a transformers causal model in eval mode.
        prompts: Token ids, at least one each; all of one length where the model's own cache cannot be padded.
        sampling: How to draw.
        seeds: One per prompt.
        end_ids: Each ends a completion.
        pad_id: Fills the left of short prompts.
        lower: Type that the decoder multiplies matrices in; None for that of the weights.
        stops: Strings that end a completion too; None for none.
        known_prefixes: What of each prompt needs no reading, less than the whole; None for nothing. For our decoder
            only. It is emptied once it is in the cache, lest both take memory.
        leaving: Is told of every row that leaves the batch: its prompt and all that it drew but the last, which was
            perhaps not read; the cache, and the row's place in it.
    """
    distinct, which = _distinct(prompts)
    device = next(parts.body.parameters()).device
    before = [known_prefixes[which.index(number)] if known_prefixes else None for number in range(len(distinct))]
    starts = [0 if prefix is None else len(prefix) for prefix in before]
    unread = [prompt[start:] for prompt, start in zip(distinct, starts, strict=True)]
    ids, visible = _left_pad(unread, pad_id, device)
    engine: Engine
    cache: Any
    uniforms = _uniforms(seeds, sampling.max_new_tokens, device)

    def leave(places: torch.Tensor, rows: torch.Tensor, drawn: torch.Tensor) -> None:
        if leaving is not None:
            for place, row, ids in zip(places.tolist(), rows.tolist(), drawn[rows].cpu().numpy(), strict=True):
                leaving(np.concatenate([prompts[row], ids[ids >= 0][:-1]]), cache, place)

    own_products = laid_out(parts.body, len(prompts), lower or next(parts.body.parameters()).dtype, parts.siblings)
    with own_products if parts.ours else nullcontext():
        if not parts.ours:
            engine = forward = ForwardDecoder(parts, len(prompts), lower)
            logits, cache = forward.prefill(ids, visible)
        else:
            decoder = Decoder(parts, len(prompts), max(starts) + ids.shape[1] + sampling.max_new_tokens, lower)
            engine = GraphDecoder(decoder) if device.type == "cuda" else decoder
            logits, cache = decoder.prefill(ids, visible, before)
        before.clear()
        if known_prefixes:
            known_prefixes.clear()
        if len(distinct) < len(prompts):
            chosen = torch.tensor(which, device=device)
            logits = logits[chosen]
            cache.spread(chosen)
        return _decode(engine, cache, logits, sampling, uniforms, end_ids, stops, leave)


def _decode(
    engine: Engine,
    cache: Any,
    logits: torch.Tensor,
    sampling: Sampling,
    uniforms: torch.Tensor,
    end_ids: Sequence[int],
    stops: StopStrings | None,
    leave: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
) -> list[Completion]:
    """Draw tokens until every row has ended; ``uniforms`` is [B, max_new_tokens].

    ``leave`` is called before rows leave the cache, with their places in it, their numbers and [B, max_new_tokens] of
    what was drawn, -1 after the end.
    """
    drawn = torch.full_like(uniforms, -1, dtype=torch.long)  # [B, max_new_tokens], -1 after the end
    logprobs = torch.zeros_like(uniforms)
    kept_ids = _Kept(len(uniforms))
    rows = torch.arange(len(uniforms), device=uniforms.device)  # of the batch as it was, one per row that is left
    ended = torch.zeros_like(rows, dtype=torch.bool)
    going = ~ended
    ends = torch.tensor(list(end_ids), device=uniforms.device)
    choose: Callable[..., Any] = partial(_choose, sampling=sampling)
    if isinstance(engine, GraphDecoder):
        choose = engine.with_logits(choose)
    look_every, leave_share = LOOK_EVERY.get(rows.device.type, 1), LEAVE_SHARE.get(rows.device.type, 0.1)
    for t in range(sampling.max_new_tokens):
        tokens, drawn_logprobs, warped = choose(logits, uniforms[rows, t])
        drawn[rows, t] = torch.where(going, tokens, -1)
        logprobs[rows, t] = drawn_logprobs
        if sampling.truncates:
            kept_ids.add(rows, going, warped)
        ended[rows] |= torch.isin(tokens, ends)
        last, look = t + 1 == sampling.max_new_tokens, (t + 1) % look_every == 0
        if last or look:
            kept_ids.take()
            if stops is not None:
                _stop(drawn, rows, ended, slice(t - t % look_every, t + 1), stops)
        going = ~ended[rows]
        if last:
            break
        if look:
            left = int(going.sum())
            tell("completions", len(uniforms) - left, len(uniforms))
            if left == 0:
                break
            if left <= (1.0 - leave_share) * len(going):
                gone = (~going).nonzero()[:, 0]
                leave(gone, rows[gone], drawn)
                stay = going.nonzero()[:, 0]
                cache.take(stay)
                rows, tokens, going = rows[stay], tokens[stay], going[stay]
        logits = engine.step(tokens, cache)
    leave(torch.arange(len(rows)), rows, drawn)
    tell("completions", len(uniforms), len(uniforms))
    ids_by_row = kept_ids.ids if sampling.truncates else None
    return _completions(drawn.cpu().numpy(), logprobs.cpu().numpy(), ended.tolist(), ids_by_row)


def _choose(
    logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return drawn tokens [B], the log-probs [B] of them that are asked for, and what they were drawn from [B, V]."""
    warped = warp(logits, sampling)
    tokens, logprobs = draw(warped, uniform)
    if sampling.logprobs == "raw":
        logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    return tokens, logprobs, warped


class _Kept:
    """The ids that truncation left for each token of each row; their masks stay on the device until they are taken."""

    def __init__(self, rows: int):
        self.ids: list[list[np.ndarray]] = [[] for _ in range(rows)]
        self._masks: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, rows: torch.Tensor, going: torch.Tensor, warped: torch.Tensor) -> None:
        """Note what was left [B, V] for one more token of the rows that are going."""
        self._masks.append((rows, (warped > -torch.inf) & going[:, None]))

    def take(self) -> None:
        """Bring the ids to the host."""
        if not self._masks:
            return
        # Of all tokens at once, token by token: the host waits for the device a few times only.
        rows, masks = (
            tensors[0] if len(tensors) == 1 else torch.cat(tensors) for tensors in zip(*self._masks, strict=True)
        )
        self._masks.clear()
        numbers, places = rows.tolist(), masks.nonzero().cpu().numpy()  # [n, 2]
        starts = np.flatnonzero(np.diff(places[:, 0], prepend=-1))
        of_rows = np.split(places[:, 1].astype(np.int32), starts)[1:]
        for place, ids in zip(places[starts, 0], of_rows, strict=True):
            self.ids[numbers[place]].append(ids)


def _stop(drawn: torch.Tensor, rows: torch.Tensor, ended: torch.Tensor, new: slice, stops: StopStrings) -> None:
    """End rows at the first token that completes a stop string, and take back what was drawn after it.

    Args:
        drawn: [B, max_new_tokens].
        rows: Which of them may still be going.
        ended: [B] bool.
        new: The columns that were drawn since the last look.
        stops: The strings.
    """
    start = max(0, new.start + 1 - stops.reach)
    recent = drawn[rows, start : new.stop].cpu().numpy()
    last = np.full(len(recent), recent.shape[1])  # columns beyond it are taken back
    for column in range(new.start - start, recent.shape[1]):
        live = np.flatnonzero((recent[:, column] >= 0) & (last > column))
        matches = stops.ended(recent[live, max(0, column + 1 - stops.reach) : column + 1])
        last[live[np.array(matches, bool)]] = column
    stopped = np.flatnonzero(last < recent.shape[1])
    if stopped.size:
        at = rows[sent(stopped, rows.device)]
        ends = sent(last[stopped], rows.device)
        behind = torch.arange(recent.shape[1], device=rows.device) > ends[:, None]
        drawn[at, start : new.stop] = drawn[at, start : new.stop].masked_fill(behind, -1)
        ended[at] = True


def _completions(
    drawn: np.ndarray, logprobs: np.ndarray, ended: Sequence[bool], kept_by_row: list[list[np.ndarray]] | None
) -> list[Completion]:
    completions = []
    for row, length in enumerate((drawn >= 0).sum(axis=1).tolist()):
        ids = drawn[row, :length].astype(np.int32)
        kept_ids = None if kept_by_row is None else tuple(kept_by_row[row][:length])
        completions.append(Completion(ids, logprobs[row, :length].copy(), "stop" if ended[row] else "length", kept_ids))
    return completions


def warp(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the logits that tokens are drawn from: temperature first, then top-k, then top-p.

    Args:
        logits: [N, V] float32.
        sampling: temperature, top_k and top_p are used.

    Returns:
        [N, V], not normalised; -inf for tokens that truncation cut.
    """
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if sampling.top_k > 0:
        least = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        logits = logits.masked_fill(_beyond(logits, sampling.top_p), -torch.inf)
    return logits


def _beyond(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return [N, V] bool, True for what stands behind the tokens that reach top_p."""
    vocabulary = logits.shape[-1]
    if logits.device.type == "cpu":  # numpy parts and sorts numbers alone, far faster than torch sorts them with ids
        behind, ordered = _of_largest(logits, top_p, min(LARGEST, vocabulary))
        if not bool(behind[:, -1].all()):
            behind, ordered = _of_largest(logits, top_p, vocabulary)
        stay = (~behind).sum(-1, keepdim=True)
        cut = logits < ordered.gather(1, stay - 1)
        if bool((cut.sum(-1, keepdim=True) + stay == vocabulary).all()):  # no two tokens alike on both sides of the cut
            return cut
    ordered, order = logits.sort(dim=-1, descending=True)
    p = ordered.softmax(-1)
    cut = running_sums(p) - p >= top_p
    return cut.scatter(1, order, cut)


def _of_largest(logits: torch.Tensor, top_p: float, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what stands behind top_p among the ``count`` largest of each row, and these: [N, count], falling."""
    numbers = -logits.numpy()
    if count < numbers.shape[-1]:
        numbers = np.partition(numbers, count, axis=-1)[:, :count]
    ordered = torch.from_numpy(-np.sort(numbers, axis=-1))
    p = (ordered - logits.logsumexp(-1, keepdim=True)).exp()
    return p.cumsum(-1) - p >= top_p, ordered  # the token that reaches top_p stays


def draw(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the cumulative distribution of a softmax at given uniform numbers.

    First the block of tokens is found, then the token in it, so that only sums of blocks are accumulated over the
    whole vocabulary.

    Args:
        logits: [N, V] float32; -inf is never drawn.
        uniform: [N] in [0, 1).

    Returns:
        Token ids [N], and their log-probabilities [N].
    """
    if (ours := kernels(logits.device)) is not None:
        drawn: tuple[torch.Tensor, torch.Tensor] = ours.draw(logits.contiguous(), uniform)
        return drawn
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    vocabulary = logits.shape[1]
    weights = logits.softmax(-1)  # [N, V]; one kernel, faster than exp alone
    blocked = vocabulary - vocabulary % BLOCK
    sums = weights[:, :blocked].view(len(weights), -1, BLOCK).sum(-1) if blocked else weights[:, :0]
    if blocked < vocabulary:
        sums = torch.cat([sums, weights[:, blocked:].sum(-1, keepdim=True)], dim=1)
    ends = running_sums(sums.to(wide))  # [N, blocks]
    aim = uniform.to(wide)[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, aim, right=True).clamp(max=sums.shape[1] - 1)  # [N, 1]
    start = ends.gather(1, block) - sums.to(wide).gather(1, block)
    places = block * BLOCK + torch.arange(BLOCK, device=logits.device)  # [N, BLOCK]
    inside = weights.gather(1, places.clamp(max=vocabulary - 1)).masked_fill(places >= vocabulary, 0.0)
    passed = (running_sums(inside.to(wide)) + start <= aim).sum(-1)
    # Sums of blocks and sums inside one are rounded differently: never step onto what has no probability.
    numbers = torch.arange(BLOCK, device=logits.device)
    possible = torch.where(inside > 0, numbers, -1)
    behind = torch.where(possible >= passed[:, None], numbers, BLOCK).amin(-1)
    place = torch.where(behind < BLOCK, behind, possible.amax(-1))
    tokens = block[:, 0] * BLOCK + place
    return tokens, (weights.gather(1, tokens[:, None])[:, 0] / ends[:, -1]).log().to(logits.dtype)


def _distinct(prompts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Return the distinct prompts and, for each prompt, which of them it is."""
    numbers: dict[bytes, int] = {}
    which = [numbers.setdefault(prompt.tobytes(), len(numbers)) for prompt in prompts]
    first = dict(zip(reversed(which), reversed(prompts), strict=True))
    return [first[number] for number in range(len(numbers))], which


def _left_pad(prompts: Sequence[np.ndarray], pad_id: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids [B, P] int64, visible [B, P] bool)."""
    width = max(len(p) for p in prompts)
    ids = np.full((len(prompts), width), pad_id, np.int64)
    visible = np.zeros((len(prompts), width), bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        visible[row, width - len(prompt) :] = True
    return sent(ids, device), sent(visible, device)


def _uniforms(seeds: Sequence[int], count: int, device: Any) -> torch.Tensor:
    numbers = np.stack([np.random.default_rng(seed).random(count) for seed in seeds])
    numbers = np.minimum(numbers, 1 - 2.0**-24).astype(np.float32)  # float32 would round the largest to 1
    return sent(numbers, device)
