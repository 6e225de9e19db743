"""The kernels of ``rows``, run on a CPU by Triton's interpreter.

Triton decides for a whole process, as it is imported, whether kernels are interpreted. So the tests run in a process of
their own, where nothing has imported it yet, and no other test runs interpreted kernels on a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests import needs

needs.package("torch")
needs.skip_without_packages("triton", extra="test")


def test_the_interpreted_kernels_pass_their_tests():
    tests = Path(__file__).with_name("interpreted_rows.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env=environment | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]
