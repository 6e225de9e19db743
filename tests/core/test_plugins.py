import glob
import linecache
import re
import sys
from types import ModuleType

import pytest

import steadyrl
from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, DataError, MissingExtraError, SteadyError
from steadyrl.core.protocols import Task
from steadyrl.core.types import Problem
from steadyrl.integrations.trackers.tracker import Tracker
from steadyrl.lab.launchers.command import choose
from steadyrl.loop.rewards.combine import make_terms
from steadyrl.loop.rewards.founding import length


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(kind, name):
    with pytest.raises(ConfigError) as caught:
        plugins.load(kind, name)
    return str(caught.value)


def test_a_short_name_and_its_import_path_give_the_same():
    assert plugins.load("reward", "length") is length
    assert plugins.load("reward", "steadyrl.loop.rewards.founding:length") is length


@pytest.mark.parametrize("place", ["a module", "the session"])
def test_a_function_of_a_notebooks_cell_that_is_defined_anew_is_other_code(monkeypatch, place):
    cells = ModuleType("cells_of_mine")
    monkeypatch.setitem(sys.modules, cells.__name__, cells)

    def digests(value):
        name = f"/nowhere/{value}.py"  # as a kernel names the cell that holds this text
        lines = ["def score(completion):\n", f"    return {value}\n"]
        monkeypatch.setitem(linecache.cache, name, (1, None, lines, name))
        exec(compile("".join(lines), name, "exec"), cells.__dict__)
        path = "cells_of_mine:score" if place == "a module" else plugins.session_path(cells.score, "other")
        return {key.rpartition(":")[2]: digest for key, digest in plugins.own_code([("reward", path)]).items()}

    first, other = digests(0.5), digests(0.25)
    assert first.keys() == other.keys() and len(first) == 1
    assert first != other and digests(0.5) == first


def test_an_unknown_name_is_answered_with_one_that_exists():
    assert refusal("reward", "lenght").startswith("no reward is called 'lenght'; did you mean 'length'?")
    assert "known are grpo, ppo, raft, reinforce, rlaif, rloo, rwr, sft" in refusal("algorithm", "zzzz")
    assert "'package.module:name'" in refusal("backend", "jax")
    assert "known are own, vllm" in refusal("sampler", "sglang")
    assert refusal("tracker", "xlsx").endswith("; `steadyrl metrics RUN --to csv` or `--to parquet` writes a table")


def test_a_module_in_the_current_folder_is_found(here):
    (here / "mine_here.py").write_text("def brevity(problem, rollout):\n    return 4.0\n")
    assert plugins.load("reward", "mine_here:brevity")(None, None) == 4.0


def test_a_built_in_name_does_not_look_into_the_current_folder(here):
    plugins.load("reward", "length")
    assert str(here) not in sys.path


@pytest.mark.parametrize("name", ["absent_here:f", "absent_here.sub:f", "steadyrl.absent:f"])
def test_a_module_that_does_not_exist_is_named(here, name):
    message = refusal("reward", name)
    assert f"'{name}': there is no module '{'steadyrl.absent' if 'steadyrl' in name else 'absent_here'}'" in message
    assert "in the current folder or in what is installed" in message


def test_an_attribute_that_does_not_exist_is_named():
    message = refusal("reward", "steadyrl.loop.rewards.founding:brevity")
    assert "module 'steadyrl.loop.rewards.founding' has no 'brevity'" in message


def test_a_module_elsewhere_that_hides_one_here_is_named_by_its_file(here):
    (here / "glob.py").write_text("def brevity(completion): return 1.0\n")
    file = glob.__file__
    assert f"'glob:brevity': module 'glob' ({file}) has no 'brevity'" in refusal("reward", "glob:brevity")
    assert "module 'sys' (built into Python) has no 'brevity'" in refusal("reward", "sys:brevity")
    (here / "users_folder").mkdir()  # without an __init__.py
    assert "module 'users_folder' has no 'brevity'" in refusal("reward", "users_folder:brevity")


