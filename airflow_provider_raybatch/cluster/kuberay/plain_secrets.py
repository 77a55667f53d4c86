# SPDX-License-Identifier: Apache-2.0
"""Refuse secrets in plain text: a RayJob can be read by all who may list RayJobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raybatch.contract.failures import SpecError

_SECRET_WORDS = frozenset({
    "token", "secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials",
    "apikey",
})  # fmt: skip
_SECRET_PAIRS = (
    "api_key", "access_key", "private_key", "secret_key", "auth_key", "account_key", "seal_key",
    "encryption_key",
)  # fmt: skip
_NOT_SECRET_ENDS = frozenset({
    "file", "path", "dir", "url", "uri", "name", "id", "mode", "type", "limit", "ttl",
    "class",
})  # fmt: skip
"""Last words of variables that name where a secret lies, or one of its properties."""
_SECRET_VALUES = re.compile(
    r"hf_[A-Za-z0-9]{20,}|(AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"
)


def looks_secret(name: str, value: object) -> bool:
    """Whether an environment variable seems to hold a secret, by its name or its value."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    named = bool(_SECRET_WORDS.intersection(words)) or any(pair in "_".join(words) for pair in _SECRET_PAIRS)
    is_place = words[-1] in _NOT_SECRET_ENDS
    return (named and not is_place) or bool(_SECRET_VALUES.search(str(value)))


def check_manifest(field: str, content: Any) -> None:
    """Refuse a plain secret anywhere in a manifest: in a variable, an annotation, or `redis-password`.

    The sentence has its name, and not its value.
    """
    for name, text in _texts(content):
        if name == "name" and text in {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}:  # KubeRay would leave it as it is
            raise SpecError(f"{field}: {text} is set for each cluster; remove it.")
        # Annotations of injectors name files and switches in the middle.
        last = re.split(r"[^A-Za-z0-9]", name)[-1] if "/" in name else name
        if text not in {"", "true", "false"} and looks_secret(last, text):
            raise SpecError(
                f"{field}: {name} looks like a secret, and a RayJob can be read by many; put it into a "
                "Secret, and refer to that, as in 'valueFrom': {'secretKeyRef': {'name': ..., 'key': ...}}."
            )


def _texts(content: Any, parent: str = "") -> Iterator[tuple[str, str]]:
    """Each text with the name of its field or, of a `value`, of what has it."""
    if isinstance(content, (list, tuple)):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, Mapping):
        own = content.get("name")
        for key, value in content.items():
            if isinstance(value, str):
                yield (own if isinstance(own, str) else parent) if key == "value" else str(key), value
            else:
                yield from _texts(value, str(key))
