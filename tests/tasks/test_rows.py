"""Parquet files and folders that Hugging Face's datasets saved, read by pyarrow."""

import sys
from pathlib import Path

import pytest

from steadyrl.errors import DataError, MissingExtraError
from steadyrl.tasks.prompts import PromptsTask
from steadyrl.tasks.rows import read_rows
from tests import needs

# A column as verl writes it: structs in lists, and a field that only some messages have.
CHAT = [
    {"role": "system", "content": "Be brief.", "name": None},
    {"role": "user", "content": "17 + 25?", "name": "me"},
]
ROWS = [
    {"prompt": CHAT, "reward_model": {"style": "rule", "ground_truth": "42"}, "n": 1},
    {"prompt": CHAT[1:], "reward_model": {"style": "rule", "ground_truth": "7"}, "n": 2},
]


@pytest.fixture(scope="module")
def arrow():
    return needs.package("pyarrow", "data")


def test_the_rows_of_a_parquet_file_are_plain_dicts(arrow, tmp_path):
    from pyarrow import parquet

    path = tmp_path / "train.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    assert list(read_rows(path)) == [(f"{path}, row 1", ROWS[0]), (f"{path}, row 2", ROWS[1])]


def test_a_folder_of_parquet_files_is_read_in_the_order_of_the_names(arrow, tmp_path):
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    for number in (2, 1, 3):
        table = arrow.Table.from_pylist([{"prompt": f"p{number}"}])
        parquet.write_table(table, tmp_path / "data" / f"train-0000{number}-of-00003.parquet")
    assert [row["prompt"] for _, row in read_rows(tmp_path)] == ["p1", "p2", "p3"]


def test_a_folder_that_datasets_saved_is_read(arrow, tmp_path):
    """``Dataset.save_to_disk`` writes Arrow streams beside two JSON files; a ``DatasetDict`` a folder per split."""
    folder = tmp_path / "saved" / "train"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text("{}")
    table = arrow.Table.from_pylist(ROWS)
    with arrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    assert [row for _, row in read_rows(folder)] == ROWS
    with pytest.raises(DataError, match=r"holds the splits train; name one of them, as in .*saved/train"):
        list(read_rows(tmp_path / "saved"))


def test_problems_come_from_parquet_by_names_of_columns(arrow, tmp_path):
    from pyarrow import parquet

    train, heldout = tmp_path / "train.parquet", tmp_path / "test.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), train)
    parquet.write_table(arrow.Table.from_pylist([{"prompt": "x", "n": 3}]), heldout)
    settings = PromptsTask.Settings(path=str(train), heldout=str(heldout), id_column="n")
    problem = PromptsTask(settings).problems("train")[0]
    assert (problem.id, problem.prompt) == ("1", "17 + 25?")
    assert problem.messages == tuple({"role": m["role"], "content": m["content"]} for m in CHAT)
    assert problem.columns["reward_model"] == {"style": "rule", "ground_truth": "42"}


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_damaged_file_is_refused_in_one_line(arrow, tmp_path, ending):
    path = tmp_path / f"bad.{ending}"
    for content in (b"", b"PAR1 but nothing else", b"\x00" * 100):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"cannot read '.*' .*; expected a whole {ending} file"):
            list(read_rows(path))
    with pytest.raises(DataError, match=r"cannot read '.*absent"):
        list(read_rows(tmp_path / f"absent.{ending}"))


def test_a_column_whose_values_python_cannot_hold_is_named(arrow, tmp_path):
    from pyarrow import parquet

    bad_utf8 = arrow.Array.from_buffers(arrow.string(), 1, arrow.array([b"\xff"]).buffers())
    columns = {
        "Nanosecond resolution": arrow.array([1_234_567_891], arrow.timestamp("ns")),
        "date value out of range": arrow.array([2**60], arrow.timestamp("us")),
        "can't decode byte 0xff": bad_utf8,
    }
    for reason, column in columns.items():
        table = arrow.table({"prompt": ["a"], "when": column})
        parquet.write_table(table, tmp_path / "bad.parquet")
        with arrow.ipc.new_stream(str(tmp_path / "bad.arrow"), table.schema) as stream:
            stream.write_table(table)
        for ending in ("parquet", "arrow"):
            with pytest.raises(DataError, match=rf"cannot read 'when' of '.*bad\.{ending}' \(.*{reason}"):
                list(read_rows(tmp_path / f"bad.{ending}"))


def test_a_data_set_on_the_hub_is_answered_with_how_to_get_it():
    with pytest.raises(DataError, match=r"there is no file or folder 'trl-lib/DeepMath-103K'.*to_parquet"):
        list(read_rows(Path("trl-lib/DeepMath-103K")))


def test_a_folder_with_nothing_to_read_is_refused(tmp_path):
    with pytest.raises(DataError, match="is a folder without parquet or arrow files"):
        list(read_rows(tmp_path))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"'pyarrow' is not installed.*steadyrl\[data\]"):
        list(read_rows(tmp_path / "train.parquet"))