@pytest.mark.parametrize("name", [":f", "mod:", ".mod:f", "a b:f", "mod:f:g", "mod.:f", "mod:f()"])
def test_what_is_no_import_path_is_refused(name):
    assert f"'{name}' is no import path; expected 'package.module:name'" in refusal("reward", name)


def test_a_package_that_the_users_module_lacks_is_named_not_the_module(here):
    (here / "needs_more.py").write_text("import absent_package.sub\n")
    with pytest.raises(MissingExtraError, match=r"'absent_package' is not installed .* pip install absent_package"):
        plugins.load("reward", "needs_more:f")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mine_here.py:brevity", "mine_here:brevity"),
        ("mine_here.brevity", "mine_here:brevity"),
        ("./mine_here:brevity", "mine_here:brevity"),
        ("./mine_here.py", "mine_here:FUNCTION"),
        ("rooms/inner_here.py:brevity", "rooms.inner_here:brevity"),
        ("mine_here:brevty", "mine_here:brevity"),
        ("Length", "length"),
    ],
)
def test_what_was_written_as_the_path_of_a_file_is_answered_with_the_import_path(here, name, meant):
    (here / "rooms").mkdir()
    for file in ("mine_here.py", "rooms/inner_here.py"):
        (here / file).write_text("def brevity(problem, rollout):\n    return 4.0\n")
    assert f"did you mean '{meant}'?" in refusal("reward", name)


def test_the_path_of_a_file_elsewhere_is_answered_with_no_import_path(here, monkeypatch):
    (here / "mine_here.py").write_text("def brevity(problem, rollout):\n    return 4.0\n")
    assert "did you mean 'mine_here:brevity'?" in refusal("reward", f"{here}/mine_here.py:brevity")
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert "did you mean" not in refusal("reward", f"{here}/mine_here.py:brevity")


def test_a_module_with_a_syntax_error_is_named_with_the_line(here):
    (here / "broken_here.py").write_text("x = 1\ndef f(:\n")
    message = refusal("reward", "broken_here:f")
    assert "the module 'broken_here' cannot be imported" in message
    assert "broken_here.py, line 2" in message


@pytest.mark.parametrize("line", ["raise RuntimeError('no GPU')", "import sys; sys.exit('no GPU')"])
def test_a_module_that_fails_when_it_is_imported_is_refused(here, line):
    name = f"fails_here_{len(line)}"
    (here / f"{name}.py").write_text(line)
    assert f"the module '{name}' cannot be imported: " in (message := refusal("reward", f"{name}:f"))
    assert f"no GPU ({name}.py, line 1); fix it" in message


def test_a_module_that_imports_a_name_that_is_none_is_refused(here):
    (here / "wrong_here.py").write_text("from math import cosinus\n")
    assert "cannot import name 'cosinus' from 'math'" in refusal("reward", "wrong_here:f")


def test_an_optional_package_that_is_missing_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"the package 'torch' is not installed .* 'steadyrl\[torch\]'"):
        plugins.load("backend", "torch").create(None, None)


def test_require_names_the_extra_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"'peft' is not installed .* 'steadyrl\[torch\]'"):
        plugins.require("peft")
    assert plugins.require("json").loads("1") == 1


def test_an_installed_package_can_bring_its_own(here):
    info = here / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[steadyrl.reward]\nkindness = others_rewards:kindness\n")
    (here / "others_rewards.py").write_text("def kindness(problem, rollout):\n    return 3.0\n")
    sys.path.insert(0, str(here))
    assert plugins.load("reward", "kindness")(None, None) == 3.0
    assert "did you mean 'kindness'?" in refusal("reward", "kindnes")


PARTS = """
from steadyrl.core.sections import Section

class Settings(Section):
    pass

def build(settings):
    return 7
"""
WRAPPED = """
import types
from steadyrl.core.sections import Section

mine = types.SimpleNamespace(Settings=Section, build=len)
"""


@pytest.mark.parametrize("kind", ["algorithm", "curriculum"])
@pytest.mark.parametrize("name", ["mine_here", "package_here.mine"])
def test_an_algorithm_and_a_curriculum_are_modules_named_by_their_path(here, kind, name):
    file = here / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(PARTS)
    assert plugins.load(kind, name).build(None) == 7
    assert plugins.load(kind, name).Settings.__module__ == name


