"""What counts as a number in a log, however it is spelled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.core.errors import ConfigError

MAX_DIGITS = 64  # of a number written as text; longer texts are no metrics
MAX_NESTING = 16
# Cells that say that nothing was measured; dashes of three lengths and dots.
NOTHING = frozenset(
    "|-|--|\u2013|\u2014|...|\u2026|?|/|none|null|nil|n/a|na|n.a.|no log|pending|tbd|tba|empty|missing|skipped|unknown|"
    "not available|not logged|not measured|无|暂无|未测".split("|")
)
# Words of tables in Chinese; those with others in them come first.
CHINESE = dict(
    pair.split("=")
    for pair in """
    步数=step 步骤=step 窗口=step 迭代=iteration 轮次=epoch 轮=epoch 步=step 均值=mean 平均=mean 标准差=std
    最大=max 最小=min 奖励=reward 得分=score 损失=loss 策略=policy 熵=entropy 梯度范数=grad_norm 梯度=grad 散度=
    长度=length 回复=response 响应=response 生成=response 截断=truncated 准确率=accuracy 正确率=accuracy
    学习率=learning_rate 验证=validation 训练=train 优势=advantage 裁剪=clip 比例=ratio 比=ratio 率=rate （=( ）=)
    """.split()
)
TRUTHS = {"true": 1.0, "false": 0.0}
# What comes of an attempt: whether it did is a number. Other truth values are settings, or flags of the logger.
OUTCOME = re.compile(
    r"(?:^|[/_. -])(?:rewards?|score|success|successful|correct|solved|acc|accuracy|pass|passed|win|won)$",
    re.IGNORECASE,
)
WORDS = {"true": True, "false": False, "none": None, "null": None, "": None}

_WRAPPED = re.compile(r"(?:\w+\.)*(?:float|int|uint|bfloat|double|tensor|array)\w*\(\s*([^\s,()]+).*", re.DOTALL)
_NO_NUMBERS = {"nan", "inf", "infinity"}
MINUS = "\u2212"  # the sign that word processors and papers write
_EMPHASIS = "*`~"  # around a cell of a Markdown table
_DRESSED = re.compile(rf"[%(,{_EMPHASIS}{MINUS}]")  # of numbers that float() does not read
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
LISTED = r"(?:(?:\w+\.)*(?:tensor|array)\(\s*)?\[[-+.,\w\s]{0,16000}\](?:,\s*\w+=[\w.:'\"]+)*\)?"
_LISTED = re.compile(r"[^\[]{0,99}\[([^\[\]]*)\].{0,99}")

_CHINESE = re.compile("|".join(CHINESE))


def english(name: str) -> str:
    """Return a name with the Chinese words of training in English: of "reward 均值" "reward mean"."""
    if name.isascii():
        return name
    return " ".join(_CHINESE.sub(lambda word: f" {CHINESE[word[0]]} ", name).split())


def plain(value: Any) -> Any:
    """Return the number that a scalar of NumPy, PyTorch or another array library holds, and anything else as it is."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else value
    except (TypeError, ValueError, RuntimeError):  # an array of several numbers
        return value


def number(value: Any, null: float | None = math.nan) -> float | None:
    """Return a logged value as a number, or None if it is none: a bool, a word, a list; see ``with_truths``.

    Args:
        value: As parsed.
        null: What a null stands for; None leaves it out.
    """
    kind = type(value)  # exactly: a bool is an int
    if kind is float:
        return float(value)
    if kind is int:
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, 1 if value > 0 else -1)
    if kind is str:
        return spelled(value)
    return null if value is None else None


def spelled(text: str) -> float | None:
    """Return the number that a text spells, or None; a word for "not available" spells none.

    Known are the forms of floats, of wrapped numbers ("np.float64(1.5)", "tensor(2.)"), percentages, which are shares
    of 1, thousands ("1,234"), the minus of typesetters, and the emphasis of Markdown ("**0.5**").
    """
    text = text.strip()
    if len(text) > MAX_DIGITS or not text or "_" in text:  # float() reads "2024_01" as a number
        return None
    if text.isalpha() and text.lower() not in _NO_NUMBERS:  # most words; float() takes long to refuse them
        return None
    try:
        return float(text)  # nearly always
    except ValueError:
        if _DRESSED.search(text) is None:
            return None
    text = text.strip(_EMPHASIS).strip().replace(MINUS, "-")
    if _GROUPED.fullmatch(text.removesuffix("%")):
        text = text.replace(",", "")
    wrapped = _WRAPPED.fullmatch(text)
    share = text.endswith("%")
    try:
        value = float(wrapped[1] if wrapped else text[:-1] if share else text)
    except ValueError:
        return None
    return value / 100.0 if share else value


def listed(text: str) -> list[float] | None:
    """Return the numbers of a flat list as Python, NumPy or PyTorch print it, or None if the text is none.

    The list may stand in "tensor(...)" or "array(...)", with a device or type behind it, and on several lines; without
    commas NumPy prints it. Of a list with dots in its middle the rest is not known.
    """
    brackets = _LISTED.fullmatch(text)
    parsed = [spelled(part) for part in brackets[1].replace(",", " ").split()] if brackets else []
    numbers_alone = [value for value in parsed if value is not None]
    return numbers_alone if 0 < len(numbers_alone) == len(parsed) else None


def numbers(values: Sequence[Any], null: float | None = math.nan) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the numbers among some values.

    Args:
        values: [n] as parsed.
        null: What a null stands for; None leaves it out.

    Returns:
        [m] float64, and [m] their places among the n; None for the places if all are numbers.
    """
    # In one go where nothing needs a closer look; float() would read "2024_01" as a number.
    kinds = set(map(type, values))
    if kinds <= {float, int} or (kinds == {str} and max(map(len, values)) <= MAX_DIGITS and "_" not in "".join(values)):
        try:
            return np.array(list(map(float, values)), np.float64), None
        except (OverflowError, ValueError):  # an int beyond float64; a text in some other form
            pass
    parsed = [number(value, null) for value in values]
    indices = np.array([i for i, value in enumerate(parsed) if value is not None], np.int64)
    return np.array([value for value in parsed if value is not None], np.float64), indices


def with_truths(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a metric with truth values, also written as words, as 1 and 0 where it is an outcome."""
    if OUTCOME.search(name) is None or {bool, str}.isdisjoint(map(type, values)):
        return values
    return [TRUTHS.get(str(value).strip().lower(), value) for value in values]


def flat_settings(nested: Mapping[str, Any], prefix: str = "", depth: int = 0, separator: str = ".") -> dict[str, Any]:
    """Return settings with nested keys joined by a separator."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value and depth < MAX_NESTING:
            flat |= flat_settings(value, f"{prefix}{key}{separator}", depth + 1, separator)
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def settings_of(settings: Any) -> dict[str, Any]:
    """Return settings as ``flat_settings`` does, of a dict or of an object of them, such as a trainer's ``args``.

    Raises:
        ConfigError: They are no settings.
    """
    if not isinstance(record := settings, Mapping):
        to_dict = getattr(settings, "to_dict", None)
        record = to_dict() if callable(to_dict) else getattr(settings, "__dict__", None)
    if not isinstance(record, Mapping):
        raise ConfigError(f"got {settings!r:.80} for the settings; expected a dict, such as trainer.args.to_dict()")
    return flat_settings(record)


def typed(value: Any) -> Any:
    """Return a setting that was written as text as the number or truth value that it spells, None for words of none."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    parsed = spelled(text)
    return text if parsed is None else parsed
