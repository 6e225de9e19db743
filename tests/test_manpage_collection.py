import gzip
import importlib
import json
from pathlib import Path

import pytest

PAUSE = r"""
.\" a note that names .BR raise (3)
.TH pause 2 2022-10-30 "Linux man-pages 6.03"
.SH NAME
pause, rest \- wait for a signal
.SH SYNOPSIS
.B int pause(void);
.SH "RETURN VALUE"
.BR pause ()
returns \-1, and
.I errno
is set to
.BR EINTR .\" as POSIX says
It does \fInot\fP end\(emnever.
.SH SEE ALSO
.BR kill (2),
.BR sem_wait (3)
"""


@pytest.fixture
def collection(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "scripts")
    return importlib.import_module("manpage_collection")


def test_a_page_is_read_as_its_summary_its_other_sections_and_the_pages_that_it_names(collection):
    summary, body, named = collection.read_page(PAUSE)
    assert summary == "wait for a signal"
    assert body == "pause () returns -1, and errno is set to EINTR . It does not end never."
    assert named == ["kill.2", "sem_wait.3"]


def test_pages_of_other_projects_and_pages_that_name_no_others_are_left_out(collection):
    assert collection.read_page(PAUSE.replace("Linux man-pages", "Tcl")) is None
    assert collection.read_page(PAUSE.replace("SEE ALSO", "NOTES")) is None
    assert collection.read_page(PAUSE.replace(r"\- wait", "wait")) is None


def test_a_request_asks_for_its_page_and_those_that_it_names(collection):
    pages = {
        "pause.2": ("wait for a signal", "body", ["kill.2", "nothing.1"]),
        "kill.2": ("send a signal to it", "body", ["nothing.1"]),
        "sigpause.3": ("Wait for a signal", "body", ["kill.2"]),
        "raise.3": ("send signal", "body", ["kill.2"]),
    }
    assert collection.requests_of(pages) == {"pause.2": ("wait for a signal", ["kill.2", "pause.2"])}


def test_the_folder_holds_the_pages_the_requests_and_what_answers_them(collection, tmp_path):
    man = tmp_path / "man"
    (man / "man2").mkdir(parents=True)
    kill = PAUSE.replace("pause, rest", "kill").replace("wait for a signal", "send a signal to a process")
    for name, source in (("pause.2", PAUSE), ("kill.2", kill), ("odd.2", PAUSE.replace("Linux", "BSD"))):
        (man / "man2" / f"{name}.gz").write_bytes(gzip.compress(source.encode()))
    (man / "man2" / "rest.2.gz").symlink_to("pause.2.gz")
    collection.main(tmp_path / "made", man)
    documents = [json.loads(line) for line in (tmp_path / "made" / "corpus.jsonl").read_text().splitlines()]
    assert [document["_id"] for document in documents] == ["kill.2", "pause.2"]
    assert documents[1]["text"].startswith("pause pause () returns -1")
    with pytest.raises(SystemExit, match="is there already; name a new folder"):
        collection.main(tmp_path / "made", man)
    judged = [
        (tmp_path / "made" / "qrels" / f"{split}.tsv").read_text().splitlines()[1:] for split in ("train", "test")
    ]
    assert sorted(line for lines in judged for line in lines) == ["pause.2\tkill.2\t1", "pause.2\tpause.2\t1"]


def test_a_folder_without_pages_is_refused_in_one_line(collection, tmp_path):
    with pytest.raises(SystemExit, match="holds no Linux man-pages; install Debian's packages"):
        collection.main(tmp_path / "made", tmp_path)
    assert not (tmp_path / "made").exists()
