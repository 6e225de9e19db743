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
from steadyrl.counting.count import tell
from steadyrl.errors import EngineError
from steadyrl.types import Completion

log = logging.getLogger(__name__)


@dataclass
class Server:
    """One server, and what is known of it.

    Attributes:
        client: Speaks to it.
        base: Name of the model that it serves, "" before it has answered.
        model: What completions are asked of: the base model or an adapter.
        version: The name of the weights that it was given, "" where it keeps none.
        gaps: How far its log-probs were from the trainer's after each push.
        out: Whether it is left out.
    """

    client: VllmClient
    base: str = ""
    model: str = ""
    version: str = ""
    gaps: Gaps = field(default_factory=Gaps)
    out: bool = False


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
            self.each(self._connect)
        finally:
            self.close()

    def here(self) -> list[Server]:
        """Return those that are not left out, at least one."""
        return [server for server in self._all if not server.out]

    def each(self, do: Callable[[Server], None]) -> None:
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

    def draw(self, rows: int, draw_row: Callable[[Server, int], Completion]) -> list[tuple[Completion, Server]]:
        """Draw every row from one of the servers.

        Args:
            rows: How many.
            draw_row: Draws the row of a number; called from several threads.

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
            if not server.out or server.gaps.lost():  # what does not take weights over would not do so later
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

    def _draw_share(
        self,
        server: Server,
        rows: Sequence[int],
        draw_row: Callable[[Server, int], Completion],
        count: Callable[[], None],
    ) -> tuple[dict[int, Completion], ServerDown | None]:
        """Return what a server finished of its rows, and why not all of them."""
        done: dict[int, Completion] = {}
        failure: ServerDown | None = None
        pool = ThreadPoolExecutor(max(1, min(self._requests, len(rows))))
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
                    for other in jobs:
                        other.cancel()
        finally:
            pool.shutdown(cancel_futures=True)  # after a refusal nothing else is asked
        return done, failure
