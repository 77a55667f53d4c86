# SPDX-License-Identifier: Apache-2.0
"""What a user gives in Kubernetes' own words: what this package needs, or replaces, is checked.

Secrets in plain text are refused: a RayJob can be read by all who may list RayJobs.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError

OLDEST_RAY = (2, 56)

_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)?([.\-+]?[a-z0-9.]+)?")
_OF_TAG = re.compile(r":(?:v|ray-?)?(\d+\.\d+\.\d+)(?:[-.][\w.-]*)?(?:@sha256:[0-9a-f]+)?$")


def ray_version(image: str | None, given: Any, field: str = "ray_version") -> str:
    """The version, which KubeRay must know.

    :param given: of `ray_version`, or of a spec; it takes precedence.
    :raises SpecError: it is unknown, or older than this package runs on.
    """
    if given is None:
        found = _OF_TAG.search(image or "")
        if found is None:
            raise SpecError(
                f"{field}: the image {shown(image)} does not tell its version of Ray; give it, such as "
                "'2.60.0'."
            )
        given = found[1]
    version = _VERSION.fullmatch(given) if isinstance(given, str) else None
    if version is None:
        raise SpecError(
            f"{field}: {shown(given)} is not a version of Ray; give it as text, such as '2.60.0'."
        )
    if (int(version[1]), int(version[2])) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise SpecError(f"{field}: {shown(given)} is too old; use an image with Ray {oldest} or newer.")
    return str(given)


@dataclass(frozen=True)
class UserManifest:
    """A user's RayCluster.

    :param spec: the RayCluster's.
    :param namespace: that the manifest is for; empty where it names none.
    """

    spec: dict[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""

    def check_beside(self, namespace: str | None, image: str | None, version: str | None) -> None:
        """Refuse a manifest that does not fit the arguments beside it."""
        if self.namespace and self.namespace != namespace:
            raise SpecError(
                f"spec: its namespace is {self.namespace!r}, but namespace is {namespace!r}; give "
                f"namespace={self.namespace!r}."
            )
        self.version(image, version)

    def version(self, image: str | None, version: str | None) -> str:
        """The Ray version of its head, or of the image that replaces the head's."""
        if image is None and version is None:
            own = self.spec["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
            return ray_version(own, self.spec.get("rayVersion"), "spec: rayVersion")
        return ray_version(image, version)


def read_manifest(value: Any) -> UserManifest:
    """Read a RayCluster.

    :param value: it or its spec as a dictionary, or the path of a YAML file.
    :raises SpecError: it can't be read, or is something else.
    """
    if isinstance(value, (str, os.PathLike)):
        value = _in_file(Path(value))
    if not isinstance(value, Mapping):
        raise SpecError(
            f"spec: {shown(value)} is not a manifest; give a dictionary or the path of a YAML file."
        )
    if "kind" not in value and "spec" not in value:
        value = {"kind": "RayCluster", "spec": value}
    spec, metadata = value.get("spec"), value.get("metadata") or {}
    beside: list[Any] = [None, None]
    if isinstance(metadata, Mapping):
        beside = [metadata.get("labels") or {}, metadata.get("annotations") or {}]
    if value.get("kind") != "RayCluster" or not all(isinstance(part, Mapping) for part in (spec, *beside)):
        raise SpecError(
            f"spec: kind: {shown(value.get('kind'))} is not a RayCluster whose spec and metadata are "
            "dictionaries; give one, such as what a RayJob has in rayClusterSpec."
        )
    check_plain({"spec": spec, "metadata": metadata}, "spec")
    check_containers(spec, "spec")
    check_secrets("spec", [spec, beside[1]])
    return UserManifest(copy.deepcopy(dict(spec)), beside[0], beside[1], str(metadata.get("namespace") or ""))


def _in_file(file: Path) -> Any:
    """The one cluster of a file; other objects, such as the ConfigMaps of KubeRay's samples, are left out."""
    if not file.is_absolute():
        raise SpecError(
            f"spec: {str(file)!r} is not an absolute path, and tasks run in other folders; give "
            f"str(Path(__file__).with_name({file.name!r}))."
        )
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a DAG file is parsed often
        documents = [one for one in yaml.load_all(file.read_text("utf-8"), Loader=loader) if one is not None]
    except (OSError, ValueError, yaml.YAMLError) as error:
        # The error's own text would show lines of the file.
        mark = getattr(error, "problem_mark", None)
        reason = f"no YAML in line {mark.line + 1}" if mark else getattr(error, "strerror", None)
        raise SpecError(
            f"spec: {str(file)!r} can't be read ({reason or 'no UTF-8 text'}); correct the path or the file."
        ) from None
    clusters = [one for one in documents if isinstance(one, Mapping) and one.get("kind") == "RayCluster"]
    found = clusters or documents
    if len(found) != 1:
        raise SpecError(
            f"spec: {str(file)!r} must hold one RayCluster, but it holds {len(clusters)}; leave one in it."
        )
    return found[0]


def check_plain(content: Any, where: str) -> None:
    """Refuse what JSON can't hold, such as the date that YAML makes of a text without quotes."""
    try:
        json.dumps(content, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"{where}: it can't be written as JSON ({error}); use texts in quotes, numbers, lists and "
            "dictionaries alone."
        ) from None


def check_containers(spec: Mapping[str, Any], where: str) -> None:
    """Refuse a RayCluster's spec without the containers that get an image and a token; KubeRay checks more.

    :param where: the argument to name.
    """
    groups = spec.get("workerGroupSpecs") or []
    groups = groups if isinstance(groups, (list, tuple)) else [groups]
    named = {f"workerGroupSpecs[{number}]": group for number, group in enumerate(groups)}
    for name, group in {"headGroupSpec": spec.get("headGroupSpec"), **named}.items():
        found = group
        for step in ("template", "spec", "containers"):
            found = found.get(step) if isinstance(found, Mapping) else None
        first = found[0] if isinstance(found, (list, tuple)) and found else None
        if not isinstance(first, Mapping) or not first.get("image"):
            raise SpecError(
                f"{where}: {name}: template.spec.containers: Ray's container is needed here, with its image; "
                "give both."
            )


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


def check_secrets(field: str, content: Any) -> None:
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
