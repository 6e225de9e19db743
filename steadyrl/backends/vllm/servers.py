"""One server or several: all are given the same weights, rows go round them, and one that fails is left out.

What a failed server had finished is kept, and its other rows go to the rest. It is asked again before the next weights
are given out. The last one is never left out: its failure ends the run.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass, field

from steadyrl.backends.vllm.client import VllmClient
from steadyrl.backends.vllm.http import ServerDown
from steadyrl.backends.vllm.parity import Gaps
from steadyrl.backends.vllm.settings import VllmSettings
from steadyrl.backends.vllm.transfer import NcclTransfer
from steadyrl.backends.vllm.untied import HEAD
from steadyrl.core.counting.count import tell
from steadyrl.core.errors import EngineError
from steadyrl.core.types import Completion

log = logging.getLogger(__name__)


@dataclass
class Server:
    """One server, and what is known of it."""

    client: VllmClient
    base: str = ""
    """Name of the model that it serves, "" before it has answered."""
    model: str = ""
    """What completions are asked of: the base model or an adapter."""
    version: str = ""
    """The name of the weights that it was given, "" where it keeps none."""
    budget: int = 0
    """Tokens of prompts that it may be sent at the same time, 0 for any number."""
    own_head: bool | None = None
    """Whether it computes on a CPU and its head shares no weights with its embedding; None on a GPU."""
    nccl: bool = False
    """Whether it takes weights over by NCCL."""
    transfer: NcclTransfer | None = None
    """Its group, once it has one."""
    gaps: Gaps = field(default_factory=Gaps)
    """How far its log-probs were from the trainer's after each push."""
    slowed: bool = False
    """Whether it was said that it is sent fewer requests at a time."""
    out: bool = False
    lost: bool = False
    """Whether that is for good: what does not take weights over would not do so later."""


class Servers:
    """All servers of a run."""

    def __init__(self, settings: VllmSettings, start_command: str):
        """Connect to them.

        Raises:
            EngineError: None answers, or one of them serves another model.
        """
        self._wanted, self._requests = settings.model, settings.requests
        self._all = [Server(VllmClient(url, settings.timeout_s, start_command)) for url in settings.urls()]
        try:
            self.for_each(self._connect)
        finally:
            self.close()

    def here(self) -> list[Server]:
        """Return those that are not left out, at least one."""
        return [server for server in self._all if not server.out]

    def for_each(self, do: Callable[[Server], None]) -> None:
        """Do something with every server that is not left out, with all at the same time.

        Raises:
            EngineError: One refuses, or none is left.
        """
        here = self.here()
        with ThreadPoolExecutor(len(here)) as pool:
            jobs = [pool.submit(do, server) for server in here]
        for server, job in zip(here, jobs, strict=True):
            try:
                job.result()
            except ServerDown as error:
                self.leave_out(server, error)

    def draw(
        self, rows: int, tokens: int, draw_row: Callable[[Server, int], Completion]
    ) -> list[tuple[Completion, Server]]:
        """Draw rows of up to so many tokens, each from one of the servers; ``draw_row`` is called from several threads.

        Returns:
            A completion per row, and the server that it is from.

        Raises:
            EngineError: A server refuses, or none is left.
        """
        done: dict[int, tuple[Completion, Server]] = {}
        number = itertools.count(1)
        while len(done) < rows:
            left, here = [row for row in range(rows) if row not in done], self.here()
            with ThreadPoolExecutor(len(here)) as pool:
                shares = [
                    pool.submit(
                        copy_context().run,  # what is counted there is heard here
                        self._draw_share,
                        server,
                        left[at :: len(here)],
                        tokens,
                        draw_row,
                        lambda: tell("completions", next(number), rows),
                    )
                    for at, server in enumerate(here)
                ]
            for server, share in zip(here, shares, strict=True):
                finished, failure = share.result()
                done |= {row: (completion, server) for row, completion in finished.items()}
                if failure is not None:
                    self.leave_out(server, failure)
        return [done[row] for row in range(rows)]

    def leave_out(self, server: Server, why: EngineError) -> None:
        """Go on without a server, and say so.

        Raises:
            EngineError: It is the last one.
        """
        if len(self.here()) == 1:
            raise why
        server.out = True
        log.warning("%s; it is left out, %d of %d servers go on", why, len(self.here()), len(self._all))

    def ask_again(self) -> None:
        """Take those back that were left out and answer again."""
        for server in self._all:
            if not server.out or server.lost:
                continue
            try:
                self._connect(server)
            except ServerDown:
                continue
            server.out = False
            log.warning("the vLLM server at %s answers again and takes part", server.client.url)

    def close(self) -> None:
        """Close all connections; later requests open new ones."""
        for server in self._all:
            server.client.http.close()

    def _connect(self, server: Server) -> None:
        names = server.client.served_models()
        if self._wanted and self._wanted not in names:
            raise EngineError(
                f"sampler.args.model = '{self._wanted}' is not served at {server.client.url}; expected one of: "
                f"{', '.join(names)}"
            )
        server.base = server.model = self._wanted or names[0]
        settings = server.client.settings()
        server.nccl = settings.get("weight_transfer_config", {}).get("backend") == "nccl"
        if settings.get("device_config", {}).get("device") == "cpu":
            server.budget = int(settings.get("scheduler_config", {}).get("max_num_batched_tokens", 0))
            server.own_head = server.client.has_weights(HEAD)

    def _at_once(self, server: Server, tokens: int) -> int:
        """Return how many completions a server may be asked for at the same time.

        vLLM on a CPU dies where it reads a prompt with a seed in parts, for torch's generators there cannot be set
        back (0.32.0: vllm/v1/worker/gpu_model_runner.py, ``set_offset``). It reads in parts what exceeds its budget.
        """
        if not server.budget:
            return self._requests
        fitting = server.budget // tokens
        where = f"the vLLM server at {server.client.url} computes on a CPU and dies of a prompt that it reads in parts"
        if not fitting:
            raise EngineError(
                f"{where}: a prompt and its completion take up to {tokens} tokens, and it reads {server.budget} at a "
                f"time; start it with --max-num-batched-tokens {tokens * self._requests}"
            )
        if fitting < self._requests and not server.slowed:
            server.slowed = True
            log.warning(
                "%s: it is sent %d requests at a time instead of %d; --max-num-batched-tokens %d allows all", where,
                fitting, self._requests, tokens * self._requests,
            )  # fmt: skip
        return min(fitting, self._requests)

    def _draw_share(
        self,
        server: Server,
        rows: Sequence[int],
        tokens: int,
        draw_row: Callable[[Server, int], Completion],
        count: Callable[[], None],
    ) -> tuple[dict[int, Completion], ServerDown | None]:
        """Return what a server finished of its rows, and why not all of them."""
        done: dict[int, Completion] = {}
        failure: ServerDown | None = None
        pool = ThreadPoolExecutor(max(1, min(self._at_once(server, tokens), len(rows))))
        try:
            jobs: dict[Future[Completion], int] = {pool.submit(draw_row, server, row): row for row in rows}
            for job in as_completed(jobs):
                if job.cancelled():
                    continue
                try:
                    done[jobs[job]] = job.result()
                    count()
                except ServerDown as error:
                    failure = failure or error
                    for pending in jobs:
                        pending.cancel()
        finally:
            pool.shutdown(cancel_futures=True)  # after a refusal nothing else is asked
        return done, failure
