"""`steadyrl examples`: a list of the examples that ship with the package, or a copy of one in the current folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import steadyrl
from steadyrl.cli.terminal import note, printable
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import not_written
from steadyrl.core.words import did_you_mean, shell_command
from steadyrl.show.page.records import Facts
from steadyrl.show.page.terminal import show

_FOLDER = "examples"
_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"  # what the examples' folder models/smollm2 was made of


def examples_command(
    name: Annotated[str, typer.Argument(help="the example to copy; without a name all examples are listed")] = "",
) -> None:
    """List the examples, or copy an example, with all needed files, into examples/ of the current folder."""
    examples = dict(all_examples(examples_folder()))
    if not name:
        show([Facts([(example, describe_example(file)) for example, file in examples.items()])])
        note("copy one with: steadyrl examples NAME")
        return
    key = name.removeprefix(f"{_FOLDER}/").removesuffix(".toml").removesuffix(".ipynb")
    if key not in examples:
        hint = did_you_mean(key, examples, "`steadyrl examples` lists them")
        raise ConfigError(f"there is no example '{name:.80}'; {hint}")
    copied = copy_example(examples[key], Path.cwd())
    for path in copied:
        print(printable(f"written: {path}"))
    example_file, model = copied[0], ""
    if example_file.suffix == ".ipynb":
        line = f"open it with: jupyter lab {example_file}"
    elif example_file.name == "config.toml":
        line = f"train with: cd {example_file.parent} && {shell_command('train', example_file.name)}"
    else:
        line = f"train with: {shell_command('train', example_file)}"
        model = tomllib.loads(example_file.read_text(encoding="utf-8")).get("model", {}).get("path", "base")
    print(printable(line))
    if model.startswith("models/") and not Path(model).is_dir():
        hint = f"its model '{model}' is not here: its first comment says how to make it, or add model.path={_HUB}"
        print(printable(hint))


def examples_folder() -> Path:
    """Return the folder of the examples: in the package where it was installed from a wheel, else beside it."""
    package = Path(steadyrl.__file__).parent
    installed = package / _FOLDER
    return installed if installed.is_dir() else package.parent / _FOLDER


def all_examples(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each example.

    Raises:
        ConfigError: There is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"there are no examples in '{folder}'; install steadyrl from its wheel or its repository")
    for path in sorted(folder.rglob("*"), key=lambda path: (len(path.parts), path)):
        if path.suffix in (".toml", ".ipynb") and path.name != "pyproject.toml":  # of an example that is a package
            name = path.relative_to(folder).with_suffix("")
            yield (name.parent if name.name == "config" else name).as_posix(), path


def describe_example(path: Path) -> str:
    """Return the first sentence of an example: of a config's first comment, or of a notebook's heading."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return f"{''.join(json.loads(text)['cells'][0]['source']).splitlines()[0].lstrip('# ')} (a notebook)."
    lines = []
    for line in text.splitlines():
        if not line.startswith("# ") or line.startswith("#  "):
            break
        lines.append(line[2:].strip())
    sentence = " ".join(lines).partition(". ")[0]
    return f"{sentence.rstrip(':.')}."


def copy_example(path: Path, target: Path) -> list[Path]:
    """Copy an example and what it names into ``target``, where its paths mean the same as in the repository.

    Returns:
        The files that were written, relative to ``target``, the example first.

    Raises:
        ConfigError: One of them is there and differs; nothing is written.
        AccessError: The folder cannot be written.
    """
    folder = examples_folder()
    sources = list(dict.fromkeys([path, *_needed(path, folder)]))
    destinations = {source: target / _FOLDER / source.relative_to(folder) for source in sources}
    for source, destination in destinations.items():
        if destination.exists() and destination.read_bytes() != source.read_bytes():
            raise ConfigError(
                f"'{destination.relative_to(target)}' is there and differs; move it, or copy the example into another "
                "folder"
            )
    try:
        for source, destination in destinations.items():
            destination.parent.mkdir(parents=True, exist_ok=True)
            if destination.resolve() != source.resolve():
                shutil.copyfile(source, destination)
    except OSError as error:
        raise not_written(Path(error.filename), error) from error
    return [destination.relative_to(target) for destination in destinations.values()]


def _needed(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that an example reads: those beside a config of its own folder, and those that settings name."""
    if path.name == "config.toml":
        yield from (file for file in sorted(path.parent.iterdir()) if file.is_file())
    if path.suffix != ".toml":
        return
    for text in _texts(tomllib.loads(path.read_text(encoding="utf-8"))):
        if text.startswith(f"{_FOLDER}/"):
            source = folder / text.removeprefix(f"{_FOLDER}/")
            yield from sorted(file for file in source.rglob("*") if file.is_file()) if source.is_dir() else [source]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)
