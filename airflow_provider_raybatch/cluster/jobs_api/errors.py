# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between here and a Ray cluster. Every message is one sentence and names no secret."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class ClusterError(RaybatchError):
    """Root of the errors of everything that talks to a Ray cluster."""


class ClusterUnreachableError(ClusterError):
    """No usable answer: no connection, a timeout or a 5xx. A retry may help."""

    failure_class = FailureClass.CLUSTER_UNREACHABLE


class UserClusterError(ClusterError):
    """What a user has to correct: a connection, an argument or a package."""

    failure_class = FailureClass.USER_ERROR


class AuthenticationError(UserClusterError):
    """The cluster, or a proxy before it, requires a token (401) or another one (403)."""


class TlsError(UserClusterError):
    """The server's certificate is not trusted, or the server does not speak TLS."""


class NotARayDashboardError(ClusterUnreachableError):
    """Another server answers: the address is wrong, or a proxy's backend is down, which a retry may mend."""


class AnswerTooLargeError(ClusterError):
    """An answer has more bytes than are read; `received` are its first ones."""

    def __init__(self, message: str, received: bytes = b"") -> None:
        super().__init__(message)
        self.received = received


class JobExistsError(ClusterError):
    """The cluster holds a job of this submission id already."""


class PackageTooLargeError(UserClusterError):
    """A package exceeds what Ray's dashboard accepts."""


class PackageError(UserClusterError, ValueError):
    """Something can't be shipped to the cluster: it is missing, of an unsupported kind, or too large."""


class RequestRejectedError(UserClusterError):
    """The Jobs API understood the request and refused it (4xx)."""


class StaleStateError(UserClusterError):
    """An earlier submission of the same run exists with other arguments, and `on_stale_state` is ``fail``."""


class StopTimeoutError(ClusterError):
    """A job is still alive when the time to stop has passed."""


class EmbeddedClusterError(ClusterError):
    """The private Ray of a task didn't start."""