def test_the_path_of_a_built_in_module_is_that_module():
    assert plugins.load("algorithm", "steadyrl.algorithms.ppo") is plugins.load("algorithm", "ppo")


@pytest.mark.parametrize("kind", ["algorithm", "curriculum"])
def test_an_object_with_settings_and_build_is_named_by_its_import_path(here, kind):
    (here / "wrapped_here.py").write_text(WRAPPED)
    assert plugins.load(kind, "wrapped_here:mine").build is len


def test_a_module_without_build_is_no_algorithm(here):
    (here / "empty_here.py").write_text("")
    expected = "'empty_here' is no algorithm: it has no 'build'; expected a class 'Settings' and a function build"
    assert refusal("algorithm", "empty_here").startswith(expected)


@pytest.mark.parametrize("name", ["absent_here.mine", "steadyrl.algorithms.absent"])
def test_a_module_path_that_leads_nowhere_is_refused(here, name):
    message = refusal("algorithm", name)
    assert f"'{name}': there is no module '{name if 'steadyrl' in name else 'absent_here'}'" in message
    assert "expected 'package.module' or 'package.module:name'" in message


@pytest.mark.parametrize("name", ["", ".", "a..b", "pp o", "../ppo", "1.5"])
def test_what_is_no_module_path_is_refused(here, name):
    assert "'package.module' or 'package.module:name'" in refusal("algorithm", name)


def test_a_reward_is_no_module(here):
    (here / "reward_here.py").write_text("")
    assert "no reward is called 'reward_here'" in refusal("reward", "reward_here")


def members(thing, required=None, *optional, later=()):
    plugins.require_members("it", thing, required, optional, later)


class Plain:
    """A task of one turn."""

    name, metric = "plain", ""

    def __init__(self, settings=None, seed=0):
        pass

    def problems(self, split):
        return []

    def rewards(self):
        return {}

    def baselines(self):
        return {}

    def gold(self, problem):
        return None


def method(*arguments):
    """Return a function of so many arguments beside self."""
    return (lambda self, problem: None) if len(arguments) == 1 else (lambda self, problem, seed: None)


@pytest.fixture
def opened(monkeypatch):
    """Return a function that opens a task of one's own."""

    def make(**members):
        monkeypatch.setattr("steadyrl.core.plugins.own_task", type("Own", (Plain,), members), raising=False)
        return plugins.open_task("steadyrl.core.plugins:own_task", None, 0)

    return make


TURNS = {"episode": method("problem", "seed"), "max_turns": 4, "workers": 1}


@pytest.mark.parametrize(
    ("offered", "refusal"),
    [
        ({"episode": method("problem", "seed")}, "'episode' and no 'max_turns', no 'workers', so that nothing would"),
        ({**TURNS, "episode": method("problem")}, r"'episode' cannot be called with \(problem, seed\)"),
        ({**TURNS, "max_turns": "4"}, "max_turns is '4'; expected a whole number of 1 or more"),
        ({**TURNS, "tools": ()}, "has only one of the attributes 'tools' and 'tool_format'"),
        ({**TURNS, "workers": 0}, "workers is 0; expected a whole number of 1 or more"),
        ({**TURNS, "demonstration": method("problem")}, "'demonstration', which nothing calls where there are episode"),
        ({"epsiode": method("problem", "seed")}, "'epsiode', which nothing calls; did you mean 'episode'"),
        ({"episodes": method("problem", "seed")}, "did you mean 'episode'"),
        ({"mutates": method("problem", "seed")}, "did you mean 'mutate'"),
        ({"worng": method("problem")}, "did you mean 'wrong'"),
        ({"demonstrations": method("problem")}, "did you mean 'demonstration'"),
        ({"honest_core": method("problem")}, "'honest_core' and no 'empty_forms'"),
        ({"gold": None}, r"'gold' is None; expected a method \(problem\)"),
        ({"metric": method("problem")}, "its attribute metric is <bound method .*; expected a text"),
        ({"name": 7}, "its attribute name is 7; expected a text"),
    ],
)
def test_what_a_task_offers_and_nothing_would_use_is_refused(opened, offered, refusal):
    with pytest.raises(ConfigError, match=refusal):
        opened(**offered)


