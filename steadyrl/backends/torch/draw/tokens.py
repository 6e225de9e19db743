"""The tokens that are drawn for every prompt of a call, on the device until a completion is whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from steadyrl.backends.stops import StopStrings
from steadyrl.backends.torch.device import to_device
from steadyrl.core.types import Completion, Sampling


class Tokens:
    """What was drawn so far, for N prompts.

    Each prompt has a uniform number for each of its tokens, from its own seed: what is drawn does not depend on the row
    that the prompt has in a batch, nor on the step at which it began.

    Attributes:
        sampling: How tokens are drawn.
        uniforms: [N, max_new_tokens].
        ended: [N] bool, by an end token or a stop string.
    """

    def __init__(
        self,
        sampling: Sampling,
        seeds: Sequence[int],
        end_ids: Sequence[int],
        stops: StopStrings | None,
        vocabulary: int,
        device: torch.device,
    ):
        self.sampling, self._stops = sampling, stops
        uniforms = np.stack([np.random.default_rng(seed).random(sampling.max_new_tokens) for seed in seeds])
        # float32 would round the largest to 1
        self.uniforms = to_device(np.minimum(uniforms, 1 - 2.0**-24).astype(np.float32), device)
        self._ids = torch.full_like(self.uniforms, -1, dtype=torch.long)  # -1 after the end
        self._logprobs = torch.zeros_like(self.uniforms)
        self.ended = torch.zeros(len(self.uniforms), dtype=torch.bool, device=device)
        self._is_end = torch.zeros(vocabulary, dtype=torch.bool)  # [V]
        self._is_end[[end for end in end_ids if end < vocabulary]] = True
        self._is_end = self._is_end.to(device)
        self._allowed = _Allowed(len(self.uniforms))

    def add(
        self, rows: torch.Tensor, ages: torch.Tensor, active: torch.Tensor, choice: tuple[torch.Tensor, ...]
    ) -> None:
        """Note one more token of some prompts.

        Args:
            rows: [B] int64, the prompts.
            ages: [B] int64, how many tokens each has.
            active: [B] bool, False where the completion has ended before: that token is none.
            choice: The tokens [B], their log-probs [B], and what they were drawn from [B, V], -inf where it was cut.
        """
        ids, logprobs, warped = choice
        self._ids[rows, ages] = torch.where(active, ids, -1)
        self._logprobs[rows, ages] = logprobs
        if self.sampling.truncates:
            self._allowed.add(rows, active, warped)
        self.ended[rows] |= self._is_end[ids]

    def look(self, rows: torch.Tensor, ages: torch.Tensor, new: int) -> None:
        """Bring to the host what truncation left, and end the completions that hold a stop string.

        Args:
            rows: [B] int64, the prompts that were drawn for.
            ages: [B] int64, how many tokens each has by now.
            new: How many of these were drawn since the last look, at most.
        """
        self._allowed.take()
        if self._stops is not None:
            self._stop(rows, ages, new, self._stops)

    def _stop(self, rows: torch.Tensor, ages: torch.Tensor, new: int, stops: StopStrings) -> None:
        """End prompts at the first token that completes a stop string, and take back what was drawn after it."""
        width = new - 1 + stops.reach
        columns = ages[:, None] - width + torch.arange(width, device=rows.device)  # [B, width]
        recent = self._ids[rows[:, None], columns.clamp(min=0)].masked_fill(columns < 0, -1).cpu().numpy()
        last = np.full(len(recent), width)  # columns beyond it are taken back
        for column in range(width - new, width):
            live = np.flatnonzero((recent[:, column] >= 0) & (last > column))
            texts = (ids[ids >= 0] for ids in recent[live, max(0, column + 1 - stops.reach) : column + 1])
            last[live[np.array(stops.ended(texts), bool)]] = column
        stopped = np.flatnonzero(last < width)  # rows of the batch
        if stopped.size:
            stopped_rows = to_device(stopped, rows.device)
            prompts, end_column = rows[stopped_rows], columns[stopped_rows, to_device(last[stopped], rows.device)]
            behind = torch.arange(self._ids.shape[1], device=rows.device) > end_column[:, None]  # [n, max_new_tokens]
            self._ids[prompts] = self._ids[prompts].masked_fill(behind, -1)
            self.ended[prompts] = True

    def completions(self, numbers: Sequence[int]) -> list[Completion]:
        """Return what was drawn for some prompts, by their numbers."""
        rows = to_device(np.array(numbers), self.ended.device)
        all_ids, logprobs = self._ids[rows].cpu().numpy(), self._logprobs[rows].cpu().numpy()
        completions = []
        for row, (number, ended) in enumerate(zip(numbers, self.ended[rows].tolist(), strict=True)):
            length = int((all_ids[row] >= 0).sum())
            ids = all_ids[row, :length].astype(np.int32)
            kept_ids = tuple(self._allowed.ids[number][:length]) if self.sampling.truncates else None
            completions.append(Completion(ids, logprobs[row, :length].copy(), "stop" if ended else "length", kept_ids))
        return completions


class _Allowed:
    """The ids that truncation left for each token of each row; their masks stay on the device until they are taken."""

    def __init__(self, rows: int):
        self.ids: list[list[np.ndarray]] = [[] for _ in range(rows)]
        self._masks: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, rows: torch.Tensor, active: torch.Tensor, warped: torch.Tensor) -> None:
        """Note what was left [B, V] for one more token of the active rows."""
        self._masks.append((rows, (warped > -torch.inf) & active[:, None]))

    def take(self) -> None:
        """Bring the ids to the host."""
        if not self._masks:
            return
        # Of all tokens at once, token by token: the host waits for the device a few times only.
        rows, masks = (
            tensors[0] if len(tensors) == 1 else torch.cat(tensors) for tensors in zip(*self._masks, strict=True)
        )
        self._masks.clear()
        prompts, id_pairs = rows.tolist(), masks.nonzero().cpu().numpy()  # [n, 2], (row of the masks, id)
        starts = np.flatnonzero(np.diff(id_pairs[:, 0], prepend=-1))  # where the ids of the next token begin
        ids_by_token = np.split(id_pairs[:, 1].astype(np.int32), starts)[1:]
        for token_row, ids in zip(id_pairs[starts, 0], ids_by_token, strict=True):
            self.ids[prompts[token_row]].append(ids)
