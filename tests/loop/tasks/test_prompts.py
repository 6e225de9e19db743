import json

import pytest

from steadyrl.core import config, plugins
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.loop.tasks.data_line import data_counts, data_line
from steadyrl.loop.tasks.prompts import PromptsTask


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def made(path, **settings):
    return PromptsTask(PromptsTask.Settings(path=str(path), **settings))


def refusal(path, **settings):
    with pytest.raises(DataError) as caught:
        made(path, **settings)
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.fixture
def hundred(tmp_path):
    return written(tmp_path / "hundred.jsonl", *({"prompt": f"count to {number}"} for number in range(100)))


def ids(problems):
    return [problem.id for problem in problems]


def test_every_column_but_the_prompt_reaches_the_rewards(tmp_path):
    train = written(tmp_path / "train.jsonl", {"id": "a", "prompt": "17 + 25?", "answer": 42, "tags": ["sum"]})
    heldout = written(tmp_path / "heldout.jsonl", {"id": "b", "prompt": "1 + 1?"})
    task = made(train, heldout=heldout)
    (problem,) = task.problems("train")
    assert (problem.id, problem.prompt, problem.columns) == (
        "a",
        "17 + 25?",
        {"id": "a", "answer": 42, "tags": ["sum"]},
    )
    assert ids(task.problems("heldout")) == ["b"]


def test_gold_is_the_column_of_that_name_or_unknown(tmp_path):
    golds = {"a": "A", "b": None, "d": 42, "e": 18.0, "f": 0.5, "g": ["four", "4"], "h": [4.0], "i": []}
    rows = [{"prompt": "c"}, *({"prompt": prompt, "gold": gold} for prompt, gold in golds.items())]
    task = made(written(tmp_path / "p.jsonl", *rows))
    gold = {p.prompt: task.gold(p) for split in ("train", "heldout") for p in task.problems(split)}
    assert gold == {
        "a": "A", "b": None, "c": None, "d": "42", "e": "18", "f": "0.5", "g": "four", "h": "4", "i": None,
    }  # fmt: skip


def test_the_task_brings_no_rewards_and_no_baselines(hundred):
    task = made(hundred)
    assert (task.rewards(), task.baselines()) == ({}, {})


def test_the_metric_is_the_setting_and_empty_by_default(hundred):
    assert made(hundred).metric == ""
    assert made(hundred, metric="my_rewards:exact").metric == "my_rewards:exact"


def test_the_share_is_held_out_and_the_rest_trained_in_the_order_of_the_file(hundred):
    task = made(hundred, heldout_share=0.3)
    train, heldout = task.problems("train"), task.problems("heldout")
    assert len(heldout) == 30
    for split in (train, heldout):
        numbers = [int(problem.prompt.split()[-1]) for problem in split]
        assert numbers == sorted(numbers)
    assert {problem.prompt for problem in (*train, *heldout)} == {f"count to {number}" for number in range(100)}
    assert not set(ids(train)) & set(ids(heldout))


def test_the_split_is_the_same_for_every_seed_of_the_run(hundred):
    settings = PromptsTask.Settings(path=hundred)
    first, second = (ids(PromptsTask(settings, seed).problems("heldout")) for seed in (0, 1))
    assert first == second