@pytest.mark.parametrize(
    "offered",
    [{}, TURNS, {"wrong": method("problem")}, {"_epsiode": method("problem")}, {"workers": 3}, {"close": method("x")}],
)
def test_a_task_may_offer_whole_protocols_and_methods_of_its_own(opened, offered):
    assert opened(**offered).name == "plain"


@pytest.mark.parametrize(
    ("problems", "refusal"),
    [
        (None, r"problems\('train'\) is None; expected a list of steadyrl\.core\.types\.Problem"),
        ({"1": Problem("1", "?")}, "expected a list"),
        (
            [Problem("1", "?"), {"prompt": "?"}],
            r"has \{'prompt': '\?'\} in it; expected steadyrl\.core\.types\.Problem alone",
        ),
        ([Problem("1", "a \ud83d b")], r"has a text that is not valid Unicode \(a lone surrogate\) in '1'"),
    ],
)
def test_what_are_no_problems_is_refused(opened, problems, refusal):
    with pytest.raises(DataError, match=refusal):
        plugins.problems_of(opened(problems=lambda self, split: problems), "train")


def test_two_problems_of_one_id_are_refused(opened):
    with pytest.raises(DataError, match="'plain' has 2 problems with the id '1'"):
        plugins.require_ids(opened(), [Problem("2", "a"), Problem("1", "a"), Problem("1", "b")])
    plugins.require_ids(opened(), [Problem("2", "a"), Problem("1", "a")])


@pytest.mark.parametrize("wrong", [{"id": 1}, {"id": None}, {"prompt": 5}, {"prompt": [{"role": "user"}]}])
def test_the_id_and_the_prompt_of_a_problem_are_texts(wrong):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: got .*; expected a text;"):
        Problem(**{"id": "1", "prompt": "?"} | wrong)


@pytest.mark.parametrize("method", ["rewards", "baselines"])
@pytest.mark.parametrize("functions", [["exact"], {"exact": 1.0}, 5])
def test_rewards_and_baselines_that_are_no_functions_by_name_are_refused(opened, method, functions):
    with pytest.raises(ConfigError, match=rf"the {method} of the task are .*; expected a dict of names to functions"):
        plugins.functions_of(opened(**{method: lambda self: functions}), method)


@pytest.mark.parametrize("message", [{}, {"role": "user"}, {"role": "user", "content": None}, {"content": "?"}])
def test_the_messages_of_a_problem_have_a_role_and_a_text(message):
    with pytest.raises(DataError, match=r"a message of the problem '1' is .*; expected a role and a content of text"):
        Problem("1", "?", messages=(message,))


def test_a_task_that_lacks_a_method_is_refused_with_its_name(monkeypatch):
    lacking = type("Lacking", (), {"name": "x", "metric": "", "problem": method("split"), "__init__": Plain.__init__})
    monkeypatch.setattr("steadyrl.core.plugins.own_task", lacking, raising=False)
    with pytest.raises(ConfigError, match="did you mean 'problems'"):
        plugins.open_task("steadyrl.core.plugins:own_task", None, 0)
    monkeypatch.delattr(lacking, "problem")
    with pytest.raises(ConfigError, match=r"has no 'problems'; expected all of steadyrl\.core\.protocols\.Task"):
        plugins.open_task("steadyrl.core.plugins:own_task", None, 0)


def test_a_misspelt_check_of_a_module_is_refused_and_its_imports_are_not(here):
    parts = "from steadyrl.algorithms.grpo import Settings, build\n"
    (here / "right_algorithm.py").write_text(parts + "from os.path import exists as checks\n")
    (here / "wrong_algorithm.py").write_text(parts + "def chekc(config, settings):\n    return []\n")
    assert plugins.load("algorithm", "right_algorithm").Settings
    with pytest.raises(ConfigError, match=r"'wrong_algorithm' has a method 'chekc', .* did you mean 'check'"):
        plugins.load("algorithm", "wrong_algorithm")


