"""A limit on the size of files, which stands for a full disk."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests import needs


@contextmanager
def files_end_after(size: int) -> Iterator[None]:
    """Let no file that is written inside grow beyond ``size`` bytes."""
    needs.skip_without("linux")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
