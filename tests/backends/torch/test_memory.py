"""Memory that is kept from step to step."""

import os
import subprocess
import sys

import pytest

# Blocks of several sizes, as in a step; a process of its own, for the setting is the process's.
PROGRAM = """
import resource, torch
from steadyrl.backends.torch import memory
memory.keep_freed(torch.device("cpu"))
def step():
    kept = [torch.ones(mib * 2**18) for mib in (40, 3, 12, 48)]
for _ in range(40):  # until the heap has room for a step, wherever its first blocks came to lie
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.glibc
def test_a_step_uses_the_memory_of_the_step_before():
    small_pages = os.environ | {"THP_MEM_ALLOC_ENABLE": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=small_pages, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.3 * 4 * 103 * 256  # pages of four steps, all of which are new without it


@pytest.mark.large_pages
def test_large_tensors_lie_on_large_pages():
    program = """
import resource, torch
from steadyrl.backends.torch import memory
kept, faults = [], [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
for _ in range(5):
    kept.append(torch.ones(32 * 2**18))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(min(after - before for before, after in zip(faults, faults[1:])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # Half of the small pages of 32 MiB, of the best of five tensors: other programs may have the large ones.
    assert int(done.stdout) < 32 * 256 / 2
