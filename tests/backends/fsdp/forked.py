"""Ranks forked from a process that has loaded PyTorch and computed nothing yet: quick, where torchrun takes long."""

import multiprocessing
import os
import threading
import traceback
from contextlib import nullcontext

from torch.distributed import TCPStore

from steadyrl.backends.fsdp import plugin

LOADED = ["steadyrl.backends.fsdp.backend", "peft", "transformers.models.llama.modeling_llama", "steadyrl.loop.train"]


def on_ranks(count, work, *args, within=nullcontext):
    """Do ``work(*args)`` on rank 0 while the others follow; return what it returns and the exit codes of all ranks.

    Every rank works within a context that ``within`` makes.

    What rank 0 raises is returned; None where it was killed. A rank that leaves a thread behind ends with another code
    than 0. ``work`` is a function of a module. What ranks read and write is kept here, as torchrun keeps it.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    mine, theirs = context.Pipe()
    ranks = [
        context.Process(target=_rank, args=(rank, count, store.port, theirs, within, work, args))
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    theirs.close()
    try:
        found = mine.recv() if mine.poll(300) else AssertionError("rank 0 did not end in time")
    except EOFError:
        found = None
    for rank in ranks:
        rank.join(60)
        rank.kill()
    return found, [rank.exitcode for rank in ranks]


def _rank(rank, count, port, pipe, within, work, args):
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": str(rank),
        "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    if rank:
        pipe.close()
        with within():
            failed = plugin.follow()
        os._exit(failed or threading.active_count() - 1)
    try:
        with within():
            found = work(*args)
    except Exception as error:
        traceback.print_exc()
        found = error
    pipe.send(found)
    pipe.close()
    from steadyrl.backends.fsdp.ranks import joined

    joined().leave()
    os._exit(threading.active_count() - 1)
