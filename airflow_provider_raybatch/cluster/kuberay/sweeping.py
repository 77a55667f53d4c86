# SPDX-License-Identifier: Apache-2.0
"""Find what runs have left in a namespace, and delete what is proven to be left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi, Manifest
from airflow_provider_raybatch.cluster.kuberay.errors import ChangedObjectError, ForbiddenError
from airflow_provider_raybatch.cluster.kuberay.rayjob import INSTALLATION
from airflow_provider_raybatch.cluster.kuberay.sweep import LeftKind, Leftover, leftover_of


@dataclass(frozen=True)
class FoundObjects:
    """What carries the label of any Airflow in a namespace.

    :param namespace: of Kubernetes.
    :param objects: RayJobs, and the RayClusters and Secrets whose RayJob is gone.
    :param now: epoch seconds by the server's clock.
    :param unseen: kinds that the Role does not let list.
    """

    namespace: str
    objects: tuple[Leftover, ...]
    now: float
    unseen: tuple[LeftKind, ...] = ()

    @property
    def unseen_sentence(self) -> str:
        """What was not looked at, for people; empty if all was."""
        if not self.unseen:
            return ""
        kinds = " and ".join(f"{kind}s" for kind in self.unseen)
        return (
            f"{kinds} without a RayJob were not looked for, since the Role does not let list them; "
            "Kubernetes collects them by itself, unless their owner was taken from them."
        )


async def find_left(api: KubernetesApi) -> FoundObjects:
    """List what this package has made.

    RayClusters and Secrets without their RayJob are found only if the Role lets list them, too; Kubernetes
    collects both by itself, unless their owner was taken from them.

    :raises ClusterError: RayJobs can't be listed.
    """
    unseen: list[LeftKind] = []
    # Before the RayJobs: one that is made meanwhile must not have its Secret taken for a leak.
    clusters = await _listed(api, "RayCluster", unseen)
    secrets = await _listed(api, "Secret", unseen)
    rayjobs = await api.list("RayJob", labels=INSTALLATION)
    uids = {one["metadata"]["uid"] for one in rayjobs}
    names = {one["metadata"]["name"] for one in rayjobs}
    objects = [leftover_of(one, "RayJob") for one in rayjobs]
    objects += [leftover_of(one, "RayCluster") for one in clusters if _is_left(one, uids, names)]
    objects += [leftover_of(one, "Secret") for one in secrets if _is_left(one, uids, names)]
    objects.sort(key=lambda one: one.created)
    return FoundObjects(api.namespace, tuple(objects), api.now(), tuple(unseen))


async def delete_left(
    api: KubernetesApi, objects: Iterable[Leftover]
) -> tuple[Sequence[Leftover], Sequence[str]]:
    """Delete these very objects.

    :return: those that were still there, and a sentence for each that may not be deleted.
    """
    deleted, refused = [], []
    for one in objects:
        try:
            if await api.delete(one.kind, one.name, uid=one.uid):
                deleted.append(one)
        except ChangedObjectError:
            continue  # another object has its name now
        except ForbiddenError as error:
            refused.append(str(error))
    return deleted, refused


async def _listed(api: KubernetesApi, kind: LeftKind, unseen: list[LeftKind]) -> list[Manifest]:
    try:
        return await api.list(kind, labels=INSTALLATION)
    except ForbiddenError:
        unseen.append(kind)
        return []


def _is_left(manifest: Manifest, uids: set[str], names: set[str]) -> bool:
    """Whether the RayJob of an object is gone; without an owner, its name says whose it was."""
    metadata = manifest["metadata"]
    owners = [one["uid"] for one in metadata.get("ownerReferences") or () if one.get("kind") == "RayJob"]
    return not uids & set(owners) if owners else metadata["name"].rpartition("-")[0] not in names