def test_a_prompt_without_an_id_is_named_by_its_own_text(tmp_path):
    task = made(written(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"}))
    # The first 16 digits of `printf a | sha256sum` and `printf b | sha256sum`.
    expected = {"ca978112ca1bbdca", "3e23e8160039594a"}
    assert {*ids(task.problems("train")), *ids(task.problems("heldout"))} == expected


def test_the_task_is_found_by_its_short_name_with_its_settings(hundred):
    task = plugins.load("task", "prompts")
    assert task is PromptsTask
    settings = config.validate(task.Settings, {"path": hundred}, "task.args")
    assert task(settings, 3).name == "prompts"


def test_settings_without_a_path_or_with_an_impossible_share_are_refused():
    with pytest.raises(ConfigError, match=r"^task\.args\.path: is missing"):
        config.validate(PromptsTask.Settings, {}, "task.args")
    for share in (0, 1):
        with pytest.raises(ConfigError, match=r"^task\.args\.heldout_share: got"):
            config.validate(PromptsTask.Settings, {"path": "p", "heldout_share": share}, "task.args")


def test_a_missing_file_is_named(tmp_path, hundred):
    assert refusal(tmp_path / "no.jsonl") == "there is no file no.jsonl; check the path"
    with pytest.raises(DataError, match=r"there is no file .*no\.jsonl; check the path"):
        made(hundred, heldout=str(tmp_path / "no.jsonl"))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ('{"prompt": "b', "not valid JSON"),
        ('"b"\n', "got text; expected a JSON object"),
        (
            '{"text": "b"}\n',
            "'prompt' is missing; the row has text: name the prompt's column in task.args.prompt_column",
        ),
        ('{"prompt": ""}\n', "'prompt' is empty"),
        ('{"prompt": 5}\n', "'prompt' is a number; expected text in quotes, or a list of messages"),
        ('{"prompt": "[{\\"role\\": \\"user\\"}]"}\n', "'prompt' is a text that spells a list of messages"),
        ('{"prompt": "[{\'content\': 1}]"}\n', "'prompt' is a text that spells a list of messages"),
        ('{"prompt": []}\n', "'prompt' has no message; expected the user's last"),
        (
            '{"prompt": ["b"]}\n',
            "'prompt' holds 'b' where a message is expected: an object whose role and content are texts",
        ),
        ('{"prompt": [{"content": "b"}]}\n', "'prompt' holds {'content': 'b'} where a message is expected"),
        ('{"prompt": [{"role": null, "content": "b"}]}\n', "'prompt' holds {'content': 'b', 'role': None} where"),
        ('{"prompt": [{"role": "user"}]}\n', "'prompt': a message's content is null; expected text in quotes"),
        ('{"prompt": [{"role": "user", "content": " "}]}\n', "'prompt' is empty"),
        ('{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}\n', "'prompt' holds a message with a part of"),
        (
            '{"prompt": [{"role": "user", "content": [{"type": "text"}]}]}\n',
            "'prompt': a message's content is null; expected text in quotes",
        ),
        (
            '{"prompt": [{"role": "robot", "content": "b"}]}\n',
            "'prompt' holds the role 'robot'; expected one of system, developer, user, assistant, tool",
        ),
        (
            '{"prompt": [{"role": "system", "content": "b"}]}\n',
            "'prompt' ends with a system message; expected the user's",
        ),
        (
            '{"prompt": [{"role": "assistant", "content": "b", "tool_calls": [1]}]}\n',
            "'prompt' holds the call 1; expected OpenAI's form",
        ),
        ('{"prompt": [{"role": "assistant", "content": "b"}]}\n', "'prompt' ends with an assistant's message"),
        ('{"prompt": "b", "id": 2.5}\n', "'id' is a number; expected text in quotes"),
        ('{"prompt": "b", "id": " "}\n', "'id' is empty"),
        ('{"prompt": "b", "gold": {"a": 1}}\n', "'gold' is an object; expected text in quotes"),
        ('{"prompt": "b", "gold": ["a", [1]]}\n', "'gold' is a list; expected text in quotes"),
    ],
)
def test_a_defect_is_named_by_file_and_line(tmp_path, second, message):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' + second, encoding="utf-8")
    assert refusal(path).startswith(f"p.jsonl, line 2: {message}")


