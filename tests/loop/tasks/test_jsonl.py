import gzip
import re
import sys
from pathlib import Path

import pytest

from steadyrl.core.errors import DataError
from steadyrl.loop.tasks import jsonl
from steadyrl.loop.tasks.jsonl import Line, held_out_ids, read_lines, read_objects
from steadyrl.loop.tasks.rows import read_rows


def written(tmp_path, data):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def objects(path):
    return [(line.number, line.record) for line in read_objects(path)]


def refusal(path):
    with pytest.raises(DataError) as caught:
        list(read_objects(path))
    return str(caught.value)


def test_objects_come_with_their_line_numbers_and_blank_lines_count(tmp_path):
    path = written(tmp_path, '{"a": 1}\n\n  \r\n{"b": "é"}\r\n')
    assert objects(path) == [(1, {"a": 1}), (4, {"b": "é"})]


def test_a_whole_last_line_needs_no_line_end(tmp_path):
    assert objects(written(tmp_path, '{"a": 1}\n{"a": 2}')) == [(1, {"a": 1}), (2, {"a": 2})]


def test_an_empty_file_has_no_objects(tmp_path):
    assert objects(written(tmp_path, "")) == []


def test_a_byte_order_mark_is_skipped(tmp_path):
    assert objects(written(tmp_path, b'\xef\xbb\xbf{"a": 1}\n')) == [(1, {"a": 1})]


def test_unicode_line_separators_inside_text_do_not_split_a_line(tmp_path):
    assert objects(written(tmp_path, '{"a": "x\u2028y"}\n')) == [(1, {"a": "x\u2028y"})]


def test_lines_keep_their_tabs(tmp_path):
    assert list(read_lines(written(tmp_path, "a\tb\t\r\n"))) == [(1, "a\tb\t")]


def test_objects_are_read_one_by_one(tmp_path):
    rows = read_objects(written(tmp_path, '{"a": 1}\nbroken\n'))
    assert next(rows).record == {"a": 1}
    with pytest.raises(DataError, match="line 2"):
        next(rows)


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_a_table_in_the_place_of_json_lines_is_called_one(tmp_path, name):
    (tmp_path / name).write_text("prompt,answer\na,b\n")
    with pytest.raises(DataError, match=r"line 1: not valid JSON \(.*\); expected one object per line \(.*a table"):
        next(read_objects(tmp_path / name))


def test_an_object_of_several_lines_and_a_packed_file_are_called_so(tmp_path):
    assert "has an object several lines?" in refusal(written(tmp_path, '{\n "a": 1\n}\n'))
    assert "unpack the file, or save it as UTF-8" in refusal(written(tmp_path, b"\x28\xb5\x2f\xfd\x00"))  # of zstd


def test_a_missing_file_is_named_with_the_folder_that_a_relative_path_begins_in(tmp_path, monkeypatch):
    path = tmp_path / "absent.jsonl"
    assert refusal(path) == f"there is no file {path}; check the path"
    monkeypatch.chdir(tmp_path)
    assert refusal(Path("absent.jsonl")) == f"there is no file absent.jsonl, seen from {tmp_path}; check the path"


def test_a_folder_is_not_read_as_a_file(tmp_path):
    assert refusal(tmp_path).startswith(f"cannot read {tmp_path} (")


def test_invalid_json_is_named_by_line(tmp_path):
    path = written(tmp_path, '{"a": 1}\n{a: 1}\n')
    assert refusal(path).startswith(f"{path}, line 2: not valid JSON (Expecting property name")


def test_a_torn_last_line_is_named_by_line(tmp_path):
    assert "line 3: not valid JSON" in refusal(written(tmp_path, '{"a": 1}\n{"a": 2}\n{"a": "thr'))


def test_a_line_torn_inside_a_character_is_named_by_line_and_byte(tmp_path):
    message = refusal(written(tmp_path, b'{"a": 1}\n{"a": "\xc3'))
    assert "line 2: not valid UTF-8 at byte 8 of the line" in message


def test_numbers_that_json_does_not_have_are_refused(tmp_path):
    assert "line 1: not valid JSON (NaN is not a JSON number)" in refusal(written(tmp_path, '{"a": NaN}\n'))


