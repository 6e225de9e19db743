import pytest

from steadyrl.backends.limits import AtOnce, require_room
from steadyrl.core.errors import ModelError


def test_a_text_beyond_the_positions_is_refused_with_what_would_help():
    require_room(None, 9000, 9000)
    require_room(12, 8, 4)
    with pytest.raises(ModelError, match=r"shorten the prompt or set sampling.max_new_tokens = 3 or less$"):
        require_room(12, 9, 4)
    with pytest.raises(ModelError, match=r"reach; shorten the prompt$"):
        require_room(12, 12, 4)


def fits_three(rows):
    if len(rows) > 3:
        raise MemoryError
    return [10 * row for row in rows]


def test_half_as_much_is_done_at_once_where_memory_runs_out_and_no_more_after_that(caplog):
    """Of seven there are 8 at once, then 3 (half of the 7 that there were); the last one is left for a third call."""
    at_once, tries = AtOnce(8, "generate_rows", lambda error: isinstance(error, MemoryError)), []

    def work(rows):
        tries.append(list(rows))
        return fits_three(rows)

    assert at_once.map_batches([6, 5, 4, 3, 2, 1, 0], work, "rows") == [0, 10, 20, 30, 40, 50, 60]
    assert tries == [[6, 5, 4, 3, 2, 1, 0], [6, 5, 4], [3, 2, 1], [0]]
    assert at_once.size == 3 and "memory ran out with generate_rows = 7; going on with 3" in caplog.text


def test_what_is_left_of_the_items_is_done_by_further_calls():
    at_once = AtOnce(4, "generate_rows", lambda error: False)
    results = at_once.map_batches([2, 0, 1], lambda rows: [f"{rows[0]} of {len(rows)}"], "rows")
    assert results == ["0 of 2", "1 of 1", "2 of 3"]


def test_one_that_does_not_fit_alone_and_other_errors_end_the_work():
    with pytest.raises(ModelError, match="memory ran out with generate_rows at 1 already"):
        AtOnce(2, "generate_rows", lambda error: True).map_batches([0], lambda rows: fits_three(4 * list(rows)), "rows")
    with pytest.raises(MemoryError):
        AtOnce(2, "generate_rows", lambda error: False).fitting(lambda size: fits_three("four"))
