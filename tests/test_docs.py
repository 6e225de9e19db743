"""The documents say what is: generated pages equal the code, links and paths lead somewhere, commands exist."""

import gzip
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from steadyrl.cli.main import COMMANDS
from steadyrl.core.config import Config
from steadyrl.doctor.examine import CHECKS
from steadyrl.show.report.figures import against_rules

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def generator():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_is_what_the_code_says():
    assert (ROOT / "docs" / "config.md").read_text() == generator().config_page(), "run `make docs`"


def sections(model):
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation)


def test_every_setting_is_described():
    meanings = generator().meanings
    missing = {
        model.__name__: model.model_fields.keys() - meanings(model).keys()
        for model in sections(Config)
        if model is not Config
    }
    assert len(missing) > 10 and [name for name, fields in missing.items() if fields] == []


def test_the_page_of_metrics_is_what_the_code_says():
    assert (ROOT / "docs" / "metrics.md").read_text() == generator().metrics_page(), "run `make docs`"


def test_the_pages_of_the_preflight_and_of_the_check_of_a_task_are_what_the_code_says():
    assert (ROOT / "docs" / "preflight-checks.md").read_text() == generator().preflight_page(), "run `make docs`"
    assert (ROOT / "docs" / "task-checks.md").read_text() == generator().tasks_page(), "run `make docs`"


def test_the_pages_of_the_doctor_are_what_the_code_says():
    made = generator()
    doctor = ROOT / "docs" / "doctor"
    there = {page.name: page.read_text() for page in doctor.glob("*.md") if page.name not in made.WRITTEN}
    expected = made.doctor_pages()
    assert sorted(there) == sorted(expected), "run `make docs`"
    assert [name for name, text in expected.items() if there[name] != text] == [], "run `make docs`"


def test_the_overview_of_the_doctor_names_every_check():
    overview = (ROOT / "docs" / "doctor" / "README.md").read_text()
    assert [check.name for check in CHECKS if f"[{check.name}]({check.name}.md)" not in overview] == []


def matches(pattern):
    """Return what a pattern finds in the pages, each with its page."""
    compiled = re.compile(pattern, re.MULTILINE)
    return [(page, text) for page in PAGES for text in compiled.findall(page.read_text())]


def test_links_lead_to_files():
    links = matches(r"\]\((?!http)([^)#]+)")
    assert len(links) > 100 and [(page, link) for page, link in links if not (page.parent / link).exists()] == []


def test_named_examples_and_scripts_exist():
    paths = matches(r"\b((?:examples|scripts|bench)/[\w/.-]+\w)")
    assert len(paths) > 100 and [(page, path) for page, path in paths if not (ROOT / path).exists()] == []


def test_named_commands_exist():
    names = [
        (page, name)
        for page, block in matches(r"^```(?:bash|console)\n([\s\S]*?)^```|((?:^ {4}.*\n)+)")
        for name in re.findall(r"^(?: {4}|\$ )?steadyrl (\w+)", "".join(block), re.MULTILINE)
    ]
    assert len(names) > 30 and [(page, name) for page, name in names if name not in COMMANDS] == []


def test_every_room_of_the_tree_exists_and_none_is_left_out():
    tree = (ROOT / "docs" / "architecture.md").read_text().partition("    steadyrl/\n")[2].partition("    scripts/")[0]
    rooms, inside, room = set(), [], ""
    for line in filter(str.strip, tree.splitlines()):
        name = line.split()[0].rstrip("/")
        if line.startswith(" " * 8):
            inside.append(ROOT / "steadyrl" / room / name)
        else:
            room = name
            rooms.add(room)
    assert rooms == {path.name for path in (ROOT / "steadyrl").iterdir() if not path.name.startswith("__")}
    assert len(inside) > 20 and [path for path in inside if not path.exists()] == []


def test_titles_of_the_log_have_at_most_twelve_words():
    titles = [(page.name, title) for page, title in matches(r"^### (.*)") if page.parent == ROOT / "docs" / "log"]
    assert len(titles) > 100 and [title for title in titles if len(title[1].split()) > 12] == []


def test_an_entry_of_the_changelog_is_one_line():
    lines = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")[2].splitlines()
    assert len(lines) > 50 and [line for line in lines if line.startswith(" ") or len(line) > 150] == []


def test_pages_of_studies_are_below_a_megabyte():
    sizes = {page: page.stat().st_size for page in (ROOT / "docs" / "studies").glob("*/report.html")}
    assert sizes and [page for page, size in sizes.items() if size >= 1_000_000] == []


def test_the_transcript_of_the_start_page_has_the_line_on_answers_without_a_model():
    page = (ROOT / "docs" / "start.md").read_text()
    after = float(re.search(r"held-out retrieval, sampled: [\d.]+ -> ([\d.]+)", page)[1])
    rules = {name: {"metric": float(score)} for name, score in re.findall(r"\n +without a model, (.*): ([\d.]+)", page)}
    assert f"\n    {against_rules(after, rules)}\n" in page


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_diagnosis_in_the_readme_is_what_the_doctor_says():
    readme = (ROOT / "README.md").read_text()
    command, shown = re.search(r"^```console\n\$ (.*)\n([\s\S]*?)^```", readme, re.MULTILINE).groups()
    log = re.fullmatch(r"gunzip -c (\S+) \| steadyrl doctor -", command)[1]
    code = "import sys; from steadyrl.cli.main import main; sys.argv = ['steadyrl', 'doctor', '-']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=gzip.decompress((ROOT / log).read_bytes()), capture_output=True
    )
    assert done.stdout.decode().split() == shown.split()
    assert max(map(len, shown.splitlines())) <= 80  # as a terminal shows it
