"""What a session holds becomes files once; what is no prompt, model or reward is refused with what is expected."""

import datetime
import functools
import itertools
import json
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.core import plugins
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.python.inputs import model_path, prompts_args, reward_entries
from tests import needs


def rows(args, name="path"):
    with open(args[name]) as file:
        return [json.loads(line) for line in file]


MESSAGES = [{"role": "user", "content": "two"}]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (["one", "two"], [{"prompt": "one"}, {"prompt": "two"}]),
        ([{"prompt": "one", "gold": 1}, {"prompt": "two"}], [{"prompt": "one", "gold": 1}, {"prompt": "two"}]),
        ([MESSAGES, MESSAGES], [{"prompt": MESSAGES}] * 2),
        ((text for text in ("one", "two")), [{"prompt": "one"}, {"prompt": "two"}]),
        (
            [{"prompt": "a", "n": np.int64(3), "x": np.array([1.5, 2.5])}, {"prompt": "b", "n": float("nan")}],
            [{"prompt": "a", "n": 3, "x": [1.5, 2.5]}, {"prompt": "b", "n": None}],
        ),
        (
            [{"prompt": "a", "day": datetime.date(2026, 11, 26)}, {"prompt": "b"}],
            [{"prompt": "a", "day": "2026-11-26"}, {"prompt": "b"}],
        ),
    ],
)
def test_prompts_of_every_form_become_rows(tmp_path, prompts, expected):
    assert rows(prompts_args(prompts, None, tmp_path)) == expected


def test_a_data_frame_gives_its_rows(tmp_path, monkeypatch):
    class DataFrame:
        def to_dict(self, form):
            assert form == "records"
            return [{"prompt": "one", "n": 1}, {"prompt": "two", "n": 2}]

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))
    assert rows(prompts_args(DataFrame(), None, tmp_path)) == [{"prompt": "one", "n": 1}, {"prompt": "two", "n": 2}]


def test_pandas_and_datasets_themselves_give_their_rows(tmp_path):
    needs.skip_without_packages("pandas", "datasets", extra="torch,data", beside="pandas datasets")
    import datasets
    import pandas

    expected = [{"prompt": "one", "n": 1.0}, {"prompt": "two", "n": None}]
    frame = pandas.DataFrame([{"prompt": "one", "n": 1.0}, {"prompt": "two"}])
    assert rows(prompts_args(frame, None, tmp_path)) == expected
    assert rows(prompts_args(datasets.Dataset.from_list(expected), None, tmp_path)) == expected
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list(expected), test=datasets.Dataset.from_list(expected))
    assert rows(prompts_args(splits, None, tmp_path), "heldout") == expected


def test_a_path_stays_what_it_is_and_nothing_is_written(tmp_path):
    assert prompts_args("a.jsonl", "b.parquet", tmp_path) == {"path": "a.jsonl", "heldout": "b.parquet"}
    assert list(tmp_path.iterdir()) == []


def test_a_stream_without_an_end_is_refused_and_a_long_list_is_not(tmp_path, monkeypatch):
    """As IterableDataset.from_generator of a loop gives one."""
    monkeypatch.setattr("steadyrl.python.inputs._MAX_STREAMED", 3)
    assert len(rows(prompts_args(iter("abc"), None, tmp_path))) == 3
    assert len(rows(prompts_args(list("abcd"), None, tmp_path))) == 4
    with pytest.raises(DataError, match=r"a stream of more than 3 rows; .* take its first ones"):
        prompts_args((f"say {i}" for i in itertools.count()), None, tmp_path)


def test_the_same_prompts_are_written_once(tmp_path):
    first, second, third = (prompts_args(list(texts), None, tmp_path)["path"] for texts in ("ab", "ab", "ac"))
    assert first == second != third and len(list(tmp_path.iterdir())) == 2


def test_held_out_prompts_are_given_as_rows_as_a_split_or_as_a_share(tmp_path):
    assert rows(prompts_args(["a"], ["b"], tmp_path), "heldout") == [{"prompt": "b"}]
    splits = {"train": ["a"], "test": ["b"], "validation": ["c"]}
    assert rows(prompts_args(splits, None, tmp_path), "heldout") == [{"prompt": "c"}]
    assert prompts_args(["a", "b"], 0.5, tmp_path)["heldout_share"] == 0.5


@pytest.mark.parametrize(("train", "judge"), [("training", "dev"), ("train_sft", "test_sft"), ("train", "eval")])
def test_the_splits_of_a_dict_have_the_names_that_folders_have(tmp_path, train, judge):
    splits = {"train": ["a"], train: ["a"], judge: ["b"], "train_more": ["c"], "extra": ["d"]}
    args = prompts_args(splits, None, tmp_path)
    assert (rows(args), rows(args, "heldout")) == ([{"prompt": "a"}], [{"prompt": "b"}])


