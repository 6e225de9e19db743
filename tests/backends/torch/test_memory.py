"""Memory that is kept from step to step."""

import os
import subprocess
import sys

import pytest

# Two programs, each in a fork of a process that has imported PyTorch and made no tensor, for settings are a process's.
PROGRAM = """
import os, resource, sys, torch
from steadyrl.backends.torch import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def of_four_steps():  # blocks of several sizes, as in a step
    memory.keep_freed(torch.device("cpu"))
    def step():
        kept = [torch.ones(mib * 2**18) for mib in (40, 3, 12, 48)]
    for _ in range(40):  # until the heap has room for a step, wherever its first blocks came to lie
        step()
    before = faults()
    for _ in range(4):
        step()
    return faults() - before

def of_a_large_tensor():
    kept, counts = [], [faults()]
    for _ in range(5):
        kept.append(torch.ones(32 * 2**18))
        counts.append(faults())
    return min(after - before for before, after in zip(counts, counts[1:]))

for count, large_pages in ((of_four_steps, "0"), (of_a_large_tensor, os.environ["THP_MEM_ALLOC_ENABLE"])):
    child = os.fork()
    if child == 0:
        os.environ["THP_MEM_ALLOC_ENABLE"] = large_pages
        print(count.__name__, count(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def faults():
    """Return {what: faults of small pages}."""
    unset = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=unset, capture_output=True, text=True, check=True)
    return {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}


@pytest.mark.glibc
def test_a_step_uses_the_memory_of_the_step_before(faults):
    assert faults["of_four_steps"] < 0.3 * 4 * 103 * 256  # pages of four steps, all of which are new without it


@pytest.mark.large_pages
def test_large_tensors_lie_on_large_pages(faults):
    # Half of the small pages of 32 MiB, of the best of five tensors: other programs may have the large ones.
    assert faults["of_a_large_tensor"] < 32 * 256 / 2
