"""How the ranks of a run talk: what rank 0 says reaches all of them, and a rank that dies or hangs is named.

Calls and results travel as pickles, as torch's own collectives for objects do: the processes of one run trust one
another. Nothing of this reaches a file.
"""

from __future__ import annotations

import functools
import logging
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from steadyrl.backends.fsdp.torchrun import Place, place
from steadyrl.errors import ConfigError, RankError

log = logging.getLogger(__name__)

_FOREVER = timedelta(days=365)  # rank 0 may be busy for long with tasks and judges
_ANSWER_S = 5.0  # a rank that is alive answers a roll call in this time
_LOOK_S = 0.2  # between looks for a roll call
_CALL = "steadyrl/call"
# What gloo and NCCL say when a connection breaks or nothing comes; they raise no type of their own for it.
_BROKEN = ("gloo", "nccl", "connection", "timed out", "timeout", "peer")


class Ranks:
    """All processes of a run.

    Attributes:
        place: Which of them this one is.
        lost: The ranks that died or do not answer; known when an error says so.
    """

    def __init__(self, where: Place, store: Store):
        self.place, self._store, self.lost = where, store, list[int]()
        self._broken, self._left = False, threading.Event()
        self._answering = threading.Thread(target=self._answer, daemon=True)
        dist.init_process_group("gloo", store=store, rank=where.rank, world_size=where.ranks, timeout=_FOREVER)
        if where.ranks > 1:
            self._answering.start()

    def groups(self, device: str, timeout_s: float) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return the group in which weights and gradients are exchanged, and that of everything else.

        Args:
            device: "cpu" or "cuda".
            timeout_s: After it an exchange that is not finished is an error.
        """
        wait = timedelta(seconds=timeout_s)
        self._objects = dist.new_group(backend="gloo", timeout=wait)
        weights = self._objects if device == "cpu" else dist.new_group(backend="nccl", timeout=wait)
        return weights, self._objects

    def say(self, what: object) -> None:
        """Send something to all other ranks, which ``hear`` it.

        Raises:
            ConfigError: It holds a function that other processes cannot find.
        """
        if self.place.ranks == 1:
            return
        try:
            data = pickle.dumps(what)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the algorithm's loss cannot be sent to the other ranks ({error}); make it a function of a module, or "
                "functools.partial of one"
            ) from error
        dist.broadcast(torch.tensor([len(data)]), 0)
        dist.broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0)

    def hear(self) -> Any:
        """Wait for what rank 0 says next, however long it takes."""
        size = torch.zeros(1, dtype=torch.long)
        dist.broadcast(size, 0)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return pickle.loads(data.numpy().tobytes())

    def everywhere(self, mine: object) -> list[Any]:
        """Return what each rank has, in the order of ranks."""
        if self.place.ranks == 1:
            return [mine]
        found: list[Any] = [None] * self.place.ranks
        dist.all_gather_object(found, mine, self._objects)
        return found

    @contextmanager
    def one_after_another(self) -> Iterator[None]:
        """Let the ranks of a machine do something one after another."""
        most = max(self.everywhere(self.place.here_ranks))
        for _ in range(self.place.here):
            dist.barrier(group=self._objects)
        yield
        for _ in range(self.place.here, most):
            dist.barrier(group=self._objects)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what all ranks do together; where one of them is lost, the error says in which phase.

        Raises:
            RankError: A rank died, failed, or does not answer.
        """
        try:
            yield
        except (RuntimeError, KeyboardInterrupt) as error:
            # torchrun ends all processes as soon as one has died, which reaches rank 0 like Ctrl-C.
            if self.place.ranks == 1 or not (isinstance(error, KeyboardInterrupt) or _is_broken(error)):
                raise
            found = self._lost(name, isinstance(error, KeyboardInterrupt))
            if found is None:
                raise
            self._broken = True
            raise RankError(f"{found}; go on from the last checkpoint with --resume") from error

    def failed(self, what: str) -> None:
        """Let the others know why this rank ends."""
        self._store.set(self._key("failed"), what)

    def leave(self) -> None:
        """End the connection to the other ranks; where rank 0 leaves, they end as well."""
        self._left.set()
        if self._answering.is_alive():  # in torch while Python ends, it would abort the process
            self._answering.join(_ANSWER_S)
        if self._broken:
            return
        try:
            if self.place.rank == 0:
                self.say(None)
            dist.destroy_process_group()
        except RuntimeError as error:
            log.warning("another rank was gone before the end: %s", error)

    def _key(self, what: str, rank: int | None = None) -> str:
        return f"steadyrl/{what}/{self.place.rank if rank is None else rank}"

    def _answer(self) -> None:
        """Answer the first roll call; a thread of its own, for the main one may wait for a rank that is gone."""
        store = cast("Any", self._store).clone()  # torch's types lack it
        try:
            while not self._left.wait(_LOOK_S):
                if store.check([_CALL]):
                    store.set(self._key("alive"), "")
                    return
        except RuntimeError as error:  # it ends with the run, and this thread with it
            log.info("rank %d has no store any more: %s", self.place.rank, error)

    def _lost(self, phase: str, interrupted: bool) -> str | None:
        """Call the roll, and return what became of which rank; None where nothing did.

        Args:
            phase: What all of them did.
            interrupted: A signal ended it, and no time that is over.
        """
        others = [rank for rank in range(self.place.ranks) if rank != self.place.rank]
        try:
            self.failed("")
            self._store.set(_CALL, "")
            self._wait([self._key("alive", rank) for rank in others])
            reasons = {rank: self._reason(rank) for rank in others}
            own = [f"rank {rank} failed in '{phase}': {reason}" for rank, reason in reasons.items() if reason]
            self.lost = [rank for rank in others if not self._store.check([self._key("alive", rank)])]
            if own:
                return own[0]
            if self.lost:
                return f"{_ranks(self.lost)} died or does not answer in '{phase}'"
            if interrupted:
                return None
            self._wait([self._key("failed", rank) for rank in others])
            stuck = [rank for rank in others if not self._store.check([self._key("failed", rank)])]
        except RuntimeError:  # the store is kept by torchrun on the first machine
            return f"the first machine is gone in '{phase}'"
        return f"{_ranks(stuck)} is not finished with '{phase}' in time (backend.args.timeout_s)" if stuck else None

    def _wait(self, keys: list[str]) -> None:
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until and not self._store.check(keys):
            time.sleep(_LOOK_S / 4)

    def _reason(self, rank: int) -> str:
        key = self._key("failed", rank)
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""


@functools.cache
def joined() -> Ranks:
    """Return the ranks of this process's run, which it joins when this is first called."""
    where = place()
    if where.ranks == 1:
        return Ranks(where, HashStore())
    store, _, _ = next(rendezvous("env://", timeout=_FOREVER))
    return Ranks(where, store)


def stay() -> None:
    """Let rank 0 alone answer Ctrl-C and its like: it still needs this rank for a last checkpoint."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _BROKEN)


def _ranks(numbers: list[int]) -> str:
    return f"rank {', '.join(map(str, numbers))}"
