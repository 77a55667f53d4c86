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


def check_variable_value(field: str, name: str, value: object) -> None:
    """Refuse a secret; the sentence has no value."""
    if value not in ("", None) and looks_secret(name, value):
        raise SpecError(
            f"{field}: {name} looks like a secret, and a RayJob can be read by many; put it into a Secret "
            "and give 'valueFrom': {'secretKeyRef': {'name': ..., 'key': ...}}."
        )


def check_manifest(field: str, content: Any) -> None:
    """Refuse plain secrets in the environment variables of a manifest, wherever they are."""
    for variable in _variables(content):
        name = variable.get("name")
        if name in {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}:  # KubeRay would leave it as it is
            raise SpecError(f"{field}: {name} is set for each cluster; remove it.")
        if isinstance(name, str) and "value" in variable:
            check_variable_value(field, name, variable["value"])
    check_texts(field, content)


def check_texts(field: str, content: Any, parent: str = "") -> None:
    """Refuse a plain secret in any field of a manifest, such as an annotation or `redis-password`.

    :param field: path of `content`.
    :param parent: name of the field that `content` is the value of.
    """
    if isinstance(content, (list, tuple)):
        for number, value in enumerate(content):
            check_texts(f"{field}[{number}]", value)
    if not isinstance(content, Mapping):
        return
    for key, value in content.items():
        name = parent if key == "value" else str(key)
        if "/" in name:  # annotations of injectors name files and switches in the middle
            name = re.split(r"[^A-Za-z0-9]", name)[-1]
        if isinstance(value, str) and value not in {"", "true", "false"} and looks_secret(name, value):
            raise SpecError(
                f"{field}: {key}: it looks like a secret, and a RayJob can be read by many; put it into a "
                "Secret."
            )
        check_texts(f"{field}: {key}", value, str(key))


def _variables(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if key == "env" and isinstance(value, (list, tuple)):
                yield from (one for one in value if isinstance(one, Mapping))
            else:
                yield from _variables(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _variables(value)
