"""What `steadyrl export` and ``Run.export`` do: write the policy of one run, or of several joined, and upload it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core import plugins
from steadyrl.core.errors import AccessError, ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.integrations.export.joined import export_joined
from steadyrl.integrations.export.model import DEFAULT_FOLDER, export

GGUF_FOLDER = "gguf"  # in the run directory


def deliver(
    runs: Sequence[RunDir],
    to: Path | None = None,
    checkpoint: str | None = None,
    merge: bool = False,
    gguf: bool = False,
    push_to_hub: str | None = None,
    phase: Callable[[str], None] = print,
) -> tuple[Path, str]:
    """Export, and upload where a name on the hub is given; what both need is checked first.

    Args:
        runs: Several of one start model are joined.
        to: An empty or new folder; None for the folder ``export``, or ``gguf``, of a single run.
        checkpoint: "best", "last" or a step; None for the best where the run kept one, and the last otherwise.
        merge: Merge a LoRA adapter into the weights, as a GGUF file needs.
        gguf: Write the weights as a GGUF file with a Modelfile as well.
        push_to_hub: OWNER/NAME of a repository; None uploads nothing.
        phase: Called with a line before each part of the work.

    Returns:
        The folder, and the address of the repository, "" without one.

    Raises:
        SteadyError: Nothing can be exported, or the hub refuses.
    """
    if len(runs) > 1 and to is None:
        raise ConfigError("several runs are joined into a folder of their own; give it with --to FOLDER")
    folder = to or runs[0].path / (GGUF_FOLDER if gguf else DEFAULT_FOLDER)
    client = None if push_to_hub is None else open_hub(push_to_hub)
    if gguf:
        plugins.require("gguf")
    if len(runs) > 1:
        export_joined(runs, folder, checkpoint, merge or gguf, phase, gguf)
    else:
        export(runs[0], folder, checkpoint, merge or gguf, phase, gguf)
    return folder, "" if push_to_hub is None else push(client, folder, push_to_hub, phase)


def open_hub(name: str) -> Any:
    """Return the hub's client, before anything is exported.

    Raises:
        ConfigError: The name is none of a repository, or there is no token.
        MissingExtraError: The package huggingface_hub is not installed.
    """
    hub = plugins.require("huggingface_hub")
    try:
        plugins.require("huggingface_hub.utils").validate_repo_id(name)
    except ValueError as error:
        raise ConfigError(
            f"--push-to-hub '{name:.100}' is no name of a repository: {error}; expected OWNER/NAME"
        ) from error
    client = hub.HfApi()
    if not client.token and not hub.get_token():
        raise ConfigError(
            "there is no token of the Hugging Face hub; get one at https://huggingface.co/settings/tokens, and run "
            "`hf auth login` or set HF_TOKEN"
        )
    return client


def push(client: Any, folder: Path, name: str, phase: Callable[[str], None] = print) -> str:
    """Upload a folder and return the address of its repository, which is private if it is new.

    Raises:
        AccessError: The hub cannot be reached, or refuses; the folder stays.
    """
    refused = plugins.require("huggingface_hub.errors").HfHubHTTPError
    # Its base is that of all errors of the HTTP library, which has changed twice; that of requests is an OSError.
    network = tuple(base for base in refused.__mro__ if base.__name__ == "HTTPError")
    phase(f"uploading '{folder}' to {name}")
    try:
        address = client.create_repo(name, private=True, exist_ok=True)
        client.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a policy trained with steadyrl")
    except (OSError, *network) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise AccessError(
            f"'{folder}' is exported, but was not uploaded to {name}: {reason[0]}; check the network, the name and the "
            f"token's rights, and upload it with: hf upload {name} {folder}"
        ) from error
    return str(address)
