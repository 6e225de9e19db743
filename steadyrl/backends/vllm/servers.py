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
    throttled: bool = False
    """Whether it was said that it is sent fewer requests at a time."""
    excluded: bool = False
    """Whether it failed, so that the others do its work."""
    excluded_for_good: bool = False
    """Whether it is never asked again: what does not take weights over would not do so later."""


class Servers:
    """All servers of a run."""

    def __init__(self, settings: VllmSettings, start_command: str):
        """Connect to them.

        Raises:
            EngineError: None answers, or one of them serves another model.
        """
        self._model_name, self._requests = settings.model, settings.requests
        self._all = [Server(VllmClient(url, settings.timeout_s, start_command)) for url in settings.urls()]
        try:
            self.for_each(self._connect)
        finally:
            self.close()

    def active(self) -> list[Server]:
        """Return those that are not left out, at least one."""
        return [server for server in self._all if not server.excluded]

    def for_each(self, action: Callable[[Server], None]) -> None:
        """Do something with every server that is not left out, with all at the same time.

        Raises:
            EngineError: One refuses, or none is left.
        """
        servers = self.active()
        with ThreadPoolExecutor(len(servers)) as pool:
            jobs = [pool.submit(action, server) for server in servers]
        for server, job in zip(servers, jobs, strict=True):
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
        by_row: dict[int, tuple[Completion, Server]] = {}
        number = itertools.count(1)
        while len(by_row) < rows:
            open_rows, servers = [row for row in range(rows) if row not in by_row], self.active()
            with ThreadPoolExecutor(len(servers)) as pool:
                shares = [
                    pool.submit(
                        copy_context().run,  # what is counted there is heard here
                        self._draw_rows,
                        server,
                        open_rows[index :: len(servers)],
                        tokens,
                        draw_row,
                        lambda: tell("completions", next(number), rows),
                    )
                    for index, server in enumerate(servers)
                ]
            for server, share in zip(servers, shares, strict=True):
                completions, failure = share.result()
                by_row |= {row: (completion, server) for row, completion in completions.items()}
                if failure is not None:
                    self.leave_out(server, failure)
        return [by_row[row] for row in range(rows)]

    def leave_out(self, server: Server, failure: EngineError) -> None:
        """Go on without a server, and say so.

        Raises:
            EngineError: It is the last one.
        """
        if len(self.active()) == 1:
            raise failure
        server.excluded = True
        log.warning("%s; it is left out, %d of %d servers go on", failure, len(self.active()), len(self._all))

    def ask_again(self) -> None:
        """Take those back that were left out and answer again."""
        for server in self._all:
            if not server.excluded or server.excluded_for_good:
                continue
            try:
                self._connect(server)
            except ServerDown:
                continue
            server.excluded = False
            log.warning("the vLLM server at %s answers again and takes part", server.client.url)

    def close(self) -> None:
        """Close all connections; later requests open new ones."""
        for server in self._all:
            server.client.http.close()

    def _connect(self, server: Server) -> None:
        names = server.client.served_models()
        if self._model_name and self._model_name not in names:
            raise EngineError(
                f"sampler.args.model = '{self._model_name}' is not served at {server.client.url}; expected one of: "
                f"{', '.join(names)}"
            )
        server.base = server.model = self._model_name or names[0]
        settings = server.client.settings()
        server.nccl = settings.get("weight_transfer_config", {}).get("backend") == "nccl"
        if settings.get("device_config", {}).get("device") == "cpu":
            server.budget = int(settings.get("scheduler_config", {}).get("max_num_batched_tokens", 0))
            server.own_head = server.client.has_weights(HEAD)

    def _max_requests(self, server: Server, tokens: int) -> int:
        if not server.budget:
            return self._requests
        # vLLM on a CPU dies where it reads a prompt with a seed in parts, for torch's generators there cannot be set
        # back (0.32.0: vllm/v1/worker/gpu_model_runner.py, ``set_offset``). It reads in parts what exceeds its budget.
        max_requests = server.budget // tokens
        cause = f"the vLLM server at {server.client.url} computes on a CPU and dies of a prompt that it reads in parts"
        if not max_requests:
            raise EngineError(
                f"{cause}: a prompt and its completion take up to {tokens} tokens, and it reads {server.budget} at a "
                f"time; start it with --max-num-batched-tokens {tokens * self._requests}"
            )
        if max_requests < self._requests and not server.throttled:
            server.throttled = True
            log.warning(
                "%s: it is sent %d requests at a time instead of %d; --max-num-batched-tokens %d allows all", cause,
                max_requests, self._requests, tokens * self._requests,
            )  # fmt: skip
        return min(max_requests, self._requests)

    def _draw_rows(
        self,
        server: Server,
        rows: Sequence[int],
        tokens: int,
        draw_row: Callable[[Server, int], Completion],
        count: Callable[[], None],
    ) -> tuple[dict[int, Completion], ServerDown | None]:
        """Return what a server finished of its rows, and why not all of them."""
        completions: dict[int, Completion] = {}
        failure: ServerDown | None = None
        pool = ThreadPoolExecutor(max(1, min(self._max_requests(server, tokens), len(rows))))
        try:
            jobs: dict[Future[Completion], int] = {pool.submit(draw_row, server, row): row for row in rows}
            for job in as_completed(jobs):
                if job.cancelled():
                    continue
                try:
                    completions[jobs[job]] = job.result()
                    count()
                except ServerDown as error:
                    failure = failure or error
                    for pending in jobs:
                        pending.cancel()
        finally:
            pool.shutdown(cancel_futures=True)  # after a refusal nothing else is asked
        return completions, failure
