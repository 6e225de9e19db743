"""The kernels of decoding, of layers and of rows, interpreted on the CPU and compiled on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

torch = needs.package("torch")
needs.skip_without_packages("transformers", extra="torch")

from steadyrl.backends.torch import masters  # noqa: E402
from steadyrl.backends.torch.draw import sampler  # noqa: E402
from steadyrl.backends.torch.draw.decoder import kernels  # noqa: E402
from steadyrl.backends.torch.read import head  # noqa: E402

ROOT = Path(__file__).parents[3]
NAMES = ("kernel_cases.py", "interpreted_rows.py", "interpreted_launches.py")
CASES, *INTERPRETED = (str(Path(__file__).with_name(name)) for name in NAMES)


@pytest.mark.parametrize("interpreted", [True, pytest.param(False, marks=pytest.mark.gpu)])
def test_the_kernels_hold_in_a_process_of_their_own(interpreted, request):
    """Triton reads once whether it interprets, and another test may have imported it."""
    needs.skip_without_packages("triton", extra="test")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "TRITON_INTERPRET" and not name.startswith("PYTEST_")
    }
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    files = (CASES, *INTERPRETED) if interpreted else (CASES,)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", "tests.backends.torch.interpreter", "-m", request.config.getoption("markexpr"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]


def test_decoding_goes_on_without_kernels_where_they_do_not_run(caplog):
    assert kernels(torch.device("cpu")) is None and not caplog.records
    with caplog.at_level("INFO"):
        assert kernels(torch.device("cuda", 63)) is None  # is not there
    assert "kernels of Triton do not run (kernels)" in caplog.text


def test_one_switch_keeps_all_kernels_from_a_device(monkeypatch, caplog):
    monkeypatch.setattr("steadyrl.backends.torch.device.KERNELS_ON", frozenset())
    absent = torch.device("cuda", 62)
    assert [ask(absent) for ask in (kernels, masters.layer_kernels, sampler.kernels, head.row_kernels)] == [None] * 4
    assert not caplog.records  # none was tried
