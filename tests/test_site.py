"""The site: what its references name exists, its pages have names of their own, and its prose is plain."""

import ast
import gzip
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter

import pytest

import steadyrl
from steadyrl.core import plugins
from steadyrl.core.config import Config, resolve
from tests.test_docs import ROOT, generator

DOCS = ROOT / "docs"
PLUGIN_SECTIONS = ("algorithm", "backend", "task", "sampler", "curriculum")


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_is_what_the_help_says():
    assert (DOCS / "commands.md").read_text() == generator().commands_page(), "run `make docs`"


def test_the_python_reference_names_what_exists_and_all_public_names():
    names = re.findall(r"^\.\. auto\w+:: ([\w.]+)", (DOCS / "api.md").read_text(), re.MULTILINE)
    for module, _, name in (path.rpartition(".") for path in names):
        if module != "steadyrl.integrations.trl":  # needs PyTorch
            assert getattr(importlib.import_module(module), name).__doc__
    public = {name for name in steadyrl._PLACES if name not in ("Config", "RunDir")}  # a page, and Run's base
    assert public - {name.rpartition(".")[2] for name in names} == set()


def test_signatures_in_the_python_reference_are_those_of_the_code():
    lines = re.findall(r"^\.\. autoclass:: ([\w.]+)\((.+)\)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    for path, signature in lines:
        module, _, name = path.rpartition(".")
        if module != "steadyrl.integrations.trl":  # needs PyTorch
            parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
            arguments = ast.parse(f"def f({signature}): ...").body[0].args
            assert [argument.arg for argument in arguments.args] == [p for p in parameters if p[0] != "_"], path
            optional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
            shown = {a.arg: ast.literal_eval(d) for a, d in zip(optional, arguments.defaults, strict=True)}
            defaults = {p: value.default for p, value in parameters.items() if p[0] != "_"}
            optionals = {p: default for p, default in defaults.items() if default is not inspect.Parameter.empty}
            assert {p: {} if repr(default) == "<factory>" else default for p, default in optionals.items()} == shown, (
                path
            )
    assert len(lines) > 8


def test_no_two_pages_have_one_title():
    pages = [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    # The benchmark installs other trainers in a hidden folder.
    own = [page for page in pages if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)]
    titles = Counter(re.search(r"^# (.*)", page.read_text(), re.MULTILINE)[1] for page in own)
    assert len(titles) > 100 and [title for title, count in titles.items() if count > 1] == []


def setting_names():
    """Return every setting by its dotted name; those of all plug-ins of a section together."""
    names = {f"{section}.{key}" for section, field in Config.model_fields.items() for key in fields(field.annotation)}
    for section in PLUGIN_SECTIONS:
        for plugin in plugins.BUILT_IN[section]:
            settings = getattr(plugins.load(section, plugin), "Settings", None)
            names |= {f"{section}.args.{key}" for key in fields(settings)}
    return names


def fields(model):
    return getattr(model, "model_fields", {})


@pytest.mark.parametrize("page", ["from-trl", "from-verl", "from-unsloth"])
def test_settings_beside_those_of_another_trainer_exist(page):
    cells = re.findall(r"^\|[^|\n]*\|([^|\n]*)\|$", (DOCS / f"{page}.md").read_text(), re.MULTILINE)
    sections = "|".join(Config.model_fields)
    named = {name for cell in cells for name in re.findall(rf"`((?:{sections})\.[a-z_.]+)", cell)}
    assert len(named) > 10 and named - setting_names() == set()


def test_the_python_of_the_page_of_the_doctor_alone_runs_without_pytorch(tmp_path, monkeypatch, capsys):
    (tmp_path / "output").mkdir()
    shutil.copy(ROOT / "tests/doctor/readers/data/trainer_state.json", tmp_path / "output")
    monkeypatch.chdir(tmp_path)
    _, from_log, from_loop = re.findall(r"```python\n(.*?)```", (DOCS / "doctor-only.md").read_text(), re.DOTALL)
    assert "torch" not in from_log + from_loop
    exec(from_log, {})
    assert capsys.readouterr().out.startswith("sick\n")
    exec(from_loop, {})
    assert "9 raised reward_constant" in capsys.readouterr().out  # of a reward that never changes


def test_the_diagnosis_on_the_page_of_the_doctor_alone_is_what_the_doctor_says():
    log, shown = re.search(
        r"^\$ gunzip -c (\S+) \| steadyrl doctor -\n([\s\S]*?)^```", (DOCS / "doctor-only.md").read_text(), re.MULTILINE
    ).groups()
    done = subprocess.run(
        [sys.executable, "-m", "steadyrl", "doctor", "-"],
        input=gzip.decompress((ROOT / log).read_bytes()),
        capture_output=True,
    )
    assert done.stdout.decode().strip() == shown.strip()


def test_a_setting_of_verl_is_answered_as_the_page_says():
    page = (DOCS / "from-verl.md").read_text()
    override, answer = re.search(r"^\$ steadyrl train gsm8k.toml (\S+)\nerror: (.*)", page, re.MULTILINE).groups()
    settings = tomllib.loads(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    with pytest.raises(steadyrl.SteadyError) as error:
        resolve(settings, override)
    assert str(error.value) == answer


def test_vague_pronouns_and_long_sentences_are_counted_in_running_text_alone():
    prose = script("prose")
    page = "# What it is\n\nIt runs [here](which/it.md), `it` too.\n\n| it |\n\n```python\nit = that\n```\n"
    assert prose.words(prose.prose(page)) == ["it", "runs", "here", "code", "too"]
    assert prose.vague_share(page) == 20.0
    assert prose.long_sentences("- " + "word " * 30 + "\n- " + "word " * 31) == [("word " * 31).strip()]


def test_the_drawer_of_pages_is_widened_only_where_the_theme_keeps_it_in_place():
    """The theme hides the drawer left of a narrow page by its own width, 15em: a wider one covers the text."""
    lines = (DOCS / "_static" / "steadyrl.css").read_text().splitlines()
    assert [line for line in lines if "drawer" in line and not line.startswith("@media (min-width: 63em)")] == []


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_first_pages_name_their_subjects(page):
    assert script("prose").vague_share((ROOT / page).read_text()) <= 2.5


def test_the_first_pages_have_no_long_sentences():
    prose = script("prose")
    assert [prose.long_sentences((ROOT / page).read_text()) for page in ("README.md", "docs/start.md")] == [[], []]