@pytest.mark.parametrize(
    ("prompts", "heldout", "message"),
    [
        (["a"], None, r"prompts: got 1; .* give two or more"),
        ([], None, "prompts: got none; expected texts"),
        (["a", 3], None, r"prompts\[1\] is 3 \(int\); expected texts"),
        (7, None, "prompts: got int; expected texts"),
        (["a", "b"], 0, "heldout: got 0; expected a share of the prompts between 0 and 1, or texts"),
        ({"questions": ["a"]}, None, "got a dict of questions; expected rows under 'train'"),
        (
            {"prompt": ["a"], "n": [1]},
            None,
            "got a dict of prompt, n; .*; of a dict of columns Dataset.from_dict makes",
        ),
        ({"train": {"prompt": ["a", "b"]}}, None, "got a dict of prompt; expected"),
        (["a"], {"test": ["b"]}, "heldout: got a dict of test; expected texts"),
        ([{"prompt": "a", "x": {1}}, "b"], None, r"prompts\[0\]\['x'\] is \{1\} \(set\), which no JSON file holds"),
        ([{"prompt": "a", "x": float("inf")}, "b"], None, r"prompts\[0\]\['x'\] is inf \(float\)"),
    ],
)
def test_what_is_no_prompt_is_refused_and_nothing_is_written(tmp_path, prompts, heldout, message):
    with pytest.raises(DataError, match=message):
        prompts_args(prompts, heldout, tmp_path)
    assert list(tmp_path.iterdir()) == []


def brevity(completion):
    return 1.0 / len(completion)


def load(path):
    return plugins.load("reward", path)


def test_a_function_of_a_module_keeps_its_import_path():
    assert reward_entries(brevity) == {f"{__name__}:brevity": 1.0}
    assert load(f"{__name__}:brevity") is brevity


def test_a_lambda_gets_a_path_in_this_process_that_no_later_one_takes():
    first, second = (lambda completion: 1.0), (lambda completion: 2.0)
    (path,), (later,) = reward_entries(first), reward_entries(second)
    assert path.endswith(":reward") and plugins.of_session(path)
    assert load(path) is first and load(later) is second
    assert list(reward_entries(first)) == [path]


def test_a_partial_is_called_what_its_function_is():
    half, whole = functools.partial(brevity), functools.partial(functools.partial(brevity))
    assert [path.rpartition(":")[2] for path in reward_entries([half, whole])] == ["brevity", "brevity_2"]


def test_rewards_in_a_list_and_in_dicts():
    one, two = (lambda completion: 1.0), (lambda completion: 2.0)
    names = [path.rpartition(":")[2] for path in reward_entries([one, two, "length"])]
    assert names == ["reward", "reward_2", "length"]
    named = reward_entries({"short": one, "length": 0.5, brevity: 0.25, "judge": {"weight": 0.1}})
    assert [(path.rpartition(":")[2], weight) for path, weight in named.items()] == [
        ("short", 1.0),
        ("length", 0.5),
        ("brevity", 0.25),
        ("judge", {"weight": 0.1}),
    ]


@pytest.mark.parametrize("reward", [3, None, [3], {3: 1.0}, {"a b": brevity}])
def test_what_is_no_reward_is_refused(reward):
    with pytest.raises(ConfigError, match=r"^reward: got .*; expected"):
        reward_entries(reward)


def test_a_function_of_another_session_is_named_as_one():
    with pytest.raises(ConfigError, match=r"is a function of the Python session .*; put it into a module"):
        plugins.load("reward", "steadyrl_session.m999:short")


def test_names_and_folders_of_models_stay_what_they_are(tmp_path):
    assert model_path("org/name", None, tmp_path) == "org/name"
    with pytest.raises(ConfigError, match="is trained with the tokenizer of its folder"):
        model_path("base", object(), tmp_path)


class Saves:
    def __init__(self, content, **more):
        self.content = content
        vars(self).update(more)

    def get_input_embeddings(self):
        return None

    def save_pretrained(self, folder):
        if self.content == "nothing":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        folder.mkdir(exist_ok=True)
        (folder / f"{self.content}.txt").write_text(self.content)


def test_a_loaded_model_is_saved_once_with_its_tokenizer(tmp_path):
    paths = [model_path(Saves(content), Saves("words"), tmp_path) for content in ("one", "one", "two")]
    assert paths[0] == paths[1] != paths[2]
    assert sorted(path.name for path in (tmp_path / paths[0]).iterdir()) == ["one.txt", "words.txt"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_without_weights_and_a_tokenizer_that_is_none_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Saves cannot be saved \(NotImplementedError: Cannot .*weights in memory"):
        model_path(Saves("nothing"), Saves("words"), tmp_path)
    with pytest.raises(ConfigError, match="tokenizer: got int; expected one of transformers, or a name"):
        model_path(Saves("one"), 5, tmp_path)
    with pytest.raises(ConfigError, match=r"carries no tokenizer; give it too: .* none in '.*absent'"):
        model_path(Saves("one"), tmp_path / "absent", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "model: got int; expected 'base'"),
        (Saves, "model: got type; expected 'base'"),
        (types.SimpleNamespace(save_pretrained=print), "model: got SimpleNamespace; expected 'base'"),
        (Saves("x", merge_and_unload=lambda: None), "an adapter around a model; give model.merge_and_unload"),
        (Saves("x"), "carries no tokenizer; give it too"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, model, message):
    with pytest.raises(ConfigError, match=message):
        model_path(model, None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_model_leads_to_the_tokenizer_that_lies_beside_its_weights(tmp_path, tiny_models):
    transformers = needs.package("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"])
    saved = model_path(model, None, tmp_path)
    expected = transformers.AutoTokenizer.from_pretrained(tiny_models["llama"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    assert tokenizer("the red cat")["input_ids"] == expected("the red cat")["input_ids"]
    assert tokenizer.chat_template == expected.chat_template
