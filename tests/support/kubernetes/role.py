# SPDX-License-Identifier: Apache-2.0
"""The Role of what the package asks, as rules of a manifest."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.cluster.kuberay.role import BY_NAME, OPERATIONS


def role_rules(*only: str, secret: str = "") -> list[dict[str, Any]]:
    """Rules of the Role, as in a manifest.

    :param only: of :data:`PROXY`, :data:`BY_NAME`, :data:`SHARED_CLUSTERS` and :data:`KUEUE`: what the users
        of the Role need besides.
    :param secret: name of the one Secret that may be read, with :data:`BY_NAME`.
    """
    rules: dict[tuple[str, str, str], list[str]] = {}
    for operation in OPERATIONS:
        if operation.only and operation.only not in only:
            continue
        part = operation.only if operation.resource == "secrets" else ""
        rules.setdefault((operation.group, operation.resource, part), []).append(operation.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs}
        | ({"resourceNames": [secret]} if part == BY_NAME else {})
        for (group, resource, part), verbs in rules.items()
    ]
