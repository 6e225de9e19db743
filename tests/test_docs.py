"""The documents say what is: generated pages equal the code, links and paths lead somewhere, commands exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from steadyrl.cli.main import COMMANDS
from steadyrl.doctor.examine import CHECKS

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def generator():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_is_what_the_code_says():
    assert (ROOT / "docs" / "config.md").read_text() == generator().config_page(), "run `make docs`"


def test_the_page_of_metrics_is_what_the_code_says():
    assert (ROOT / "docs" / "metrics.md").read_text() == generator().metrics_page(), "run `make docs`"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_examples_and_scripts_exist(page):
    paths = re.findall(r"\b((?:examples|scripts|bench)/[\w/.-]+\w)", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_commands_exist(page):
    named = set(re.findall(r"^ {4}steadyrl (\w+)", page.read_text(), re.MULTILINE))
    assert named - set(COMMANDS) == set()


def test_every_room_of_the_tree_exists_and_none_is_left_out():
    tree = (ROOT / "docs" / "architecture.md").read_text().partition("    steadyrl/\n")[2].partition("    scripts/")[0]
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.strip()}
    there = {p.name for p in (ROOT / "steadyrl").iterdir() if not p.name.startswith("__")}
    assert named == there
