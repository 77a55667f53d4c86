# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between here and a Ray cluster. Every message is one sentence and names no secret."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class ClusterError(RaybatchError):
    """Root of the errors of everything that talks to a Ray cluster."""


class ClusterUnreachableError(ClusterError):
    """No usable answer: no connection, a timeout or a 5xx. A retry may help."""

    failure_class = FailureClass.CLUSTER_UNREACHABLE


class AuthenticationError(ClusterError):
    """The cluster, or a proxy before it, requires a token (401) or another one (403)."""

    failure_class = FailureClass.USER_ERROR


class TlsError(ClusterError):
    """The server's certificate is not trusted, or the server does not speak TLS."""

    failure_class = FailureClass.USER_ERROR


class NotARayDashboardError(ClusterUnreachableError):
    """Something other than a Ray dashboard answers at the address.

    The address is wrong, or a proxy's backend is down. The replies are the same, so a retry may help.
    """


class AnswerTooLargeError(ClusterError):
    """An answer has more bytes than are read.

    :ivar received: its first bytes.
    """

    received: bytes = b""


class JobExistsError(ClusterError):
    """The cluster holds a job of this submission id already."""


class PackageTooLargeError(ClusterError):
    """A package exceeds what Ray's dashboard accepts."""

    failure_class = FailureClass.USER_ERROR


class PackageError(ClusterError, ValueError):
    """Something can't be shipped to the cluster: it is missing, of an unsupported kind, or too large."""

    failure_class = FailureClass.USER_ERROR


class RequestRejectedError(ClusterError):
    """The Jobs API understood the request and refused it (4xx)."""

    failure_class = FailureClass.USER_ERROR


class StaleStateError(ClusterError):
    """An earlier submission of the same run exists with other arguments, and `on_stale_state` is ``fail``."""

    failure_class = FailureClass.USER_ERROR


class StopTimeoutError(ClusterError):
    """A job is still alive when the time to stop has passed."""


class EmbeddedClusterError(ClusterError):
    """The private Ray of a task didn't start."""
