"""How the ranks of a run meet and talk: what rank 0 says reaches all of them, and one that is lost is named.

Calls and results travel as pickles, as torch's own collectives for objects do: the processes of one run trust one
another. Nothing of this reaches a file.
"""

from __future__ import annotations

import atexit
import functools
import logging
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, cast

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from steadyrl.backends.fsdp.torchrun import Handler, Noted, Place, noted, place
from steadyrl.core.errors import ConfigError, RankError

log = logging.getLogger(__name__)

_FOREVER = timedelta(days=365)  # rank 0 may be busy for long with tasks and judges
_COMES_S = 600.0  # a rank imports PyTorch in this time
_CONNECT_S = 20.0  # ranks that are there connect in this time; torchrun kills all 30 s after one has died
_ANSWER_S = 5.0  # a rank that is alive answers a roll call in this time
_LOOK_S = 0.2  # between looks for a roll call
_CALL = "steadyrl/call"  # the number of roll calls so far
_ALONE = "while rank 0 worked alone"
# What gloo and NCCL say when a connection breaks or nothing comes; they raise no type of their own for it.
_BROKEN = ("gloo", "nccl", "connection", "timed out", "timeout", "peer")


class Ranks:
    """All processes of a run.

    Attributes:
        place: Which of them this one is.
        lost: The ranks that died or do not answer; known when an error says so.
    """

    def __init__(self, where: Place):
        self.place, self.lost = where, list[int]()
        self._other_ranks = [rank for rank in range(where.ranks) if rank != where.rank]
        self._connected, self._asking, self._left, self._doing = False, False, threading.Event(), _ALONE
        self._gone: RankError | None = None
        self._answering = threading.Thread(target=self._answer, daemon=True)

    def meet(self) -> None:
        """Connect to the other ranks, if that is not done yet.

        Raises:
            RankError: One does not come, or died meanwhile.
        """
        if self._connected:
            return
        if self.place.ranks == 1:
            self._store: Store = HashStore()
            self._connect()
            return
        with noted() as signals:
            self._store, _, _ = next(rendezvous("env://", timeout=_FOREVER))
            self._answering.start()
            if self.place.rank == 0:
                atexit.register(self.leave)
            self._wait_for_others(signals)
            with self.phase("meet"):
                self._connect()
            signals.answer = {number: self._answer_for(before) for number, before in signals.answer.items()}

    def _wait_for_others(self, signals: Noted) -> None:
        """Wait until all are there; once torchrun ends this process, only as long as one that lives takes to come."""
        self._store.set(self._key("here"), "")
        until = time.monotonic() + _COMES_S
        while missing := [rank for rank in self._other_ranks if not self._store.check([self._key("here", rank)])]:
            if signals.came:
                until = min(until, time.monotonic() + _ANSWER_S)
            if time.monotonic() > until:
                self.lost = missing
                raise RankError(f"{_ranks(missing)} died or did not come in 'meet'; start the run again")
            time.sleep(_LOOK_S)

    def _connect(self) -> None:
        where, wait = self.place, timedelta(seconds=_CONNECT_S)
        dist.init_process_group("gloo", store=self._store, rank=where.rank, world_size=where.ranks, timeout=wait)
        self._talk = dist.new_group(backend="gloo", timeout=_FOREVER)
        self._connected = True

    def _answer_for(self, before: Handler) -> Handler:
        """Return how a signal is answered from now on.

        torchrun ends all ranks when one has died, and rank 0 says which; it alone answers other signals, for it still
        needs the others for a last checkpoint.
        """
        if self.place.rank > 0 or not callable(before):
            return signal.SIG_IGN if self.place.rank > 0 else before

        def answer(number: int, frame: FrameType | None) -> None:
            if self._asking:  # the error comes that says it
                return
            self._require_all(broken=False)
            before(number, frame)

        return answer

    def groups(self, device: str, timeout_s: float) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return the group of weights and gradients, and that of all else; an exchange taking longer is an error."""
        wait = timedelta(seconds=timeout_s)
        self._objects = dist.new_group(backend="gloo", timeout=wait)
        # Of shares that are kept in the memory of the machine, norms are summed there.
        weights = self._objects if device == "cpu" else dist.new_group(backend="cpu:gloo,cuda:nccl", timeout=wait)
        return weights, self._objects

    def say(self, what: object) -> None:
        """Send something to all other ranks, which ``hear`` it.

        Raises:
            ConfigError: It holds a function that other processes cannot find.
        """
        if self.place.ranks == 1:
            return
        try:
            dist.broadcast_object_list([what], 0, self._talk)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the algorithm's loss cannot be sent to the other ranks ({error}); make it a function of a module, or "
                "functools.partial of one"
            ) from error

    def hear(self) -> Any:
        """Wait for what rank 0 says next, however long it takes."""
        objects: list[Any] = [None]
        dist.broadcast_object_list(objects, 0, self._talk)
        return objects[0]

    def everywhere(self, mine: object) -> list[Any]:
        """Return what each rank has, in the order of ranks."""
        if self.place.ranks == 1:
            return [mine]
        objects: list[Any] = [None] * self.place.ranks
        dist.all_gather_object(objects, mine, self._objects)
        return objects

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
        self._doing = f"in '{name}'"
        try:
            yield
        except RankError:
            raise
        except Exception as error:  # a lost rank may show as any error of the work of the others
            if self._gone is not None:  # raised by the answer to a signal, and caught by a library that was at work
                raise self._gone from error
            broken = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _BROKEN)
            if not isinstance(error, RuntimeError) or self.place.ranks == 1 or not broken:
                raise
            self._require_all(broken=True, because=error)
            raise
        finally:
            self._doing = _ALONE

    def _require_all(self, broken: bool, because: BaseException | None = None) -> None:
        self._asking = True
        try:
            failure = self._lost(broken)
        finally:
            self._asking = False
        if failure is not None:
            self._connected = False
            self._gone = RankError(f"{failure}; go on from the last checkpoint with --resume")
            raise self._gone from because

    def failed(self, what: str) -> None:
        """Let the others know why this rank ends."""
        self._store.set(self._key("failed"), what)

    def leave(self) -> None:
        """End the connection to the other ranks; where rank 0 leaves, they end as well."""
        self._left.set()
        if self._answering.is_alive():  # in torch while Python ends, it would abort the process
            self._answering.join(_ANSWER_S)
        if not self._connected:
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
        """Answer roll calls; a thread of its own, for the main one may wait for a rank that is gone."""
        store, heard = cast("Any", self._store).clone(), 0  # torch's types lack it
        try:
            while not self._left.wait(_LOOK_S):
                if (calls := store.add(_CALL, 0)) > heard:
                    heard = calls
                    store.set(self._key("alive"), str(heard))
        except RuntimeError as error:  # it ends with the run, and this thread with it
            log.info("rank %d has no store any more: %s", self.place.rank, error)

    def _lost(self, broken: bool) -> str | None:
        """Call the roll, and return what became of which rank, and in which phase; None where nothing did.

        Args:
            broken: An exchange broke or took too long, so that one who answers may be stuck.
        """
        doing = self._doing
        try:
            if broken:
                self.failed("")
            call = self._store.add(_CALL, 1)
            self.lost = self._without("alive", lambda heard: int(heard) >= call)
            reasons = {rank: self._entry("failed", rank) for rank in self._other_ranks}
            own = [f"rank {rank} failed {doing}: {reason}" for rank, reason in reasons.items() if reason]
            if own:
                return own[0]
            if self.lost:
                return f"{_ranks(self.lost)} died or does not answer {doing}"
            stuck = self._without("failed", lambda reason: True) if broken else []
        except RuntimeError:  # the store is kept by torchrun on the first machine
            return f"the first machine is gone {doing}"
        return f"{_ranks(stuck)} is not finished {doing} in time (backend.args.timeout_s)" if stuck else None

    def _without(self, what: str, fits: Callable[[str], bool]) -> list[int]:
        """Return the other ranks that do not say something that fits in time."""
        until, left = time.monotonic() + _ANSWER_S, list(self._other_ranks)
        while left and time.monotonic() < until:
            left = [rank for rank in left if (entry := self._entry(what, rank)) is None or not fits(entry)]
            time.sleep(_LOOK_S / 4)
        return left

    def _entry(self, what: str, rank: int) -> str | None:
        key = self._key(what, rank)
        return str(self._store.get(key).decode()) if self._store.check([key]) else None


@functools.cache
def joined() -> Ranks:
    """Return the ranks of this process's run; see ``Ranks.meet``."""
    return Ranks(place())


def _ranks(numbers: list[int]) -> str:
    return f"rank {', '.join(map(str, numbers))}"
