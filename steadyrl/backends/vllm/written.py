"""Folders that the policy is written into, for vLLM to read: a new one each time, and the one before is removed.

vLLM may hold the old files open, and may answer from what it has read of a path before (vllm-project/vllm#32718).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from steadyrl.backends.vllm.parity import Policy
from steadyrl.core.errors import AccessError, EngineError
from steadyrl.core.rundir import readable_as_usual


class WrittenPolicies:
    """The folders of one process, in one that several runs may share, for no name is used twice.

    Attributes:
        count: How many names were given out.
    """

    def __init__(self, folder: str):
        self._folder, self._run, self.count = Path(folder).resolve(), uuid.uuid4().hex[:8], 0
        self._newest: Path | None = None

    def next_name(self) -> str:
        """Return a name for the weights as they are now."""
        self.count += 1
        return f"{self._run}-{self.count:06d}"

    def write(self, policy: Policy, name: str, finish: Callable[[Path], None]) -> Path:
        """Write the policy into a new folder of a name; ``finish`` adds to it what else is needed.

        Raises:
            AccessError: It cannot be written.
        """
        folder, written = self._folder / name, False
        try:
            folder.mkdir(parents=True)
            policy.save_policy(folder)
            finish(folder)
            readable_as_usual(folder)
            written = True
        except EngineError:  # an OSError too
            raise
        except OSError as error:
            raise AccessError(f"cannot write the weights for vLLM into '{folder}': {error}") from error
        finally:
            if not written:
                shutil.rmtree(folder, ignore_errors=True)
        return folder

    def set_newest(self, folder: Path | None) -> None:
        """Remove the folder before: vLLM has read this one, or took the weights over without one."""
        if self._newest is not None:
            shutil.rmtree(self._newest)
        self._newest = folder