@pytest.mark.parametrize(
    "line", ['{"a": 1, "b": 2, "a": 3}', '{"b": [{"a": {}, "a": {}}]}', '{"a": "x", "\\u0061": "x"}']
)
def test_a_key_that_stands_twice_is_refused_for_only_one_of_its_values_could_count(line, tmp_path):
    path = written(tmp_path, '{"a": 1, "b": {"a": 2}}\n' + line)
    assert f"{path}, line 2: not valid JSON (the key 'a' stands twice in an object)" in refusal(path)
    (tmp_path / "list.json").write_text(f"[{line}]")
    with pytest.raises(DataError, match="the key 'a' stands twice"):
        list(read_rows([tmp_path / "list.json"]))


def test_nesting_too_deep_to_read_is_refused(tmp_path):
    depth = 100 * sys.getrecursionlimit()
    assert "line 1: not valid JSON" in refusal(written(tmp_path, "[" * depth + "]" * depth))


@pytest.mark.parametrize(
    ("line", "kind"),
    [("null", "null"), ("true", "true or false"), ("3", "a number"), ('"a"', "text"), ("[1]", "a list")],
)
def test_a_line_that_is_no_object_is_refused_by_what_it_is(tmp_path, line, kind):
    assert f"line 2: got {kind}; expected a JSON object" in refusal(written(tmp_path, f"{{}}\n{line}\n"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"b": 1, "c": 2}, "rows, line 7: 'a' is missing; the line has b, c"),
        ({}, "rows, line 7: 'a' is missing; the line has no key"),
        ({"a": 5}, "rows, line 7: 'a' is a number; expected text in quotes"),
        ({"a": {}}, "rows, line 7: 'a' is an object; expected text in quotes"),
        ({"a": "xy\ud800"}, "rows, line 7: 'a' is not valid Unicode at character 3"),
    ],
)
def test_a_field_that_is_no_text_is_refused(record, message):
    with pytest.raises(DataError, match="^" + re.escape(message)):
        Line("rows", 7, record).text("a")


def test_a_text_may_be_empty_but_a_filled_field_may_not():
    assert Line("rows", 7, {"a": " "}).text("a") == " "
    assert Line("rows", 7, {"a": " x"}).filled("a") == " x"
    with pytest.raises(DataError, match=r"^rows, line 7: 'a' is empty; give it a text or remove the line$"):
        Line("rows", 7, {"a": " "}).filled("a")


def test_the_held_out_share_is_exact_and_does_not_depend_on_the_order():
    ids = [f"q{number}" for number in range(100)]
    held_out = held_out_ids(ids, 0.2)
    assert len(held_out) == 20
    assert held_out < set(ids)
    assert held_out_ids(ids[::-1], 0.2) == held_out
    assert held_out_ids(ids, 0.2, seed=1) != held_out


def test_the_held_out_ids_are_the_same_on_every_machine():
    # The smallest three by `printf "$id/0" | sha256sum`.
    assert held_out_ids(["a", "b", "c", "d", "e", "f"], 0.5) == {"d", "e", "b"}


def test_at_least_one_id_is_held_out():
    assert len(held_out_ids(["a", "b"], 0.01)) == 1


def test_a_gzipped_file_is_read_line_by_line_and_bounded(tmp_path, monkeypatch):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n\n{"a": 2}\n'))
    assert objects(path) == [(1, {"a": 1}), (3, {"a": 2})]
    monkeypatch.setattr(jsonl, "_MOST_UNPACKED", 1000)
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 10**6))
    read = []
    with pytest.raises(DataError, match="unpacks to more than"):
        read += jsonl.read_objects(path)
    assert len(read) <= 112  # 1000 bytes hold no more lines


@pytest.mark.parametrize("cut", [5, 12, 30])
def test_a_torn_gzipped_file_is_named(tmp_path, cut):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-cut])
    with pytest.raises(DataError, match="is no gzip file"):
        list(jsonl.read_objects(path))


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "_LONGEST_LINE", 100)
    (tmp_path / "data.jsonl").write_text('{"a": 1}\n' + "x" * 101)
    with pytest.raises(DataError, match="line 2: longer than"):
        list(jsonl.read_objects(tmp_path / "data.jsonl"))


def test_an_object_nested_without_end_is_refused(tmp_path):
    for depth in (70, 100_000):
        (tmp_path / "data.jsonl").write_text('{"a": ' + "[" * depth + "]" * depth + "}")
        with pytest.raises(DataError, match="nested deeper"):
            list(jsonl.read_objects(tmp_path / "data.jsonl"))
