"""Weights by NCCL: what vLLM's own package is asked for, with a stand-in for it, for it needs GPUs."""

import sys
import threading
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from steadyrl.core.errors import EngineError
from steadyrl.core.types import Sampling
from tests import needs

torch = needs.package("torch")

from steadyrl.backends.vllm import http as vllm_http  # noqa: E402
from steadyrl.backends.vllm.engine import VllmEngine  # noqa: E402
from steadyrl.backends.vllm.settings import VllmSettings  # noqa: E402
from steadyrl.core.sections import ModelSection  # noqa: E402
from tests.backends.vllm.served import serving  # noqa: E402

GREEDY = Sampling(max_new_tokens=2, top_k=1)  # compares nothing, so nothing is scored


@dataclass
class TrainerInfo:
    """As vllm.distributed.weight_transfer.nccl_engine.NCCLTrainerInitInfo of 0.32.0."""

    master_address: str
    master_port: int
    world_size: int
    rank: int


class Trainer:
    """As NCCLTrainerWeightTransferEngine, without NCCL."""

    waits = None

    @classmethod
    def trainer_init(cls, init_info, *, client, source):
        made = cls()
        made.client, made.source, made.info = client, source, init_info
        client.init_weight_transfer_engine({"world_size": init_info.world_size, "rank_offset": 1})
        return made

    def send_weights(self):
        self.client.start_weight_update()
        if self.waits:
            self.waits.wait(5)
        self.client.update_weights({"names": [name for name, _ in self.source.named_parameters()]})
        self.client.finish_weight_update()


@pytest.fixture
def vllm(monkeypatch):
    """A package ``vllm`` that sends nothing."""
    monkeypatch.setattr(vllm_http, "FIRST_WAIT_S", 0.01)
    trainer = type("Trainer", (Trainer,), {})
    transfer = ModuleType("vllm.distributed.weight_transfer")
    transfer.WeightTransferTrainerFactory, transfer.ModuleSource = trainer, lambda module: module
    nccl = ModuleType("vllm.distributed.weight_transfer.nccl_engine")
    nccl.NCCLTrainerInitInfo = TrainerInfo
    for module in (ModuleType("vllm"), ModuleType("vllm.distributed"), transfer, nccl):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return trainer


@pytest.fixture
def server(tiny_models):
    with serving(tiny_models["llama"]) as http:
        http.served.transfer = "nccl"
        yield http


@pytest.fixture
def policy():
    return SimpleNamespace(
        device=torch.device("cuda"), model=torch.nn.Linear(2, 2), tokenizer=SimpleNamespace(end_ids=(1,))
    )  # it has no save_policy: weights must not go by a folder


def drawn(server, policy, pushes=1, timeout_s=20.0):
    engine = VllmEngine(VllmSettings(url=server.url, timeout_s=timeout_s), ModelSection())
    for _ in range(pushes):
        engine.stale = True
        engine.generate(policy, [np.array([5, 6], np.int32)], GREEDY, [1])


def test_a_group_is_formed_once_and_every_push_goes_through_vllms_endpoints(vllm, server, policy):
    drawn(server, policy, pushes=2)
    asked = dict(server.served.asked)
    assert asked["/init_weight_transfer_engine"] == {"init_info": {"world_size": 3, "rank_offset": 1}}
    assert asked["/update_weights"] == {"update_info": {"names": ["weight", "bias"]}}
    push = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    paths = [
        path for path in server.served.paths() if path in {*push, "/init_weight_transfer_engine", "/collective_rpc"}
    ]
    assert paths == ["/init_weight_transfer_engine", *push, *push]
    assert server.served.version.endswith("-000002")


def test_a_push_that_hangs_ends_with_the_phase(vllm, server, policy):
    vllm.waits = threading.Event()
    with pytest.raises(EngineError, match=r"does not answer within 0.5 s while it takes over weights by NCCL; let its"):
        drawn(server, policy, timeout_s=0.5)
    vllm.waits.set()


def test_a_failed_update_is_not_tried_again(vllm, server, policy):
    server.served.answers["/update_weights"] = [(503, "busy")] * 3
    with pytest.raises(EngineError, match="/update_weights answers 503: busy while it takes over weights by NCCL"):
        drawn(server, policy)
    assert server.served.paths().count("/update_weights") == 1
