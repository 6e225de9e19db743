import pytest

from steadyrl.backends.limits import require_room
from steadyrl.core.errors import ModelError


def test_a_text_beyond_the_positions_is_refused_with_what_would_help():
    require_room(None, 9000, 9000)
    require_room(12, 8, 4)
    with pytest.raises(ModelError, match=r"shorten the prompt or set sampling.max_new_tokens = 3 or less$"):
        require_room(12, 9, 4)
    with pytest.raises(ModelError, match=r"reach; shorten the prompt$"):
        require_room(12, 12, 4)