def test_an_id_may_occur_once_in_both_files_together(tmp_path):
    train = tmp_path / "train.jsonl"
    written(train, {"prompt": "a", "id": "x"})
    heldout = written(tmp_path / "heldout.jsonl", {"prompt": "b", "id": "y"}, {"prompt": "c", "id": "x"})
    message = refusal(train, heldout=heldout)
    assert message.startswith("heldout.jsonl, line 2: the id 'x' is at train.jsonl, line 1 too")
    assert message.endswith("set task.args.id_column = '' for ids made of the prompts")
    task = made(train, heldout=heldout, id_column="")
    assert (len(task.problems("train")), len(task.problems("heldout"))) == (1, 2)


def test_a_file_with_no_prompt_or_too_few_to_split_is_refused(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n", encoding="utf-8")
    assert refusal(path).startswith("p.jsonl has no prompt; expected one row with a 'prompt' per problem")
    path.write_text('{"prompt": "a"}\n', encoding="utf-8")
    assert refusal(path).startswith("p.jsonl has one prompt; expected two or more, or task.args.heldout")


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "17 + 25?"}]
TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": [{"type": "text", "text": "17 + "}, {"type": "text", "text": "25?"}]},
]


def test_a_prompt_may_be_a_list_of_messages(tmp_path):
    train = written(tmp_path / "train.jsonl", {"prompt": CHAT, "answer": 42}, {"prompt": TURNS})
    task = made(train, heldout=written(tmp_path / "heldout.jsonl", {"prompt": "text"}))
    first, second = task.problems("train")
    assert (first.prompt, first.messages, first.columns) == ("17 + 25?", tuple(CHAT), {"answer": 42})
    assert second.prompt == "user: Hello\n\nassistant: Hi.\n\nuser: 17 + 25?"
    assert second.messages == (*TURNS[:2], {"role": "user", "content": "17 + 25?"})
    assert (first.asked, task.problems("heldout")[0].asked) == (first.messages, "text")


def test_columns_are_found_by_the_names_that_the_settings_give(tmp_path):
    rows = [{"question": "1 + 1?", "answer": "2", "number": 7, "prompt": "x"}, {"question": "2 + 2?", "answer": "4"}]
    heldout = written(tmp_path / "heldout.jsonl", {"question": "3 + 3?", "number": 8})
    path = written(tmp_path / "p.jsonl", *rows)
    task = made(path, heldout=heldout, prompt_column="question", gold_column="answer", id_column="number")
    problem = task.problems("train")[0]
    assert (problem.id, problem.prompt, task.gold(problem)) == ("7", "1 + 1?", "2")
    assert problem.columns == {"answer": "2", "number": 7, "prompt": "x"}


def test_copies_of_a_prompt_are_problems_of_their_own_on_one_side_of_the_split(tmp_path):
    rows = [{"prompt": prompt, "seed": n} for n in range(3) for prompt in ["a", "b", "c", "d", CHAT, TURNS]]
    task = made(written(tmp_path / "p.jsonl", *rows), heldout_share=0.5)
    train, heldout = task.problems("train"), task.problems("heldout")
    assert (len(train), len(heldout)) == (9, 9)
    assert len({*ids(train), *ids(heldout)}) == 18
    assert {problem.prompt for problem in train}.isdisjoint(problem.prompt for problem in heldout)
    # The first copy keeps the id that a single one has.
    assert "ca978112ca1bbdca" in {*ids(train), *ids(heldout)}


def test_copies_of_a_prompt_are_on_one_side_of_the_split_with_ids_of_their_own_too(tmp_path):
    rows = [{"id": f"{prompt}{n}", "prompt": prompt} for n in range(3) for prompt in "abcdef"]
    sides = []
    for order in (rows, rows[::-1]):
        task = made(written(tmp_path / "p.jsonl", *order), heldout_share=0.5)
        train, heldout = task.problems("train"), task.problems("heldout")
        assert (len(train), len(heldout)) == (9, 9)
        assert {problem.prompt for problem in train}.isdisjoint(problem.prompt for problem in heldout)
        sides.append(set(ids(heldout)))
    assert sides[0] == sides[1]
    path = tmp_path / "p.jsonl"
    written(path, {"id": "x", "prompt": "a"}, {"prompt": "a"})
    assert refusal(path).startswith("p.jsonl has one prompt; expected two or more")


