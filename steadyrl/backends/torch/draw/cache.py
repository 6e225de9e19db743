"""Keys and values of a batch that is being decoded, and of single sequences that were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from steadyrl.backends.torch.read.shared import Prompts, pays

Layers = Mapping[int, torch.Tensor]  # one tensor for each layer that has attention, by its number
DEAD = 0.25  # share of the filled columns from which on those that no row sees are dropped when prompts enter


@dataclass(frozen=True)
class Prefix:
    """Keys and values of one sequence."""

    keys: Layers  # [kv_heads, N, head_dim] each
    values: Layers  # as keys

    def __len__(self) -> int:
        """Return the number of tokens."""
        return next(iter(self.keys.values())).shape[1]


@dataclass
class Cache:
    """Keys and values of all layers, [B, kv_heads, S, head_dim] each, and which columns hold something."""

    visible: torch.Tensor | None
    """[B, S] bool, False on padding; None where no row has any."""
    used: int
    """Columns that are filled."""
    positions: torch.Tensor
    """[B] position of each row's next token."""
    length: int
    """S."""
    keys: Layers = field(default_factory=dict)
    values: Layers = field(default_factory=dict)
    """Filled by the first pass through the model, which says their shapes."""
    shares: bool = True
    """Whether prompts may be shared: all layers see them whole."""
    rotated: set[int] = field(default_factory=set)
    """Layers whose attention is given what their rotation returned, and nothing else; filled as keys are."""
    prompts: Prompts | None = None
    """What the rows continue, where prompts are shared; keys and values are then of what follows them."""
    changes: int = 0
    """How often rows or columns were changed in place."""

    def columns(self) -> torch.Tensor:
        """Return the positions of columns, [B, S] or [1, S] int64; where nothing is visible they say nothing."""
        if self.visible is not None:
            return (self.visible.cumsum(1) - 1).clamp(min=0)
        return torch.arange(self.length, device=self.positions.device)[None]

    def spread(self, owner: torch.Tensor) -> None:
        """Continue prompt ``owner[b]`` in row b; a prompt may be continued many times.

        Args:
            owner: [B] int64, rows of the cache as it is.
        """
        first, width = next(iter(self.keys.values())), self.used
        if not self.shares or not pays(len(first), len(owner), width, first.dtype, first.device):
            self.take(owner)
            return
        visible = None if self.visible is None else self.visible[:, :width]
        keys, values = self._mapped(lambda x: x[:, :, :width])
        self.prompts = Prompts.of_rows(keys, values, visible, owner)
        self.length -= width
        self.keys, self.values = self._mapped(lambda x: x.new_zeros(len(owner), x.shape[1], self.length, x.shape[3]))
        self.visible, self.used, self.positions = None, 0, self.positions[owner]

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows only; a row may be taken several times."""
        if self.prompts is not None:
            self.prompts = self.prompts.take(rows)
        self.keys, self.values = self._mapped(lambda x: x.index_select(0, rows))
        self.positions = self.positions[rows]
        if self.visible is not None:
            self.visible = self.visible[rows]

    def enter(self, rows: torch.Tensor, prompts: Cache, owner: torch.Tensor, least: int) -> None:
        """Let prompts take the place of rows that have ended: in place, so that a captured step goes on.

        Args:
            rows: [R] int64, those that have ended.
            prompts: Has read them, and holds nothing else.
            owner: [R] int64, the row of ``prompts`` that each of them continues.
            least: Columns that later prompts need before the next token, at most.
        """
        width = 0 if self.prompts is not None else prompts.used
        if self.visible is None:
            self.visible = self.positions.new_ones(len(self.positions), self.length, dtype=torch.bool)
        self.visible[rows, : self.used] = False
        self.compact(max(least, width), DEAD)
        columns = slice(self.used - width, self.used)
        if self.prompts is not None:
            visible = None if prompts.visible is None else prompts.visible[:, : prompts.used]
            keys, values = prompts._mapped(lambda x: x[:, :, : prompts.used])
            self.prompts = self.prompts.joined(rows, keys, values, visible, owner)
        else:
            self.visible[rows, columns] = True if prompts.visible is None else prompts.visible[owner, :width]
            for ours, theirs in ((self.keys, prompts.keys), (self.values, prompts.values)):
                for layer, x in theirs.items():
                    ours[layer][rows, :, columns] = x[owner, :, :width]
        self.positions[rows] = prompts.positions[owner]
        self.changes += 1

    def compact(self, least: int, share: float = 0.0) -> None:
        """Drop the first columns, which no row sees, in place.

        Args:
            least: So many columns stay before the next token, at least; where prompts are shared, none need be there.
            share: They are dropped only if they are more than this share of the filled ones.
        """
        if self.visible is None:  # all is seen
            return
        filled = self.visible[:, : self.used].any(0).nonzero()  # [n, 1], columns that some row sees
        end = max(0 if self.prompts is not None else least, self.used - int(filled[0]) if len(filled) else 0)
        unseen = self.used - end
        if unseen <= share * self.used:
            return
        self.visible = torch.cat([self.visible[:, unseen:], self.visible.new_ones(len(self.visible), unseen)], dim=1)
        for x in (*self.keys.values(), *self.values.values()):
            x[:, :, :end] = x[:, :, unseen : self.used].clone()
        self.used = end
        self.changes += 1

    def prefix(self, row: int, length: int) -> Prefix:
        """Return a copy of a row's first ``length`` tokens, without the holes of its padding."""
        filled = torch.ones(self.used, dtype=torch.bool, device=self.positions.device)
        if self.visible is not None:
            filled = self.visible[row, : self.used]
        columns = filled.nonzero()[:, 0]  # [N], of the row
        keys, values = self._mapped(lambda x: x[row].index_select(1, columns)[:, :length])
        shared = self.prompts
        if shared is None:
            return Prefix(keys, values)
        prompt = int(shared.owner[row])
        prompt_columns = torch.arange(shared.length, device=columns.device)  # [P], of its prompt
        if shared.closed is not None:
            prompt_columns = (shared.closed[prompt, 0] == 0).nonzero()[:, 0]

        def behind_prompt(prompts: Layers, rows: Layers) -> Layers:
            begun = {layer: x[prompt].index_select(1, prompt_columns) for layer, x in prompts.items()}
            return {layer: torch.cat([begun[layer], x], dim=1)[:, :length] for layer, x in rows.items()}

        return Prefix(behind_prompt(shared.keys, keys), behind_prompt(shared.values, values))

    def _mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Layers, Layers]:
        keys, values = ({layer: change(x) for layer, x in layers.items()} for layers in (self.keys, self.values))
        return keys, values
