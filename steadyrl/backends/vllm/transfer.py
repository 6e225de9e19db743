"""Weights from this process's GPU to a server's by NCCL, through vLLM's own weight transfer.

vLLM's package does the work (0.32.0: vllm/distributed/weight_transfer/nccl_engine.py and clients.py), so it must be
installed beside steadyrl. What is here is the wiring: the server's endpoints, the group's address, and a time limit,
for NCCL itself waits for ever. It was not run on GPUs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from steadyrl.backends.vllm.http import Http, ServerDown
from steadyrl.core.errors import EngineError
from steadyrl.core.plugins import require

PHASE = "it takes over weights by NCCL"
NEED = 'start the server with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config \'{"backend": "nccl"}\''


class NcclTransfer:
    """One server's group: this process, and every GPU of the server."""

    def __init__(self, http: Http, model: Any, timeout_s: float):
        """Form the group of a server, whose requests are not tried again, and a model under the hub's names.

        Raises:
            ServerDown: The server does not join in time.
            MissingExtraError: vLLM is not installed here.
        """
        require("vllm")
        transfer = require("vllm.distributed.weight_transfer")
        nccl = require("vllm.distributed.weight_transfer.nccl_engine")
        self._url, self._timeout_s = http.url, timeout_s
        size = http.json("/get_world_size", None, PHASE, need=NEED)
        address, port = _local_address(http.url)
        info = nccl.NCCLTrainerInitInfo(
            master_address=address, master_port=port, world_size=1 + int(size["world_size"]), rank=0
        )
        source = transfer.ModuleSource(model)
        self._engine: Any = self._in_time(
            lambda: transfer.WeightTransferTrainerFactory.trainer_init(
                init_info=info, client=_Endpoints(http), source=source
            )
        )

    def send(self) -> None:
        """Send all weights.

        Raises:
            ServerDown: The server does not take them over, or not in time. The group cannot be used again.
        """
        self._in_time(self._engine.send_weights)

    def _in_time(self, work: Callable[[], Any]) -> Any:
        """Return what is done on a thread that nobody waits for at the end, for NCCL cannot be interrupted."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # raised again on the thread that waits
                done.set_exception(error)

        Thread(target=run, daemon=True).start()
        try:
            return done.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise ServerDown(
                f"{self._url} does not answer within {self._timeout_s:g} s while {PHASE}; let its GPUs reach this "
                "machine, or leave out its --weight-transfer-config to send weights by a shared folder"
            ) from error
        except EngineError:
            raise
        except RuntimeError as error:
            raise ServerDown(f"NCCL fails with the vLLM server at {self._url} while {PHASE}: {error}") from error


class _Endpoints:
    """The server's side, as vLLM's trainer calls it."""

    def __init__(self, http: Http):
        self._http = http

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        self._post("/init_weight_transfer_engine", {"init_info": dict(init_info)})

    def start_weight_update(self) -> None:
        self._post("/start_weight_update", {})

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        self._post("/update_weights", {"update_info": dict(update_info)})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update", {} if weight_version is None else {"weight_version": weight_version})

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        self._http.ask(path, body, PHASE, NEED)


def _local_address(url: str) -> tuple[str, int]:
    """Return the address of this machine as a server sees it, and a free port."""
    server = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:  # sends nothing
        udp.connect((server.hostname or "localhost", server.port or 80))
        address = str(udp.getsockname()[0])
    with socket.socket() as tcp:
        tcp.bind((address, 0))
        return address, int(tcp.getsockname()[1])
