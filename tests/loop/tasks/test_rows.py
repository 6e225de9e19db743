"""Parquet files and folders that Hugging Face's datasets saved, read by pyarrow."""

import datetime
import json
import sys

import pytest

from steadyrl.core.errors import DataError, MissingExtraError
from steadyrl.loop.tasks.data_files import find_data
from steadyrl.loop.tasks.prompts import PromptsTask
from steadyrl.loop.tasks.rows import read_rows
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
    assert list(read_rows([path])) == [(f"{path}, row 1", ROWS[0]), (f"{path}, row 2", ROWS[1])]


def test_a_folder_of_parquet_files_is_read_in_the_order_of_the_names(arrow, tmp_path):
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    for number in (2, 1, 3):
        table = arrow.Table.from_pylist([{"prompt": f"p{number}"}])
        parquet.write_table(table, tmp_path / "data" / f"train-0000{number}-of-00003.parquet")
    assert [row["prompt"] for _, row in read_rows(find_data(tmp_path).splits["train"])] == ["p1", "p2", "p3"]


def save(arrow, path, rows):
    """Write an Arrow stream, as ``datasets`` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow.Table.from_pylist(rows)
    with arrow.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)


@pytest.mark.parametrize("ending", ["arrow", "feather"])
def test_an_arrow_file_is_read_in_all_its_batches_though_it_is_no_stream(arrow, tmp_path, ending):
    table = arrow.Table.from_pylist(ROWS)
    with arrow.ipc.new_file(str(tmp_path / f"a.{ending}"), table.schema) as file:
        file.write_table(table, max_chunksize=1)
    assert [row for _, row in read_rows([tmp_path / f"a.{ending}"])] == ROWS


def test_a_folder_that_datasets_saved_is_read_without_its_caches(arrow, tmp_path):
    """``Dataset.save_to_disk`` writes Arrow streams beside two JSON files; ``map`` a cache beside them."""
    save(arrow, tmp_path / "saved" / "data-00000-of-00001.arrow", ROWS)
    save(arrow, tmp_path / "saved" / "cache-1234.arrow", ROWS[:1])
    (tmp_path / "saved" / "state.json").write_text("{}")
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    splits = find_data(tmp_path / "saved").splits
    assert list(splits) == ["train"]
    assert [row for _, row in read_rows(splits["train"])] == ROWS


def test_the_splits_of_a_saved_dict_have_the_names_that_it_lists(arrow, tmp_path):
    """``DatasetDict.save_to_disk`` writes a folder per split, and the names in dataset_dict.json."""
    for number, split in enumerate(("train_sft", "test_sft")):
        save(arrow, tmp_path / split / "data-00000-of-00001.arrow", ROWS[number : number + 1])
    listed = tmp_path / "dataset_dict.json"
    listed.write_text('{"splits": ["train_sft", "test_sft"]}')
    splits = find_data(tmp_path).splits
    assert {name: [row for _, row in read_rows(files)] for name, files in splits.items()} == {
        "train_sft": ROWS[:1],
        "test_sft": ROWS[1:],
    }
    listed.write_text('{"splits": ["train_sft", "gone"]}')
    with pytest.raises(DataError, match="names the split gone, and no arrow file of it is there"):
        find_data(tmp_path)
    listed.write_text("[]")
    with pytest.raises(DataError, match="is damaged"):
        find_data(tmp_path)


def test_csv_is_read_with_numbers_as_numbers_and_dates_as_texts(arrow, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('prompt,n,when\n"one, ""two""\nthree",1,2024-01-05\nfour,2,2024-01-06\n')
    expected = [
        {"prompt": 'one, "two"\nthree', "n": 1, "when": "2024-01-05"},
        {"prompt": "four", "n": 2, "when": "2024-01-06"},
    ]
    assert list(read_rows([path])) == [(f"{path}, row {i + 1}", row) for i, row in enumerate(expected)]
    (tmp_path / "b.tsv").write_text("prompt\tn\na,b\t1\n")
    assert [row for _, row in read_rows([tmp_path / "b.tsv"])] == [{"prompt": "a,b", "n": 1}]
    path.write_text("prompt,n\na,b,c\n")
    with pytest.raises(DataError, match=r"cannot read '.*a\.csv' .*; expected a whole csv file"):
        list(read_rows([path]))


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ("question;answer\nHalf of 3, please?;1,5\n", {"question": "Half of 3, please?", "answer": "1,5"}),
        ('"a, b";c\n"x;y";z\n', {"a, b": "x;y", "c": "z"}),
        ("question,note\nx;y,z\n", {"question": "x;y", "note": "z"}),
        ("question\tnote\nx\ty\n", {"question": "x", "note": "y"}),
        ("question\nx;y\n", {"question": "x;y"}),
        ("sep=;\nquestion;note\na, b;007\n", {"question": "a, b", "note": "007"}),
        ("\ufeffSEP=,\r\nquestion,note\r\nx;y,3\r\n", {"question": "x;y", "note": 3}),
    ],
)
def test_the_names_of_the_columns_tell_what_separates_them(arrow, tmp_path, content, row):
    (tmp_path / "sheet.csv").write_text(content)
    assert [read for _, read in read_rows([tmp_path / "sheet.csv"])] == [row]


def test_numbers_with_zeros_before_them_stay_texts_in_csv(arrow, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prompt,zip,price,n,none\na,01234,1.50,0,\nb,99999,0.5,-7,3\n")
    assert [row for _, row in read_rows([path])] == [
        {"prompt": "a", "zip": "01234", "price": 1.5, "n": 0, "none": None},
        {"prompt": "b", "zip": "99999", "price": 0.5, "n": -7, "none": 3},
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt,gold,gold\na,1,2\n", "has two columns called 'gold'"),
        ("prompt,gold\na,caf\xe9\n", "the column 'gold' is not valid UTF-8; save the file as UTF-8"),
    ],
)
def test_a_csv_file_whose_cells_cannot_be_told_is_refused(arrow, tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content.encode("latin1"))
    with pytest.raises(DataError, match=message):
        list(read_rows([tmp_path / "a.csv"]))


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.csv"])
def test_a_pointer_of_git_lfs_is_called_one(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(DataError, match=f"{name}' is a pointer of Git LFS, .* run `git lfs pull`"):
        list(read_rows([tmp_path / name]))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a"])
def test_a_json_file_holds_a_list_of_objects_or_an_object_per_line(tmp_path, name):
    path, rows = tmp_path / name, [{"prompt": "a"}, {"prompt": "b"}]
    path.write_text(json.dumps(rows, indent=1))
    assert list(read_rows([path])) == [(f"{path}, item {i + 1}", row) for i, row in enumerate(rows)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(read_rows([path])) == [(f"{path}, line {i + 1}", row) for i, row in enumerate(rows)]
    for text, message in (('[{"a": 1}, 2]', "item 2: got a number"), ('[{"a": 1}', "not valid JSON"), ("[NaN]", "NaN")):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            list(read_rows([path]))


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


@pytest.mark.parametrize("prompt", [b"2 + 2?", datetime.date(2021, 2, 3)])
def test_a_prompt_of_a_table_that_is_no_text_is_refused_by_its_type(arrow, tmp_path, prompt):
    save(arrow, tmp_path / "a.arrow", [{"prompt": prompt}] * 2)
    kind = type(prompt).__name__
    with pytest.raises(DataError, match=f"row 1: 'prompt' is of the type {kind}; expected text in quotes"):
        PromptsTask(PromptsTask.Settings(path=str(tmp_path / "a.arrow")))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_damaged_file_is_refused_in_one_line(arrow, tmp_path, ending):
    path = tmp_path / f"bad.{ending}"
    for content in (b"", b"PAR1 but nothing else", b"\x00" * 100):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"cannot read '.*' .*; expected a whole {ending} file"):
            list(read_rows([path]))


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
                list(read_rows([tmp_path / f"bad.{ending}"]))


def test_a_folder_with_nothing_to_read_is_refused(tmp_path):
    with pytest.raises(DataError, match="is a folder without data: expected files of parquet, arrow"):
        find_data(tmp_path)


@pytest.mark.parametrize("name", ["no.jsonl", "no.csv", "no.parquet", "no.arrow"])
def test_a_file_that_is_not_there_is_no_damaged_file(tmp_path, name):
    if not name.endswith("jsonl"):
        needs.package("pyarrow", "data")
    with pytest.raises(DataError, match=rf"there is no file .*{name}; check the path"):
        list(read_rows([tmp_path / name]))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"'pyarrow' is not installed.*steadyrl\[data\]"):
        list(read_rows([tmp_path / "train.parquet"]))