def test_ids_alone_decide_on_the_split_where_no_prompt_has_copies(tmp_path):
    """As `printf 3/0 | sha256sum` shows, the hashes of 3 and 1 are the smallest of these ids."""
    rows = [{"id": n, "prompt": f"count to {n}"} for n in range(10)]
    assert ids(made(written(tmp_path / "p.jsonl", *rows)).problems("heldout")) == ["1", "3"]


def test_ids_that_a_table_made_fractional_are_the_whole_numbers_they_were(tmp_path):
    """A column of whole numbers with a gap is one of fractions in pandas."""
    rows = [{"id": 7.0, "prompt": "a"}, {"id": None, "prompt": "b"}, {"id": 12, "prompt": "c"}]
    task = made(written(tmp_path / "p.jsonl", *rows), heldout_share=0.4)
    named = {problem.prompt: problem.id for side in ("train", "heldout") for problem in task.problems(side)}
    assert (named["a"], named["c"]) == ("7", "12")
    written(tmp_path / "p.jsonl", {"id": 7.5, "prompt": "a"})
    assert refusal(tmp_path / "p.jsonl").startswith("p.jsonl, line 1: 'id' is a number")


def line(task):
    return data_line(data_counts(task, task.problems("train"), task.problems("heldout")))


@pytest.mark.parametrize("ids", [{}, {"id": 3}])
def test_prompts_that_are_held_out_and_train_are_counted(tmp_path, ids):
    train = written(tmp_path / "train.jsonl", {"prompt": "a"}, {"prompt": CHAT})
    heldout = written(tmp_path / "heldout.jsonl", {"prompt": CHAT, **ids}, {"prompt": "c"}, {"prompt": "d"})
    task = made(train, heldout=heldout)
    assert not {p.id for p in task.problems("train")} & {p.id for p in task.problems("heldout")}
    assert line(task) == (
        f"trains on 2 problems ({train}), judged by 3 held-out problems ({heldout}); "
        "1 of the held-out prompts are trained on too"
    )


@pytest.mark.parametrize(("also", "prompts"), [((), "1 different prompt"), (("b",), "2 different prompts")])
def test_copies_of_a_prompt_that_train_are_counted(tmp_path, also, prompts):
    """As in oumi's issue 1542, where every example was the same."""
    copies = [{"prompt": "a", "answer": n} for n in range(3)]
    train = written(tmp_path / "train.jsonl", *copies, *({"prompt": prompt} for prompt in also))
    heldout = written(tmp_path / "heldout.jsonl", {"prompt": "c"})
    counted = f"trains on {3 + len(also)} problems with {prompts} ({train}), judged by 1 held-out problem ({heldout})"
    assert line(made(train, heldout=heldout)) == counted


def test_a_line_says_what_trains_and_what_judges_with_counts(tmp_path, hundred):
    assert line(made(hundred, heldout_share=0.3)) == (
        f"trains on 70 problems ({hundred}), judged by 30 held-out problems (held out of them)"
    )
    folder(tmp_path / "gsm8k/main", train=4, test=2)
    folder(tmp_path / "gsm8k/socratic", train=5, test=3)
    root = tmp_path / "gsm8k"
    assert line(made(root / "main")) == (
        f"trains on 4 problems ({root}/main: train), judged by 2 held-out problems ({root}/main: test)"
    )
    assert line(made(root, config="socratic")) == (
        f"trains on 5 problems ({root}: socratic, train), judged by 3 held-out problems ({root}: socratic, test)"
    )
    with pytest.raises(DataError, match=r"holds the configurations main, socratic, .*task\.args\.config = 'main'"):
        made(root)
    with pytest.raises(DataError, match=r"has no configuration 'sokratic'; task\.args\.config may be main, socratic"):
        made(root, config="sokratic")
    with pytest.raises(DataError, match=r"has no configurations; remove task\.args\.config = 'main'"):
        made(root / "main", config="main")


