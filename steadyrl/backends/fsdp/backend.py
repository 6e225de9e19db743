"""Rank 0's side and the others': rank 0 has the loop and the backend; whatever it asks of it, all ranks do together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from steadyrl.backends.fsdp.ranks import Ranks, joined
from steadyrl.backends.fsdp.worker import Worker
from steadyrl.backends.limits import require_room
from steadyrl.core import config as configs
from steadyrl.core.algorithm import open_algorithm
from steadyrl.core.config import Config
from steadyrl.core.errors import RankError, exception_line
from steadyrl.core.protocols import Algorithm, Stats, Update
from steadyrl.core.types import Batch, Completion, Sampling, TokenScores

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class FsdpBackend:
    """See Backend; every method is called on all ranks."""

    def __init__(self, worker: Worker, ranks: Ranks):
        self._worker, self._ranks = worker, ranks
        self.tokenizer = worker.backend.tokenizer
        self._description = worker.describe()
        self._interrupted = ""

    def describe(self) -> dict[str, object]:
        """Return what run.json records of the model."""
        return self._description

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        context: Any = self._description["context"]
        require_room(context, max(map(len, prompts), default=0), sampling.max_new_tokens)  # before others are asked
        return self._on_all_ranks(self._worker.generate, prompts, sampling, seeds)

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""
        return self._on_all_ranks(self._worker.score, batch, sampling, needs)

    def step(self, batch: Batch, update: Update) -> Stats:
        """See Backend."""
        return self._on_all_ranks(self._worker.step, batch, update)

    def save(self, folder: Path) -> None:
        """See Backend."""
        self._on_all_ranks(self._worker.save, folder.absolute())

    def load(self, folder: Path) -> None:
        """See Backend."""
        self._on_all_ranks(self._worker.load, folder.absolute())

    def check_reference(self, folder: Path) -> None:
        """See Referring."""
        self._worker.check_reference(folder)

    def _on_all_ranks(self, method: Callable[..., Result], *args: Any) -> Result:
        if self._interrupted:
            raise RankError(
                f"the ranks were cut off in '{self._interrupted}'; go on from the last checkpoint with --resume"
            )
        name = method.__name__
        with self._ranks.phase(name):
            self._ranks.broadcast((name, args))
            self._interrupted = name  # until it is done: after an interrupt the others may wait for what never comes
            result = method(*args)
        self._interrupted = ""
        return result


def lead(config: Config, algorithm: Algorithm) -> FsdpBackend:
    """Build the backend on all ranks; see plugin.create."""
    ranks = joined()
    ranks.meet()
    with ranks.phase("build"):
        ranks.broadcast(configs.dump(config))
        return FsdpBackend(Worker(config, algorithm, ranks), ranks)


def follow() -> int:
    """Do what rank 0 says until it ends; see plugin.follow."""
    ranks = joined()
    worker: Worker | None = None
    try:
        ranks.meet()
        while True:
            with ranks.phase("waiting for rank 0"):
                message = ranks.receive()
            if message is None:
                ranks.leave()
                return 0
            if worker is None:
                with ranks.phase("build"):
                    config = configs.resolve(message)
                    algorithm = open_algorithm(config.algorithm.name, config.algorithm.args)
                    worker = Worker(config, algorithm, ranks)
                continue
            name, args = message
            with ranks.phase(name):
                getattr(worker, name)(*args)
    except RankError as error:
        if 0 in ranks.lost:  # otherwise rank 0 says it
            log.error("error: %s", error)
        return 2
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        ranks.failed(exception_line(error))
        raise
