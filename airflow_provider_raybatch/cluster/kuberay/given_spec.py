# SPDX-License-Identifier: Apache-2.0
"""A RayCluster that a user has already, as a dictionary or a YAML file, and the Ray version of its image."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.api import Manifest
from airflow_provider_raybatch.cluster.kuberay.plain_secrets import check_manifest
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
class GivenSpec:
    """What is used of a manifest.

    :param spec: the RayCluster's.
    :param namespace: that the manifest is for; empty where it names none.
    """

    spec: Manifest
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""


def given_spec(value: Any) -> GivenSpec:
    """Read a spec.

    :param value: a RayCluster or its spec as a dictionary, or the path of a YAML file.
    :raises SpecError: it can't be read, or is something else.
    """
    if isinstance(value, (str, os.PathLike)):
        return _of_documents(_documents(Path(value)), str(value))
    if not isinstance(value, Mapping):
        raise SpecError(
            f"spec: {shown(value)} is not a manifest; give a dictionary or the path of a YAML file."
        )
    if "kind" in value or "spec" in value:
        return _of_manifest(value)
    return _checked(GivenSpec(copy.deepcopy(dict(value))))


def is_missing(value: Any) -> bool:
    """Whether a spec is a file that this machine does not have; a worker may have it."""
    is_path = isinstance(value, (str, os.PathLike)) and Path(value).is_absolute()
    try:
        return is_path and not Path(value).is_file()
    except ValueError:  # not a path of any machine
        return False


def _documents(file: Path) -> list[Any]:
    if not file.is_absolute():
        raise SpecError(
            f"spec: {str(file)!r} is not an absolute path, and tasks run in other folders; give "
            f"str(Path(__file__).with_name({file.name!r}))."
        )
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a DAG file is parsed often
        text = file.read_text(encoding="utf-8")
        return [one for one in yaml.load_all(text, Loader=loader) if one is not None]
    except (OSError, ValueError, yaml.YAMLError) as error:
        # The error's own text would show lines of the file.
        mark = getattr(error, "problem_mark", None)
        reason = f"no YAML in line {mark.line + 1}" if mark else getattr(error, "strerror", None)
        raise SpecError(
            f"spec: {str(file)!r} can't be read ({reason or 'no UTF-8 text'}); correct the path or the file."
        ) from None


def _of_documents(documents: list[Any], file: str) -> GivenSpec:
    """The one cluster of a file; other objects, such as the ConfigMaps of KubeRay's samples, are left out."""
    found = [one for one in documents if isinstance(one, Mapping) and one.get("kind") == "RayCluster"]
    found = documents if len(documents) == 1 else found
    if len(found) == 1 and isinstance(found[0], Mapping):
        return given_spec(found[0])
    kinds = [str(one.get("kind")) if isinstance(one, Mapping) else type(one).__name__ for one in documents]
    raise SpecError(
        f"spec: {file!r} must hold one RayCluster, but it holds {', '.join(kinds) or 'nothing'}; leave one "
        "in it."
    )


def _of_manifest(manifest: Mapping[str, Any]) -> GivenSpec:
    kind, spec = manifest.get("kind"), manifest.get("spec")
    if kind != "RayCluster" or not isinstance(spec, Mapping):
        raise SpecError(
            f"spec: kind: {shown(kind)} is not a RayCluster with a spec; give one, such as what a RayJob has "
            "in rayClusterSpec."
        )
    metadata = _mapping(manifest, "metadata")
    return _checked(
        GivenSpec(
            copy.deepcopy(dict(spec)),
            _mapping(metadata, "labels"),
            _mapping(metadata, "annotations"),
            str(metadata.get("namespace") or ""),
        )
    )


def _mapping(outer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = outer.get(name) or {}
    if not isinstance(found, Mapping):
        raise SpecError(f"spec: {name}: it must be a dictionary, but it is {shown(found)}.")
    return found


def _checked(given: GivenSpec) -> GivenSpec:
    check_plain({"spec": given.spec, "metadata": [given.labels, given.annotations]}, "spec")
    check_shape(given.spec, "spec")
    check_manifest("spec", given.spec)
    check_manifest("spec: metadata: annotations", given.annotations)
    return given


def check_plain(content: Any, where: str) -> None:
    """Refuse what JSON can't hold, such as the date that YAML makes of a text without quotes."""
    try:
        json.dumps(content, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"{where}: it can't be written as JSON ({error}); use texts in quotes, numbers, lists and "
            "dictionaries alone."
        ) from None


def check_shape(spec: Mapping[str, Any], where: str) -> None:
    """Refuse a RayCluster's spec without the containers that get an image and a token; KubeRay checks more.

    :param where: the argument to name.
    """
    groups = spec.get("workerGroupSpecs") or []
    if not isinstance(groups, (list, tuple)):
        raise SpecError(f"{where}: workerGroupSpecs: {shown(groups)} is not a list; give a list of groups.")
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


def check_given(given: GivenSpec, namespace: str | None, image: str | None, version: str | None) -> None:
    """Refuse a spec that does not fit the arguments beside it."""
    if given.namespace and given.namespace != namespace:
        raise SpecError(
            f"spec: its namespace is {given.namespace!r}, but namespace is {namespace!r}; give "
            f"namespace={given.namespace!r}."
        )
    version_of(given.spec, image, version)


def version_of(spec: Mapping[str, Any], image: str | None, version: str | None) -> str:
    """The Ray version of a given spec, or of the image that replaces its own."""
    if image is None and version is None:
        own = spec["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
        return ray_version(own, spec.get("rayVersion"), "spec: rayVersion")
    return ray_version(image, version)