def folder(path, **splits):
    """Write a JSONL file per split with so many prompts."""
    path.mkdir(parents=True)
    for split, count in splits.items():
        written(path / f"{split}.jsonl", *({"prompt": f"{split} {i}"} for i in range(count)))
    return path


def sides(task):
    return [sorted({p.prompt.split()[0] for p in task.problems(split)}) for split in ("train", "heldout")]


def test_a_folder_is_judged_by_its_validation_split_or_else_by_its_test_split(tmp_path):
    three = folder(tmp_path / "three", train=4, dev=2, test=2)
    assert sides(made(three)) == [["train"], ["dev"]]
    assert sides(made(folder(tmp_path / "two", train=4, test=2))) == [["train"], ["test"]]
    assert sides(made(folder(tmp_path / "one", train=9))) == [["train"], ["train"]]
    assert sides(made(three, heldout="test")) == [["train"], ["test"]]
    assert sides(made(three, split="validation")) == [["dev"], ["test"]]
    assert sides(made(three, heldout=str(folder(tmp_path / "other", train=3, test=1)))) == [["train"], ["test"]]


def test_a_split_that_nothing_tells_is_asked_for(tmp_path):
    with pytest.raises(DataError, match=r"has the split test; .* task\.args\.split = 'test'"):
        made(folder(tmp_path / "alone", test=4))
    assert sides(made(tmp_path / "alone", split="test")) == [["test"], ["test"]]
    three = folder(tmp_path / "three", train=4, dev=2, test=2)
    with pytest.raises(DataError, match=r"has the splits train, validation, test, not task\.args\.split = 'dev'"):
        made(three, split="dev")
    with pytest.raises(DataError, match=r"task\.args\.heldout = 'train' is the split that trains"):
        made(three, heldout="train")
    with pytest.raises(DataError, match=r"there is no file or folder 'dev'"):
        made(three, heldout="dev")


def test_a_question_is_asked_behind_the_system_message_that_all_problems_share(tmp_path):
    rows = [{"prompt": [CHAT[0], {"role": "user", "content": f"{n}?"}]} for n in range(4)]
    asked = made(written(tmp_path / "same.jsonl", *rows)).ask("5?")
    assert (asked.prompt, asked.messages) == ("5?", (CHAT[0], {"role": "user", "content": "5?"}))
    rows[0]["prompt"], rows[1]["prompt"], rows[2]["prompt"] = "x", "y", "z"
    assert made(written(tmp_path / "mixed.jsonl", *rows), heldout_share=0.3).ask("5?").messages == ()


@pytest.mark.parametrize(
    ("column", "value", "remedy"),
    [
        ("image", {"bytes": "iVBORw0KGgo=", "path": None}, "only text is read"),
        ("images", [{"path": "a.png"}], "only text is read"),
        ("videos", ["a.mp4"], "only text is read"),
        ("audio", {"array": [0.5], "sampling_rate": 16000}, "only text is read"),
        ("audios", ["a.wav"], "only text is read"),
        ("tools", [{"type": "function", "function": {"name": "add"}}], "task.args.tools"),
        ("tools", '[{"name": "add"}]', "task.args.tools"),
        ("extra_info", {"index": 3, "tools_kwargs": {"calc": {"create_kwargs": {"x": 1}}}}, "task.args.tools"),
        ("extra_info", {"interaction_kwargs": {"name": "gsm8k"}}, "task.args.tools"),
        ("info", {"oai_tools": [{"name": "add"}]}, "task.args.tools"),
        ("chat_template_kwargs", {"enable_thinking": False}, "set model.template_args"),
        ("system", "Be brief.", "model.messages_before"),
        ("system_prompt", "Be brief.", "model.messages_before"),
        ("history", [["Hello", "Hi."]], "put its text into the messages of the prompt"),
    ],
)
def test_a_column_that_the_policy_would_not_read_is_refused_unless_it_is_named(tmp_path, column, value, remedy):
    rows = [{"prompt": "a"}, {"prompt": "b", column: value}]
    path = written(tmp_path / "p.jsonl", *rows)
    message = refusal(tmp_path / "p.jsonl")
    assert message.startswith(f"p.jsonl, line 2: '{column}") and remedy in message
    named = message.partition("ignore_columns = ['")[2].removesuffix("']")
    task = made(path, ignore_columns=[named])
    (problem,) = [p for split in ("train", "heldout") for p in task.problems(split) if p.prompt == "b"]
    assert problem.columns[column] == value


