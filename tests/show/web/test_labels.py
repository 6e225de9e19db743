import json
import os
from urllib.parse import urlencode

import pytest

from steadyrl.core.errors import AccessError, RunError
from steadyrl.core.rundir import append_line, write_json
from tests import needs
from tests.show.web.ask import ask
from tests.show.web.made import make_run, metrics

needs.skip_without_packages("starlette", extra="web")

from steadyrl.show.web.app import create  # noqa: E402 # it needs the packages
from steadyrl.show.web.folder import Label, Labels  # noqa: E402
from steadyrl.show.web.serve import Guard  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "one")
    make_run(tmp_path / "two", algorithm="grpo")
    return tmp_path


def send(app, *fields, **headers):
    body = urlencode(fields).encode()
    return ask(app, "/labels", "POST", body, content_type="application/x-www-form-urlencoded", **headers)


def test_a_run_is_renamed_tagged_noted_grouped_and_hidden_and_nothing_else_is_written(folder):
    app = create(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    fields = [("run", "one"), ("name", "the slow one"), ("tags", "paper, final,paper"), ("group", "rates")]
    answer = send(app, *fields, ("note", "rate 1e-4\nheld"), ("do", "label"))
    assert (answer.status, answer.headers["location"]) == (303, "/run/one")
    assert json.loads((folder / "labels.json").read_text()) == {
        "runs": {
            "one": {"name": "the slow one", "group": "rates", "note": "rate 1e-4 held", "tags": ["paper", "final"]}
        },
        "columns": None,
    }
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "labels.json"}
    assert after == before
    for address in ("/", "/run/one", "/run/one/live", "/run/one/rollouts"):
        assert "the slow one" in ask(app, address).text
    assert ask(app, "/?tag=paper").text.count('name="run"') == 1
    assert ask(app, "/?q=slow").text.count('name="run"') == 1
    grouped = ask(app, "/?by=group&sort=name").text
    places = [grouped.index(part) for part in (">rates <", "the slow one</a>", ">no group <", ">two</a>")]
    assert places == sorted(places)
    send(app, ("run", "one"), ("do", "hide"))
    assert "the slow one" not in ask(app, "/").text
    assert "the slow one" in ask(app, "/?hidden=1").text
    send(app, ("run", "one"), ("name", ""), ("do", "label"))  # nothing is left of it
    assert json.loads((folder / "labels.json").read_text())["runs"] == {}


def test_several_marked_runs_are_tagged_at_once_and_the_table_stays_where_it_was(folder):
    app = create(folder)
    answer = send(app, ("run", "one"), ("run", "two"), ("value", "kept"), ("back", "sort=step"), ("do", "tag"))
    assert answer.headers["location"] == "/?sort=step"
    labels = Labels(folder).read().runs
    assert labels == {"one": Label(tags=("kept",)), "two": Label(tags=("kept",))}
    send(app, ("run", "two"), ("value", "kept"), ("do", "untag"))
    assert Labels(folder).read().runs == {"one": Label(tags=("kept",))}


def test_the_columns_are_those_that_were_chosen_metrics_of_the_last_step_too(folder):
    app = create(folder)
    append_line(folder / "one" / "metrics.jsonl", metrics(20, grad_norm=0.625))
    send(app, ("column", "grad_norm"), ("column", "algorithm"), ("do", "columns"))
    text = ask(app, "/?sort=-grad_norm").text
    assert 'data-label="grad_norm">' in text and "0.625" in text
    assert text.index(">one</a>") < text.index(">two</a>"), "the run without the metric comes last"
    assert 'data-label="verdict"' not in text
    send(app, ("do", "columns"))
    assert 'data-label="verdict"' in ask(app, "/").text


@pytest.mark.parametrize(
    "fields",
    [
        [("run", "../one"), ("name", "x"), ("do", "label")],
        [("run", "none"), ("do", "hide")],
        [("do", "hide")],
        [("run", "one"), ("do", "remove")],
        [("run", "one")] * 600,
        [("run", "one"), ("note", "x" * 200_000), ("do", "label")],
    ],
)
def test_a_form_that_names_no_run_or_nothing_to_do_writes_nothing(folder, fields):
    assert send(create(folder), *fields).status == 404
    assert not (folder / "labels.json").exists()


def test_only_pages_of_this_server_may_write(folder):
    guarded = Guard(create(folder), "127.0.0.1", 8765, "secret")
    fields = [("run", "one"), ("do", "hide")]
    known = {"cookie": "steadyrl-8765=secret"}
    assert send(guarded, *fields).status == 403  # without the token
    assert send(guarded, *fields, origin="http://evil.example", **known).status == 403
    assert send(guarded, *fields, origin="null", **known).status == 403
    assert send(guarded, *fields, sec_fetch_site="cross-site", **known).status == 403
    assert not (folder / "labels.json").exists()
    assert send(guarded, *fields, origin="http://127.0.0.1:8765", **known).status == 303
    open_to_all = Guard(create(folder), "127.0.0.1", 8765, "")
    assert send(open_to_all, ("run", "two"), ("do", "hide"), origin="http://evil.example").status == 403
    assert "two" not in (folder / "labels.json").read_text()


def test_what_comes_back_leads_to_this_server_only(folder):
    answer = send(create(folder), ("run", "one"), ("back", "//evil.example"), ("do", "hide"))
    assert answer.headers["location"].startswith("/?")


@pytest.mark.parametrize("name", ["labels.json", "labels.json.part"])
def test_no_link_is_followed_to_another_file(folder, tmp_path_factory, name):
    other = tmp_path_factory.mktemp("other") / "precious"
    other.write_text("{}")
    os.symlink(other, folder / name)
    with pytest.raises(AccessError, match="no plain file"):
        Labels(folder).change(["one"], name="x")
    assert other.read_text() == "{}"
    assert send(create(folder), ("run", "one"), ("name", "x"), ("do", "label")).status == 404
    assert ask(create(folder), "/").status == 200
    assert "no plain file" in ask(create(folder), "/").text


@pytest.mark.parametrize("content", ["{", "[]", '{"runs": []}', '{"runs": {}, "columns": 3}'])
def test_a_damaged_file_of_labels_is_named_and_not_lost(folder, content):
    (folder / "labels.json").write_text(content)
    text = ask(create(folder), "/").text
    assert "damaged" in text or "cannot read" in text
    assert ">one</a>" in text
    with pytest.raises(RunError):
        Labels(folder).change(["one"], name="x")
    assert (folder / "labels.json").read_text() == content


def test_whatever_the_file_holds_is_text_of_a_length_that_fits(folder):
    hostile = "<script>alert(1)</script>"
    odd = {"name": hostile * 40, "tags": [hostile, 3, None], "note": 7, "hidden": "yes", "group": [hostile]}
    write_json(folder / "labels.json", {"runs": {"one": odd, "two": 3}, "columns": [hostile, "heldout"]})
    label = Labels(folder).read().runs["one"]
    assert (len(label.name), label.tags, label.note, label.hidden, label.group) == (120, (hostile,), "", False, "")
    for address in ("/", "/run/one"):
        assert "<script>alert" not in ask(create(folder), address).text
    assert "labels.json" not in [place.name for place in create_places(folder)]


def create_places(folder):
    from steadyrl.show.web.folder import Folder

    return Folder(folder).runs()
