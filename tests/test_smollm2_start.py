"""The warm start that ships for SmolLM2, and the script that merges an adapter into a model."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from tests import needs
from tests.rounding import rounding

ROOT = Path(__file__).parent.parent
START = ROOT / "examples" / "smollm2" / "search-start"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("smollm2", ROOT / "scripts" / "smollm2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_adapter_is_the_measured_one_and_fits_the_model():
    file = START / "adapter_model.safetensors"
    digest, name = (START / "adapter_model.safetensors.sha256").read_text().split()
    assert (hashlib.sha256(file.read_bytes()).hexdigest(), name) == (digest, file.name)
    assert file.stat().st_size < 10e6
    tensors = needs.package("safetensors.numpy").load_file(file)
    assert len(tensors) == 30 * 7 * 2 and json.loads((START / "adapter_config.json").read_text())["r"] == 16
    shapes = {name.split("layers.0.")[-1]: tensor.shape for name, tensor in tensors.items() if "layers.0." in name}
    assert shapes["mlp.down_proj.lora_A.weight"] == (16, 1536) and shapes["self_attn.k_proj.lora_B.weight"] == (192, 16)


# peft reads a property that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_adapter_is_merged_into_a_model_once_and_only_if_it_is_the_measured_one(script, tiny_models, tmp_path):
    torch, transformers, peft = needs.package("torch"), needs.package("transformers"), needs.package("peft")
    from steadyrl.backends.huggingface.portable import write_probe
    from steadyrl.backends.torch.save import probe

    base, adapter, folder = tiny_models["llama"], tmp_path / "adapter", tmp_path / "merged"
    start = transformers.AutoModelForCausalLM.from_pretrained(base)
    model = peft.get_peft_model(start, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).eval()
    model.save_pretrained(adapter)
    write_probe(adapter, probe.make(model))
    digest = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()
    summed = adapter / "adapter_model.safetensors.sha256"
    summed.write_text(f"{'0' * 64}  adapter_model.safetensors\n")
    with pytest.raises(SystemExit, match=rf"has the sha256 {digest}; expected 0+. It is not used"):
        script.main(folder, base, adapter)
    assert not folder.exists()
    summed.write_text(f"{digest}  adapter_model.safetensors\n")
    script.main(folder, base, adapter)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        merged = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        found, expected = merged(input_ids=ids).logits, model(input_ids=ids).logits
        near = rounding(expected.abs().max().item(), 30 * 4000)  # 30 layers with sums of 576 and 1,536 terms
        torch.testing.assert_close(found, expected, atol=near, rtol=0)
    assert (folder / "probe.json").is_file() and (folder / "tokenizer.json").is_file()
    (adapter / "adapter_model.safetensors").unlink()
    script.main(folder, base, adapter)  # a folder that is there is kept
