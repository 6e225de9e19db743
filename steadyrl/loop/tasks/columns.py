"""Columns that other trainers put into prompts, and this one cannot: a row that fills one is refused, not passed over.

TRL reads ``image``, ``images``, ``tools`` and ``chat_template_kwargs``; verl ``images``, ``videos`` and, in
``extra_info``, ``tools_kwargs`` and ``interaction_kwargs``; slime ``tools``; ms-swift ``system``, ``history``,
``tools``, ``images``, ``videos``, ``audios``, and ``input`` beside ``instruction``; verifiers, in ``info``,
``oai_tools``. Templates read the reasoning of earlier messages. A policy without them would train on a question that it
does not see.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from steadyrl.core.errors import DataError

_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_TOOLS = ("tools", "tools_kwargs", "interaction_kwargs", "oai_tools")
_IN_PROMPT = "put its text into the messages of the prompt"
_REMEDIES = {
    **dict.fromkeys(_MEDIA, "only text is read: take a data set of texts"),
    **dict.fromkeys(_TOOLS, "name the tools in task.args.tools of the task 'environment', the same for all problems"),
    "chat_template_kwargs": "set model.template_args, which holds for all prompts",
    "system": f"{_IN_PROMPT}, or into model.messages_before where it is the same for all",
    "system_prompt": f"{_IN_PROMPT}, or into model.messages_before where it is the same for all",
    "history": _IN_PROMPT,
}
_NESTED = ("extra_info", "info")  # columns of further columns, in verl and in verifiers
_OF_MESSAGES = (*_MEDIA, "tools", "reasoning_content", "reasoning", "thinking")


def require_read(record: Mapping[str, Any], texts: Collection[str], ignored: Collection[str], location: str) -> None:
    """Refuse a row with a column that changes what the policy reads elsewhere and is not read here.

    Args:
        record: The row.
        texts: What the policy reads of it: the prompt, or the contents of its messages.
        ignored: Columns that have another meaning here, or that the user wants passed over.
        location: Where the row stands.

    Raises:
        DataError: There is such a column, and it is not empty.
    """
    remedies = {**_REMEDIES, "input": _IN_PROMPT} if "instruction" in ignored else _REMEDIES
    filled = [(name, name, record[name]) for name in remedies if name in record]
    for outer in _NESTED:
        inner = record.get(outer)
        if isinstance(inner, Mapping) and outer not in ignored:
            filled += [(f"{outer}.{name}", name, inner[name]) for name in _TOOLS if name in inner]
    for column, name, value in filled:
        if column in ignored or _empty(value) or (isinstance(value, str) and any(value in text for text in texts)):
            continue
        text = " ".join(str(value).split())
        raise DataError(
            f"{location}: '{column}' holds {text:.80}, which the policy would not read; {remedies[name]}. If rewards "
            f"alone need the column, set task.args.ignore_columns = ['{column}']"
        )


def require_plain(message: Mapping[str, Any], where: str) -> None:
    """Refuse (DataError) a message that holds more for a template than its role and its content."""
    for name in _OF_MESSAGES:
        if name in message and not _empty(message[name]):
            raise DataError(
                f"{where} holds a message with '{name}', which the policy would not read; put what it should read into "
                "the message's content, or remove it"
            )


def _empty(value: Any) -> bool:
    """Return whether a value says nothing; a parquet file fills what only other rows have with None."""
    if isinstance(value, Mapping | list | tuple):
        return all(_empty(item) for item in (value.values() if isinstance(value, Mapping) else value))
    return value is None or value == ""
