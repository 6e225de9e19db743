"""What a test may need beyond the extra `test`: the one place that skips tests, each with what to install.

A test that needs something of the machine carries the marker of that name (`MARKERS`). A package that comes with
another extra is imported by `package`. A test without the marker `browser` runs as if Chromium were not installed, so
that no test can use it without asking for it.
"""

import functools
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from steadyrl.core.errors import SteadyError
from steadyrl.environments.browse.browser.find import find_chromium, playwright_api
from steadyrl.environments.browse.browser.settings import BrowserSettings
from steadyrl.environments.code.sandbox.choose import probe

PUBLISHED = Path(__file__).parents[2] / "shared" / "data"  # files that others published and this package may not ship
HUMAN_EVAL = PUBLISHED / "HumanEval.jsonl.gz"
WILD_LOGS = PUBLISHED / "wild" / "labels.jsonl"


def package(name: str, extra: str = "torch") -> Any:
    """Return an optional package; skip where it is not installed."""
    skip_without_packages(name, extra=extra)
    return importlib.import_module(name)


def skip_without_packages(*names: str, extra: str, beside: str = "") -> None:
    """Skip the test, fixture or module that runs now unless all packages are installed; they are not imported.

    Args:
        names: Of the packages, as they are imported.
        extra: The extras that bring them, separated by commas.
        beside: What pip has to install beside these extras, separated by blanks.
    """
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        command = f"pip install 'steadyrl[{extra}]' {beside}".rstrip()
        pytest.skip(f"needs {', '.join(missing)}: {command}", allow_module_level=True)


def skip_without(marker: str) -> None:
    """Skip the test or fixture that runs now where the machine lacks what a marker stands for."""
    what, lack = MARKERS[marker]
    if reason := lack():
        pytest.skip(f"needs {what}: {reason}")


def path_without(programs: Iterable[str], folder: Path) -> str:
    """Return a PATH on which some programs are not found.

    A folder that holds one of them is replaced by a folder of links to everything else in it.
    """
    hidden, parts = frozenset(programs), []
    for place, part in enumerate(os.get_exec_path()):
        if not any((Path(part) / program).exists() for program in hidden):
            parts.append(part)
            continue
        links = folder / str(place)
        links.mkdir()
        for entry in Path(part).iterdir():
            if entry.name not in hidden:
                (links / entry.name).symlink_to(entry)
        parts.append(str(links))
    return os.pathsep.join(parts)


@functools.cache
def _browser() -> str:
    try:
        find_chromium(BrowserSettings())
        playwright_api()
    except SteadyError as error:
        return str(error)
    return ""


def _bubblewrap() -> str:
    reason = probe("bubblewrap")
    return f"{reason} (Debian: apt-get install bubblewrap)" if reason else ""


def _landlock() -> str:
    reason = probe("landlock")
    return f"{reason} (Linux 5.13 or newer has it)" if reason else ""


def _jail() -> str:
    reasons = (_bubblewrap(), _landlock())
    return "; ".join(reasons) if all(reasons) else ""


def _gpu() -> str:
    torch = package("torch")
    return "" if torch.cuda.is_available() else "torch finds none on this machine"


def _mlx() -> str:
    return "" if importlib.util.find_spec("mlx") else "pip install 'steadyrl[mlx]'"


def _openssl() -> str:
    return "" if shutil.which("openssl") else "it is not installed (Debian: apt-get install openssl)"


def _user() -> str:
    return "root may write anywhere, so run the tests as another user" if os.geteuid() == 0 else ""


def _linux() -> str:
    return "" if sys.platform == "linux" else f"this is {sys.platform}"


def _glibc() -> str:
    found = platform.libc_ver()[0] or "another one"
    return "" if found == "glibc" else f"this system has {found}, whose memory is left as it is"


def _large_pages() -> str:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return "" if setting.is_file() and "[madvise]" in setting.read_text() else f"{setting} is not set to madvise"


def _vllm() -> str:
    return "" if os.environ.get("STEADYRL_VLLM") else "make test-vllm installs one and runs these tests"


def _wild_logs() -> str:
    return "" if WILD_LOGS.is_file() else f"put them into {WILD_LOGS.parent}, with {WILD_LOGS.name}"


def _human_eval() -> str:
    return "" if HUMAN_EVAL.is_file() else f"put the published HumanEval.jsonl.gz at {HUMAN_EVAL}"


# Marker: what it stands for, and a function that says why it is missing and what to do, "" where it is there.
def _address_space() -> str:
    try:
        package("torch").empty(3 * 2**30, dtype=package("torch").bfloat16)
    except (RuntimeError, MemoryError) as error:
        return str(error).splitlines()[0]
    return ""


MARKERS = {
    "browser": ("Chromium and Playwright", _browser),
    "jail": ("a jail for code", _jail),
    "bubblewrap": ("bubblewrap", _bubblewrap),
    "landlock": ("Landlock", _landlock),
    "gpu": ("a CUDA device", _gpu),
    "mlx": ("Apple's MLX", _mlx),
    "openssl": ("the program openssl", _openssl),
    "linux": ("Linux", _linux),
    "glibc": ("the C library glibc", _glibc),
    "address_space": ("6 GiB of address space", _address_space),
    "large_pages": ("pages of 2 MiB on request", _large_pages),
    "vllm": ("a vLLM server", _vllm),
    "wild_logs": ("published logs of other trainers", _wild_logs),
    "human_eval": ("the problems of HumanEval", _human_eval),
    "ordinary_user": ("an ordinary user", _user),
}
