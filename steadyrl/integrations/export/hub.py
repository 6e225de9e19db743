"""Sends an exported folder to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyrl.core.errors import AccessError, ConfigError
from steadyrl.core.plugins import require


def open_hub(name: str) -> Any:
    """Return the hub's client, before anything is exported.

    Raises:
        ConfigError: The name is none of a repository, or there is no token.
        MissingExtraError: The package huggingface_hub is not installed.
    """
    hub = require("huggingface_hub")
    try:
        require("huggingface_hub.utils").validate_repo_id(name)
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
    refused = require("huggingface_hub.errors").HfHubHTTPError
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
