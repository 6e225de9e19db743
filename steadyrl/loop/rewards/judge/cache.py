"""Verdicts on disk by the content of what was asked: one small JSON file each, written beside its place and renamed."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from steadyrl.core.errors import AccessError
from steadyrl.core.rundir import parse_json
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from steadyrl.loop.rewards.judge.verdicts import Verdict

log = logging.getLogger(__name__)

_FORM = 1  # of prompts and entries: raised when either changes, so that older verdicts are asked for again


class VerdictCache:
    """A folder of verdicts; may be shared by threads and by runs. What cannot be read is asked for again."""

    def __init__(self, section: JudgeSettings):
        """Open the folder.

        Raises:
            AccessError: It cannot be made or written.
        """
        self._folder = Path(section.cache)
        # Fences and labels are not in it: they are new each time and mean nothing. The address is: two servers may
        # give two models one name.
        self._judge = [_FORM, section.mode, section.base_url, section.model, dict(section.criteria), section.request]
        self._warned = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise AccessError(
                f"rewards.judge.cache: cannot write in '{self._folder}' ({error.strerror}); give another folder, "
                "or '' for none"
            ) from error

    def get(self, request: str, texts: Sequence[str]) -> Verdict | None:
        """Return the verdict on these texts in this order, or None if there is none."""
        try:
            entry = parse_json(self._path(request, texts).read_text(encoding="utf-8"))
            return _verdict(entry, len(texts))
        except (OSError, ValueError, TypeError, KeyError):
            return None  # not asked yet, or damaged

    def put(self, request: str, texts: Sequence[str], verdict: Verdict) -> None:
        """Keep a verdict. A full disk costs the entry and one warning, not the run."""
        path = self._path(request, texts)
        record = {"values": verdict.values, "parts": dict(verdict.parts), "reason": verdict.reason}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A name of its own: two runs may write the same verdict at the same time.
            part = path.with_name(f"{path.stem}-{uuid4().hex}.part")
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            if not self._warned:
                log.warning("rewards.judge.cache: verdicts cannot be kept in '%s' (%s)", self._folder, error.strerror)
            self._warned = True

    def _path(self, request: str, texts: Sequence[str]) -> Path:
        content = json.dumps([*self._judge, request, list(texts)], sort_keys=True)
        name = hashlib.sha256(content.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"


def _verdict(entry: Mapping[str, Any], count: int) -> Verdict:
    values, parts = entry["values"], dict(entry["parts"])
    numbers = [*values, *parts.values()]
    if len(values) != count or not all(isinstance(x, int | float) and 0 <= x <= 1 for x in numbers):
        raise ValueError("an entry of another form")
    return Verdict(tuple(map(float, values)), {str(k): float(v) for k, v in parts.items()}, str(entry["reason"]))