def test_the_input_beside_an_instruction_is_part_of_the_question(tmp_path):
    rows = [{"instruction": "Translate.", "input": text, "output": "x"} for text in ("", "house")]
    written(tmp_path / "alpaca.jsonl", *rows)
    message = refusal(tmp_path / "alpaca.jsonl", prompt_column="instruction")
    assert message.startswith("alpaca.jsonl, line 2: 'input' holds house, which the policy would not read")
    other = written(tmp_path / "p.jsonl", *({"prompt": f"{n}", "input": "house"} for n in range(3)))
    assert len(made(other).problems("train")) == 2  # beside another prompt it is the rewards' own


def test_columns_that_say_nothing_or_that_the_prompt_holds_are_no_obstacle(tmp_path):
    rows = [
        {"prompt": CHAT, "system": "Be brief.", "images": [], "tools": None, "history": [], "image": None},
        {"prompt": "b", "system": "", "chat_template_kwargs": {"enable_thinking": None}, "info": {"oai_tools": []}},
        {"prompt": "c", "data_source": "x", "messages": [{"role": "user", "content": "other"}], "completion": "y",
         "chosen": "y", "rejected": "n", "response": "y", "label": "1", "extra_info": {"question": "q", "split": "s"}},
    ]  # fmt: skip
    task = made(written(tmp_path / "p.jsonl", *rows))
    assert len(task.problems("train")) + len(task.problems("heldout")) == 3
    odd = written(tmp_path / "odd.jsonl", *({"history": f"{n}?", "tools": "x"} for n in range(3)))
    assert made(odd, prompt_column="history", gold_column="tools").problems("train")


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "images", "tools"])
def test_a_message_with_more_than_text_for_the_template_is_refused(tmp_path, name):
    turn = {"role": "assistant", "content": "Hi.", name: "because"}
    written(tmp_path / "p.jsonl", {"prompt": [TURNS[0], turn, TURNS[0]]})
    assert refusal(tmp_path / "p.jsonl").startswith(f"p.jsonl, line 1: 'prompt' holds a message with '{name}', which")
    written(tmp_path / "p.jsonl", *({"prompt": [{**TURNS[0], name: None}, {**turn, name: ""}, TURNS[0]]} for n in "ab"))
    made(tmp_path / "p.jsonl", heldout=written(tmp_path / "h.jsonl", {"prompt": "x"}))


def test_calls_and_results_of_a_prompt_are_read_in_the_form_of_openai(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    talk = [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    task = made(written(tmp_path / "p.jsonl", {"prompt": talk}, {"prompt": "b"}))
    problems = {p.prompt: p for split in ("train", "heldout") for p in task.problems(split)}
    (problem,) = [p for text, p in problems.items() if text != "b"]
    function = {"name": "add", "arguments": {"a": 1}}
    assert [dict(message) for message in problem.messages] == [
        talk[0],
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        talk[2],
    ]
    assert problem.prompt == "user: 1?\n\nassistant: add(a=1)\n\ntool: 2"
