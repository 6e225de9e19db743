from types import SimpleNamespace

import pytest

from steadyrl.errors import ConfigError, ModelError
from tests import needs


@pytest.mark.parametrize("name", ["meta", "nowhere", "cuda:99", "", "cpu:x"])
def test_a_device_that_computes_nothing_is_refused_in_one_line(name):
    needs.package("torch")
    from steadyrl.backends.torch.device import chosen_device

    with pytest.raises(ConfigError, match="cannot be used"):
        chosen_device(name)


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size", "hidden_size", "num_attention_heads"])
def test_a_shape_that_no_model_has_is_refused_before_it_is_built(name):
    needs.package("torch")
    from steadyrl.backends.huggingface.folder import _check_numbers

    shape = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    _check_numbers(SimpleNamespace(**shape), "model")
    with pytest.raises(ModelError, match=f"{name} = 1000000000000; expected a number up to"):
        _check_numbers(SimpleNamespace(**{**shape, name: 10**12}), "model")
