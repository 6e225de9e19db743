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

_NO_TIMEOUT = timedelta(days=365)  # rank 0 may be busy for long with tasks and judges
_START_S = 600.0  # a rank imports PyTorch in this time
_CONNECT_S = 20.0  # ranks that are there connect in this time; torchrun kills all 30 s after one has died
_ANSWER_S = 5.0  # a rank that is alive answers a roll call in this time
_POLL_S = 0.2  # between looks for a roll call
_ROLL_CALL = "steadyrl/call"  # the number of roll calls so far
_ALONE = "while rank 0 worked alone"
# What gloo and NCCL say when a connection breaks or nothing comes; they raise no type of their own for it.
_BROKEN = ("gloo", "nccl", "connection", "timed out", "timeout", "peer")


class Ranks:
    """All processes of a run.

    Attributes:
        place: Which of them this one is.
        lost: The ranks that died or do not answer; known when an error says so.
    """

    def __init__(self, own_place: Place):
        self.place, self.lost = own_place, list[int]()
        self._other_ranks = [rank for rank in range(own_place.ranks) if rank != own_place.rank]
        self._connected, self._calling_roll, self._leaving, self._phase = False, False, threading.Event(), _ALONE
        self._rank_error: RankError | None = None
        self._roll_thread = threading.Thread(target=self._answer_roll_calls, daemon=True)

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
            self._store, _, _ = next(rendezvous("env://", timeout=_NO_TIMEOUT))
            self._roll_thread.start()
            if self.place.rank == 0:
                atexit.register(self.leave)
            self._wait_for_others(signals)
            with self.phase("meet"):
                self._connect()
            signals.handlers = {
                number: self._handler_after_meeting(old_handler) for number, old_handler in signals.handlers.items()
            }

    def _wait_for_others(self, signals: Noted) -> None:
        """Wait until all are there; once torchrun ends this process, only as long as one that lives takes to come."""
        self._store.set(self._key("here"), "")
        deadline = time.monotonic() + _START_S
        while missing := [rank for rank in self._other_ranks if not self._store.check([self._key("here", rank)])]:
            if signals.received:
                deadline = min(deadline, time.monotonic() + _ANSWER_S)
            if time.monotonic() > deadline:
                self.lost = missing
                raise RankError(f"{_rank_names(missing)} died or did not come in 'meet'; start the run again")
            time.sleep(_POLL_S)

    def _connect(self) -> None:
        rank, world_size, timeout = self.place.rank, self.place.ranks, timedelta(seconds=_CONNECT_S)
        dist.init_process_group("gloo", store=self._store, rank=rank, world_size=world_size, timeout=timeout)
        self._control_group = dist.new_group(backend="gloo", timeout=_NO_TIMEOUT)
        self._connected = True

    def _handler_after_meeting(self, old_handler: Handler) -> Handler:
        # torchrun ends all ranks when one has died, and rank 0 says which; it alone answers other signals, for it still
        # needs the others for a last checkpoint.
        if self.place.rank > 0 or not callable(old_handler):
            return signal.SIG_IGN if self.place.rank > 0 else old_handler

        def answer(number: int, frame: FrameType | None) -> None:
            if self._calling_roll:  # the error comes that says it
                return
            self._require_all(broken=False)
            old_handler(number, frame)

        return answer

    def groups(self, device: str, timeout_s: float) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return the group of weights and gradients, and that of all else; an exchange taking longer is an error."""
        wait = timedelta(seconds=timeout_s)
        self._object_group = dist.new_group(backend="gloo", timeout=wait)
        # Of shares that are kept in the memory of the machine, norms are summed there.
        weights = self._object_group if device == "cpu" else dist.new_group(backend="cpu:gloo,cuda:nccl", timeout=wait)
        return weights, self._object_group

    def broadcast(self, message: object) -> None:
        """Send something to all other ranks, which ``receive`` it.

        Raises:
            ConfigError: It holds a function that other processes cannot find.
        """
        if self.place.ranks == 1:
            return
        try:
            dist.broadcast_object_list([message], 0, self._control_group)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the algorithm's loss cannot be sent to the other ranks ({error}); make it a function of a module, or "
                "functools.partial of one"
            ) from error

    def receive(self) -> Any:
        """Wait for what rank 0 says next, however long it takes."""
        objects: list[Any] = [None]
        dist.broadcast_object_list(objects, 0, self._control_group)
        return objects[0]

    def all_gather(self, local: object) -> list[Any]:
        """Return what each rank has, in the order of ranks."""
        if self.place.ranks == 1:
            return [local]
        objects: list[Any] = [None] * self.place.ranks
        dist.all_gather_object(objects, local, self._object_group)
        return objects

    @contextmanager
    def one_after_another(self) -> Iterator[None]:
        """Let the ranks of a machine do something one after another."""
        max_ranks = max(self.all_gather(self.place.local_ranks))
        for _ in range(self.place.local_rank):
            dist.barrier(group=self._object_group)
        yield
        for _ in range(self.place.local_rank, max_ranks):
            dist.barrier(group=self._object_group)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what all ranks do together; where one of them is lost, the error says in which phase.

        Raises:
            RankError: A rank died, failed, or does not answer.
        """
        self._phase = f"in '{name}'"
        try:
            yield
        except RankError:
            raise
        except Exception as error:  # a lost rank may show as any error of the work of the others
            if self._rank_error is not None:  # a handler of signals raised it, and a library at work caught it
                raise self._rank_error from error
            broken = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _BROKEN)
            if not isinstance(error, RuntimeError) or self.place.ranks == 1 or not broken:
                raise
            self._require_all(broken=True, because=error)
            raise
        finally:
            self._phase = _ALONE

    def _require_all(self, broken: bool, because: BaseException | None = None) -> None:
        self._calling_roll = True
        try:
            failure = self._call_roll(broken)
        finally:
            self._calling_roll = False
        if failure is not None:
            self._connected = False
            self._rank_error = RankError(f"{failure}; go on from the last checkpoint with --resume")
            raise self._rank_error from because

    def failed(self, reason: str) -> None:
        """Let the others know why this rank ends."""
        self._store.set(self._key("failed"), reason)

    def leave(self) -> None:
        """End the connection to the other ranks; where rank 0 leaves, they end as well."""
        self._leaving.set()
        if self._roll_thread.is_alive():  # in torch while Python ends, it would abort the process
            self._roll_thread.join(_ANSWER_S)
        if not self._connected:
            return
        try:
            if self.place.rank == 0:
                self.broadcast(None)
            dist.destroy_process_group()
        except RuntimeError as error:
            log.warning("another rank was gone before the end: %s", error)

    def _key(self, topic: str, rank: int | None = None) -> str:
        return f"steadyrl/{topic}/{self.place.rank if rank is None else rank}"

    def _answer_roll_calls(self) -> None:
        # On a thread of its own, for the main one may wait for a rank that is gone.
        store, last_call = cast("Any", self._store).clone(), 0  # torch's types lack it
        try:
            while not self._leaving.wait(_POLL_S):
                if (calls := store.add(_ROLL_CALL, 0)) > last_call:
                    last_call = calls
                    store.set(self._key("alive"), str(last_call))
        except RuntimeError as error:  # it ends with the run, and this thread with it
            log.info("rank %d has no store any more: %s", self.place.rank, error)

    def _call_roll(self, broken: bool) -> str | None:
        """Call the roll, and return what became of which rank, and in which phase; None where nothing did.

        Args:
            broken: An exchange broke or took too long, so that one who answers may be stuck.
        """
        phase = self._phase
        try:
            if broken:  # without a reason: this rank has left the phase, and one that never says so is stuck in it
                self.failed("")
            call = self._store.add(_ROLL_CALL, 1)
            self.lost = self._silent_ranks("alive", lambda heard: int(heard) >= call)
            reasons = {rank: self._value("failed", rank) for rank in self._other_ranks}
            failures = [f"rank {rank} failed {phase}: {reason}" for rank, reason in reasons.items() if reason]
            if failures:
                return failures[0]
            if self.lost:
                return f"{_rank_names(self.lost)} died or does not answer {phase}"
            stuck = self._silent_ranks("failed", lambda reason: True) if broken else []
        except RuntimeError:  # the store is kept by torchrun on the first machine
            return f"the first machine is gone {phase}"
        return f"{_rank_names(stuck)} is not finished {phase} in time (backend.args.timeout_s)" if stuck else None

    def _silent_ranks(self, topic: str, fits: Callable[[str], bool]) -> list[int]:
        """Return the other ranks whose value under a topic does not fit in time, or that have none."""
        deadline, silent = time.monotonic() + _ANSWER_S, list(self._other_ranks)
        while silent and time.monotonic() < deadline:
            silent = [rank for rank in silent if (value := self._value(topic, rank)) is None or not fits(value)]
            time.sleep(_POLL_S / 4)
        return silent

    def _value(self, topic: str, rank: int) -> str | None:
        key = self._key(topic, rank)
        return str(self._store.get(key).decode()) if self._store.check([key]) else None


@functools.cache
def joined() -> Ranks:
    """Return the ranks of this process's run; see ``Ranks.meet``."""
    return Ranks(place())


def _rank_names(numbers: list[int]) -> str:
    return f"rank {', '.join(map(str, numbers))}"
