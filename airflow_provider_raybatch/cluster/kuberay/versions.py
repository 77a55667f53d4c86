# SPDX-License-Identifier: Apache-2.0
"""The Ray version of a cluster: given, or of its image's tag."""

from __future__ import annotations

import re
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
