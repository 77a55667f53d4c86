# SPDX-License-Identifier: Apache-2.0
"""The version of model and tokenizer that a check has seen, so that all nodes load the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_raybatch.job.preflight.model_version import COMMIT


def pinned_revisions(args: dict[str, Any], config: Any) -> dict[str, str]:
    """The commits of model and tokenizer that this check has seen, empty for folders.

    Without them, each node would take what its cache or the hub has then.
    """
    tokenizer = str(args.get("tokenizer") or args["model"])
    return {
        "revision": _commit(str(args["model"]), args.get("revision"), config.revision, "config.json"),
        "tokenizer_revision": _commit(
            tokenizer,
            args.get("tokenizer_revision") or (args.get("revision") if tokenizer == args["model"] else None),
            config.tokenizer_revision,
            "tokenizer_config.json",
        ),
    }


def _commit(name: str, revision: str | None, resolved: str | None, file: str) -> str:
    if Path(name).is_dir():
        return ""
    if resolved and COMMIT.fullmatch(resolved):
        return str(resolved)  # of a class of huggingface_hub, which the driver's node need not have
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except ValueError:
        return ""  # no name of the hub's, such as a bucket
    commit = Path(cached).parent.name if isinstance(cached, str) else ""
    return commit if COMMIT.fullmatch(commit) else ""
