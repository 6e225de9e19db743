import pytest

from steadyrl.errors import ConfigError


@pytest.mark.parametrize("name", ["meta", "nowhere", "cuda:99", "", "cpu:x"])
def test_a_device_that_computes_nothing_is_refused_in_one_line(name):
    pytest.importorskip("torch")
    from steadyrl.backends.torch.device import chosen_device

    with pytest.raises(ConfigError, match="cannot be used"):
        chosen_device(name)
