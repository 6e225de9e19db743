"""Fused kernels that cannot be compiled: said once, and the numbers stay."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

needs.skip_without_packages("mlx", extra="mlx")

PROGRAM = """
import logging
import mlx.core as mx
from steadyrl.backends.mlx.kernels import fused_or_plain

logging.basicConfig(format="WARNED %(message)s")
fused_or_plain()
fused_or_plain()
print(mx.compile(lambda x: mx.exp(x) * 2 + x)(mx.zeros(3)).tolist())
"""


@pytest.mark.linux  # elsewhere kernels are not compiled by the system's compiler
def test_a_compiler_that_fails_is_said_once_and_changes_no_result(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 99" && exit 0\necho "cannot compile" >&2\nexit 1\n')
    broken.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "MLX_DISABLE_COMPILE"} | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNED MLX cannot compile kernels here") == 1
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]"