class RightTracker:
    """A tracker as a class: its methods have no object yet."""

    needs = "numpy"

    def log(self, step, time, metrics):
        pass

    def samples(self, step, rows):
        pass

    def finding(self, line):
        pass

    def close(self, status):
        pass


def test_the_methods_of_a_class_are_looked_at_without_its_object():
    members(RightTracker, Tracker, later=("anew",))
    other = type("Other", (RightTracker,), {"finding": lambda self: None})
    with pytest.raises(ConfigError, match=r"'finding' cannot be called with \(line\)"):
        members(other, Tracker, later=("anew",))
    named = {name: member for name, member in vars(RightTracker).items() if name in ("needs", "log", "finding")}
    misspelt = type("Misspelt", (), {**named, "sample": RightTracker.samples})
    with pytest.raises(ConfigError, match="it has a method 'sample', which nothing calls; did you mean 'samples'"):
        members(misspelt, Tracker, later=("anew",))


ODD = """
from steadyrl.core.config import Section
from steadyrl.core.sections import RewardSettings

class Empty: pass
empty, number, text, nothing, rows = Empty(), 5, "text", None, [1]

def no_argument(): return 1.0
def three_arguments(a, b, c): return 1.0
def generator(problem, rollout): yield 1.0
async def generator_of_coroutines(problem, rollout): yield 1.0
def for_verifiers(state, info, **columns): return 1.0
def for_slime(args, sample): return 1.0
def for_openrlhf(queries, prompts, labels): return 1.0

class ForSwift:
    def __call__(self, completions, **columns): return [1.0] * len(completions)

class WithSettings:
    class Settings(RewardSettings): pass

class BuildsNothing(WithSettings):
    build = create = staticmethod(lambda *arguments: None)

class BuildsWithoutArguments(WithSettings):
    build = create = staticmethod(lambda: None)

class BuildsLater(WithSettings):
    def build(settings): yield 1
    create = build

class NoBuild(WithSettings):
    build = create = 7

class NoSettings:
    Settings, build = 5, staticmethod(lambda settings, task, own: None)

class Tracker:
    needs, anew = "numpy", False
    def __init__(self, opening): pass
    def log(self, step, time, metrics): pass
    def samples(self, step, rows): pass
    def finding(self, line): pass
    close = finding

class TrackerOfNoPackage(Tracker): needs = None
class TrackerOfOnePart(Tracker): needs = "numpy.linalg"
class TrackerThatLogsLess(Tracker):
    def log(self): pass
class TrackerWithoutOpening(Tracker):
    def __init__(self): pass
class HalfATracker:
    needs, anew = "numpy", False
tracker = Tracker(None)

class Task(WithSettings):
    name = metric = ""
    def __init__(self, settings, seed): pass
    def problems(self, split): return []
    def rewards(self): return {}
    baselines = rewards
    def gold(self, problem): return None
    ask = show = gold

class TaskOfNoSeed(Task):
    def __init__(self): pass
class TaskOfGenerators(Task):
    def problems(self, split): yield 1
class TaskWithoutSplits(Task):
    def problems(self): return []
class HalfATask(WithSettings):
    def problems(self, split): return []
"""
BUILT = "json:loads builtins:int builtins:print builtins:max builtins:True os:environ sys:stdout math:pi json numpy:add"
NAMES = [*BUILT.split(), *(f"odd_here:{name}" for name in re.findall(r"^(?:async def|def|class) (\w+)", ODD, re.M))]
NAMES += ["odd_here:empty", "odd_here:number", "odd_here:text", "odd_here:nothing", "odd_here:rows", "odd_here:tracker"]
OVERRIDES = {
    "task": 'task={{name="{}"}}',
    "reward": 'rewards={{"{}"=1.0}}',
    "reward with settings": 'rewards={{"{}"={{weight=1.0}}}}',
    "algorithm": 'algorithm={{name="{}"}}',
    "curriculum": 'curriculum={{name="{}"}}',
    "backend": 'backend={{name="{}"}}',
    "sampler": 'sampler={{engine="{}"}}',
    "tracker": 'run.trackers=["{}"]',
}


