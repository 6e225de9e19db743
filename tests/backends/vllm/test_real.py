"""Runs against a real vLLM on the CPU with SmolLM2-135M: `make test-vllm`, about half an hour on one core.

The figures of the long run are written to build/vllm.md.
"""

import json
import logging
import os
import signal
import socket
import statistics
import subprocess
import sysconfig
import time
import urllib.request
from pathlib import Path

import pytest

from steadyrl.algorithms import grpo
from steadyrl.core import config
from steadyrl.core.errors import EngineError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Sampling
from steadyrl.loop import launch
from steadyrl.loop.train import Watch
from tests import needs

torch = needs.package("torch")

from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.vllm.untied import copy_untied  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[3]
EXAMPLE, FIGURES = ROOT / "examples" / "vllm" / "grpo.toml", ROOT / "build" / "vllm.md"
STARTS_WITHIN_S = 900.0
FLOAT32_GAP = 5e-5  # nats a token, in the mean


class RealServer:
    """A vLLM process on a port of its own."""

    def __init__(self, model, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self._model, self._log = f"http://127.0.0.1:{self.port}", model, log

    def start(self):
        command = [os.environ["STEADYRL_VLLM"], "serve", str(self._model), "--host", "127.0.0.1", "--port", self.port]
        command += ["--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--max-model-len", 512]
        command += ["--enforce-eager", "--max-num-batched-tokens", 2048, "--max-num-seqs", 64]
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
        foreign = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own | {"PATH": path}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command], env=foreign, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, f"vLLM did not start: {self._log.read_text(errors='replace')[-3000:]}"
            assert time.monotonic() < deadline, f"vLLM did not start within {STARTS_WITHIN_S:g} s"
            time.sleep(1)

    def kill(self, how=signal.SIGKILL):
        if self._process.poll() is None:
            os.killpg(self._process.pid, how)
        self._process.wait(60)

    def _answers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


@pytest.fixture
def served(tmp_path):
    """Return a function that starts a server of a folder; it ends with the test."""
    servers = []

    def start(model):
        servers.append(RealServer(model, tmp_path / "vllm.log"))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.kill(signal.SIGTERM)


@pytest.fixture
def model():
    return Path(os.environ["STEADYRL_SMOLLM2"]).resolve()


def overrides(server, model, tmp_path):
    return [
        f"model.path={model}", f"sampler.args.url={server.url}", f"sampler.args.folder={tmp_path / 'served'}",
        f"task.args.path={EXAMPLE.parent / 'prompts.jsonl'}", f"run.folder={tmp_path / 'runs'}", "backend.threads=1",
        "run.preflight=off",
    ]  # fmt: skip


def test_a_tied_model_is_refused_before_its_weights_are_pushed(served, model, tmp_path):
    server = served(model)
    backend = TorchBackend(config.load(EXAMPLE, overrides(server, model, tmp_path)), grpo.build(grpo.Settings()))
    with pytest.raises(EngineError, match="would keep the head of the weights that it was started with"):
        backend.generate([backend.tokenizer.encode_prompt("Say hello.")], Sampling(max_new_tokens=4), [1])


def test_a_run_goes_on_after_its_server_was_killed(served, model, tmp_path, caplog):
    copy_untied(model, tmp_path / "untied")
    server = served(tmp_path / "untied")
    lines, settings = [], overrides(server, model, tmp_path)

    def follow(line):
        lines.append(line)
        if len(lines) == 8:
            server.kill()

    with caplog.at_level(logging.INFO, logger="steadyrl.backends.vllm"):
        with pytest.raises(EngineError, match=f"no vLLM server answers at {server.url} .* while it takes over weights"):
            launch.run(EXAMPLE, settings, watch=Watch(step=follow))
        (folder,) = (tmp_path / "runs").iterdir()
        assert RunDir.open(folder).info()["status"] == "failed"
        server.start()
        launch.run(resume=folder, watch=Watch(step=lines.append))
    said = [record.getMessage() for record in caplog.records if record.name.startswith("steadyrl.backends.vllm")]
    write_figures(lines, said)
    assert [line["step"] for line in lines] == list(range(20))
    assert all(line["sampler_gap"] < FLOAT32_GAP for line in lines), [line["sampler_gap"] for line in lines]
    assert sum(text.startswith("push ") for text in said) == 21, "one for each step, and one to evaluate the last"
    assert not any("differ more from push to push" in text for text in said)
    # The last weights that were taken in each attempt stay, and those that the dead server did not take.
    assert len(list((tmp_path / "served").iterdir())) == 3


@pytest.mark.parametrize("rank", [0, 4])
def test_in_one_process_log_probs_are_those_of_the_policy_after_each_update(rank, model, tmp_path):
    """In vLLM's environment, which takes from ours what it lacks."""
    begin = (
        f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); from steadyrl.cli.main import main; main()"
    )
    settings = [
        "sampler.args.mode=colocate", "sampler.args.llm={dtype = 'float32', max_model_len = 256, enforce_eager = true}",
        f"model.path={model}", f"model.lora_rank={rank}", f"sampler.args.folder={tmp_path / 'served'}", "run.steps=3",
        f"task.args.path={EXAMPLE.parent / 'prompts.jsonl'}", f"run.folder={tmp_path / 'runs'}", "backend.threads=1",
        "run.preflight=off",
    ]  # fmt: skip
    own = {"PYTHONPATH": str(ROOT), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_CPU_CI_ENV": "1"}
    python = str(Path(os.environ["STEADYRL_VLLM"]).parent / "python")
    command = [python, "-c", begin, "train", str(EXAMPLE), *settings]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    lines = RunDir.open(folder).metrics()
    gaps = [line["sampler_gap"] for line in lines]
    assert len(gaps) == 3 and max(gaps) < FLOAT32_GAP, gaps


def write_figures(lines, said):
    """Write what the run measured, for docs/vllm.md."""
    times = sorted({name for line in lines for name in line if name.startswith("time/")})
    rows = ["| step | attempt | sampler_gap (nats) |", "|---|---|---|"]
    rows += [f"| {line['step']} | {line['attempt']} | {line['sampler_gap']:.2g} |" for line in lines]
    rows += ["", "| phase | median (s) |", "|---|---|"]
    rows += [f"| {name} | {statistics.median(line[name] for line in lines):.1f} |" for name in times]
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text("\n".join([*rows, "", *said, "", json.dumps(lines[-1])]) + "\n", encoding="utf-8")
