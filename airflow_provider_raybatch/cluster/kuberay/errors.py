# SPDX-License-Identifier: Apache-2.0
"""What a Kubernetes API server answers instead of a result; messages are one sentence and name no secret."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.jobs_api.errors import (
    ClusterError,
    ClusterUnreachableError,
    UserClusterError,
)
from airflow_provider_raybatch.contract.failures import FailureClass


class KubernetesUnreachableError(ClusterUnreachableError):
    """No usable answer: no connection, a timeout, 429 or a 5xx. A retry may help."""


class KubernetesLoginError(UserClusterError):
    """401: there are no credentials, or they have expired."""


class ForbiddenError(UserClusterError):
    """403 without a quota: the Role lacks a verb, or an admission webhook refuses the object."""


class QuotaExceededError(ClusterError):
    """403 with a quota: a retry may help, once other objects are gone."""

    failure_class = FailureClass.STALLED


class InvalidObjectError(UserClusterError):
    """400 or 422: the server refuses the object, or does not know one of its fields."""


class NoSuchKindError(UserClusterError):
    """404 for a kind or a namespace: KubeRay is not installed, or the namespace does not exist."""


class ObjectExistsError(ClusterError):
    """409 on create: another process made an object of this name."""


class ChangedObjectError(ClusterError):
    """409 on a patch or delete: the object is another one than the caller has seen, or has changed since."""


class ClusterOverError(ClusterError):
    """The only job of a cluster is over without a result, or lost: the run goes on with its next cluster."""

    failure_class = FailureClass.CLUSTER_LOST
