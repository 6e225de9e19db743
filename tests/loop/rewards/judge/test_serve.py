"""The judge against a server that nobody here wrote: `transformers serve` with a tiny model made on the spot."""

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import make_terms, score_texts, term_metrics
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from tests import needs

pytestmark = pytest.mark.slow


class NoTask:
    name, metric = "none", ""

    def rewards(self):
        return {}

    def gold(self, problem):
        return None


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve the model; return the endpoint's address and the model's name."""
    needs.skip_without_packages("torch", "transformers", "fastapi", "uvicorn", "openai", extra="test-judge,torch")
    from tests.serve_model import write_judge_model

    folder = tmp_path_factory.mktemp("judge-model")
    assert write_judge_model(folder) == 1.0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"
    command = [sys.executable, "-c", code, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    log = (folder / "log").open("w+")
    with log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            _await(process, f"http://127.0.0.1:{port}/health", folder / "log")
            yield f"http://127.0.0.1:{port}/v1", str(folder)
        finally:
            process.terminate()
            process.wait(30)


def _await(process, address, log):
    for _ in range(240):
        if process.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")


def answers(count):
    return [(Problem(f"p{i}", f"add {i}"), f"return x + {i}") for i in range(count)]


def test_verdicts_come_through_a_real_server(served):
    url, model = served
    section = JudgeSettings(base_url=url, model=model, cache="", workers=4, price_in=1.0, price_out=1.0)
    terms = make_terms({"judge": section}, NoTask())
    found = score_texts(answers(12), terms)
    assert [rollout.unscored for rollout in found] == [None] * 12
    assert [rollout.reward for rollout in found] == [pytest.approx(0.7)] * 12
    metrics = term_metrics(terms)
    assert (metrics["judge/verdicts"], metrics["judge/failed"], metrics["judge/requests"]) == (12.0, 0.0, 12.0)
    # the template leaves 8 letters and <go>; the verdict is its opening, 8 letters, its closing and the end
    assert metrics["judge/tokens_in"] == 12 * 9
    assert 12 * 10 <= metrics["judge/tokens_out"] <= 12 * 11
    assert metrics["judge/cost"] > 0


def test_a_verdict_of_a_real_server_that_is_none_leaves_the_rollout_unscored(served):
    """Cut after five tokens, no verdict is whole, and neither is its repair."""
    url, model = served
    section = JudgeSettings(
        base_url=url, model=model, cache="", workers=4, request={"max_tokens": 5, "temperature": 0.0}, mode="group"
    )
    terms = make_terms(
        {"judge": section.model_copy(update={"max_failed": 0.99, "weight": 0.0}), "length": 1.0}, NoTask()
    )
    with pytest.raises(ConnectionError, match="no valid verdict, nor when asked again"):
        score_texts(answers(16), terms)
    metrics = term_metrics(terms)
    assert metrics["judge/failed"] == metrics["judge/repaired"] == 1.0


def test_what_a_real_server_refuses_is_told_and_not_tried_again(served):
    url, model = served
    section = JudgeSettings(base_url=f"{url}/nowhere", model=model, cache="", window=1)
    terms = make_terms({"judge": section}, NoTask())
    with pytest.raises(ConnectionError, match="it answers 404"):
        score_texts(answers(2), terms)
    assert term_metrics(terms)["judge/requests"] == 2.0
