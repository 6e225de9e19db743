import logging
import shutil

import pytest

from steadyrl.environments.search import cache
from steadyrl.environments.search.corpus import Corpus, Request
from steadyrl.environments.search.index import Document
from steadyrl.environments.search.query import parse

SMALL = Corpus(
    "stdlib",
    [Document("a", "red cats"), Document("b", "blue dogs")],
    [Request("a", "what purrs", ("a",))],
    [Request("b", "what barks", ("b", "a"))],
)


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """Put a small corpus in the standard library's place, and an empty cache; return a list with a mark per build."""
    marks = []
    monkeypatch.setattr(cache, "stdlib_corpus", lambda: marks.append("built") or SMALL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return marks


def search(word):
    corpus, index = cache.stdlib_with_index()
    with index:
        return corpus, [index.ids[n] for n in index.search(parse(word).tree)]


def files():
    return {path.suffix: path for path in cache.cache_folder().iterdir()}


def test_the_second_use_reads_what_the_first_built(builds):
    assert search("cats") == search("cats") == (SMALL, ["a"])
    assert builds == ["built"]
    assert sorted(files()) == [".json", ".sqlite"]


@pytest.mark.parametrize("suffix", [".json", ".sqlite"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut", "other"])
def test_a_damaged_file_is_built_again(builds, suffix, damage):
    search("cats")
    path = files()[suffix]
    content = path.read_bytes()
    path.unlink()
    if damage != "removed":
        path.write_bytes({"emptied": b"", "cut": content[: len(content) // 2], "other": b"[1, 2]"}[damage])
    assert search("dogs") == (SMALL, ["b"])
    assert search("dogs") == (SMALL, ["b"])
    assert builds == ["built", "built"]  # mended at the first use, not in vain at every one


@pytest.mark.parametrize(
    "text", ['{"name": "stdlib"}', '{"name": 1, "documents": [1], "train": [], "heldout": []}', "3"]
)
def test_a_file_of_another_kind_is_built_again(builds, text):
    search("cats")
    files()[".json"].write_text(text)
    assert search("dogs") == (SMALL, ["b"])
    assert builds == ["built", "built"]


def test_files_that_do_not_belong_together_are_built_again(builds, monkeypatch):
    search("cats")
    smaller = Corpus("stdlib", SMALL.documents[:1], SMALL.train, [])
    monkeypatch.setattr(cache, "stdlib_corpus", lambda: smaller)
    files()[".sqlite"].unlink()
    search("cats")
    monkeypatch.setattr(cache, "stdlib_corpus", lambda: builds.append("built") or SMALL)
    shutil.copy(files()[".json"], kept := cache.cache_folder().parent / "kept.json")
    files()[".json"].unlink()
    search("cats")
    shutil.copy(kept, files()[".json"])  # one document in the one file, two in the other
    assert search("dogs") == (SMALL, ["b"])
    assert builds == ["built", "built", "built"]


def test_a_cache_that_cannot_be_written_costs_a_build_and_a_warning(builds, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert search("cats") == (SMALL, ["a"])
        assert search("dogs") == (SMALL, ["b"])
    assert builds == ["built", "built"]
    assert "the search corpus is not cached" in caplog.text


def test_a_folder_in_place_of_a_file_works_in_memory(builds):
    search("cats")
    path = files()[".sqlite"]
    path.unlink()
    path.mkdir()
    assert search("dogs") == (SMALL, ["b"])