@pytest.mark.parametrize("setting", [*OVERRIDES, "launcher"])
def test_whatever_an_import_path_names_trains_or_is_refused_in_a_line(here, setting):
    (here / "odd_here.py").write_text(ODD)
    (here / "d.jsonl").write_text('{"prompt": "a"}\n')
    settings = {
        "task": {"name": "prompts", "args": {"path": "d.jsonl", "heldout": "d.jsonl"}},
        "rewards": {"length": 1.0},
        "backend": {"name": "toy"},
        "rollout": {"prompts_per_step": 1},
        "run": {"steps": 1, "preflight": "off"},
        "update": {"minibatches": 1},
    }
    accepted = []
    for name in NAMES:
        try:
            if setting == "launcher":
                choose(name, {}, (), 1)
            else:
                steadyrl.run(settings, [OVERRIDES[setting].format(name)])
            accepted.append(name)
        except SteadyError as error:
            assert "\n" not in str(error) and len(str(error)) < 600
    assert accepted == (["odd_here:Tracker"] if setting == "tracker" else [])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("odd_here:for_verifiers", "takes info, state, as functions for verifiers do; expected a function (problem"),
        ("odd_here:for_slime", "takes args, sample, as functions for slime do"),
        ("odd_here:for_openrlhf", "takes labels, prompts, queries, as functions for OpenRLHF do"),
        ("odd_here:ForSwift", "is a class; name an instance of it: a line such as `score = ForSwift()` in its module"),
        ("odd_here:generator", "is a generator; expected a function that returns its value"),
        ("builtins:int", "is a class; name an instance"),
        ("builtins:max", "the reward 'max'"),
        ("./rm", "is a path, and rewards are functions; for a reward model write one that loads it"),
        ("org/reward-model", "is a path, and rewards are functions"),
    ],
)
def test_a_reward_for_another_trainer_is_answered_in_its_words(here, name, answer):
    (here / "odd_here.py").write_text(ODD)
    with pytest.raises(ConfigError) as caught:
        make_terms({name: 1.0}, plugins.load("task", "math")(plugins.load("task", "math").Settings()))
    assert answer in str(caught.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("dpo", "is no RL algorithm: it trains on pairs of answers that somebody preferred, which is not offered"),
        ("Online-DPO", "trains on pairs"),
        ("GSPO", "is GRPO with other settings: algorithm.name=grpo algorithm.args.ratio=sequence"),
        ("dr_grpo", "algorithm.args.mean=constant"),
        ("trpo", "is a plug-in now: pip install examples/plugins/trpo"),
    ],
)
def test_an_algorithm_of_another_trainer_is_answered(name, answer, monkeypatch):
    monkeypatch.setattr(plugins, "entry_points", lambda group: ())  # the plug-in may be installed
    assert refusal("algorithm", name).startswith(f"algorithm.name = '{name}' ")
    assert "the algorithms here are ppo, grpo, rloo" in refusal("algorithm", name)
    assert answer in refusal("algorithm", name)


def test_a_misspelt_field_of_an_algorithm_is_refused_with_a_hint(here):
    (here / "misspelt_algorithm.py").write_text(
        "from dataclasses import replace\nfrom steadyrl.algorithms import grpo\nSettings = grpo.Settings\n"
        "def build(settings):\n    return replace(grpo.build(settings), adpat=dict)\n"
    )
    settings = plugins.load("algorithm", "misspelt_algorithm").Settings()
    with pytest.raises(ConfigError, match="a field 'adpat', which nothing calls; did you mean 'adapt'"):
        plugins.make("algorithm", "misspelt_algorithm", settings)


def test_a_class_derived_from_the_protocol_of_tasks_needs_its_problems_and_rewards_alone():
    class Few(Task):
        name, metric = "few", ""

        def problems(self, split):
            return [Problem("one", "1 + 1")]

        def rewards(self):
            return {}

    task = Few()
    plugins.require_members("the task 'few'", task, Task)
    assert (task.baselines(), task.gold(task.problems("train")[0]), task.show("2")) == ({}, None, [])
    assert task.ask("2 + 2") == Problem("asked", "2 + 2")
