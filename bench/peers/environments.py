"""Make the virtual environments of the peers: python bench/peers/environments.py [--only trl-grpo].

Further arguments go to pip. One that was made with the present requirements is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
DEFAULT_FOLDER = HERE.parent / ".venvs"
PEERS = ("trl-grpo", "trl-ppo")


def main() -> None:
    """Make what is lacking."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--only", choices=PEERS, help="one of them")
    args, pip_args = parser.parse_known_args()
    for peer in [args.only] if args.only else PEERS:
        make(args.folder / peer, HERE / f"requirements-{peer}.txt", pip_args)


def make(folder: Path, requirements: Path, pip_args: list[str]) -> None:
    """Make one environment, with the requirements noted in it as the last thing."""
    done = folder / "installed.txt"
    if done.is_file() and done.read_text(encoding="utf-8") == requirements.read_text(encoding="utf-8"):
        print(f"{folder}: is there")
        return
    print(f"{folder}: installing {requirements.name}", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(python(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, *pip_args, "-r", str(requirements)], check=False).returncode:
        sys.exit(f"pip could not install {requirements} on Python {sys.version.split()[0]}; it was written for 3.11")
    shutil.copyfile(requirements, done)


def interpreter(folder: Path, peer: str) -> Path | None:
    """Return the interpreter of a peer's environment, or this one where it has the same release; None for neither."""
    if python(folder / peer).is_file():
        return python(folder / peer)
    package = peer.partition("-")[0]
    pinned = (HERE / f"requirements-{peer}.txt").read_text(encoding="utf-8").splitlines()
    try:
        return Path(sys.executable) if f"{package}=={version(package)}" in pinned else None
    except PackageNotFoundError:
        return None


def python(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


if __name__ == "__main__":
    main()
