# SPDX-License-Identifier: Apache-2.0
"""Which clusters on Kubernetes a sweeper deletes, and why one that comes or has gone is given up."""

from __future__ import annotations

from ..mutant import by_file

_SWEEP = "cluster/kuberay/test_sweep.py"
_READY = "cluster/kuberay/test_readiness.py"
_WORDS = "cluster/kuberay/test_last_words.py"

MUTANTS = by_file({
    "cluster/kuberay/sweep.py": {
        "sweeps-another-airflow": (
            "    if one.installation != installation_label(namespace):\n",
            "    if not one.installation:\n",
            "The sweeper of one Airflow deletes the clusters of another.",
            _SWEEP,
        ),
        "sweeps-young-clusters": (
            "    if now - one.created < grace:\n",
            "    if False:\n",
            "A cluster is deleted between its creation and the first answer of Airflow about its run.",
            _SWEEP,
        ),
        "silence-of-airflow-is-the-end": (
            "    if not fate.known or (fate.exists and not fate.over):\n",
            "    if fate.known and fate.exists and not fate.over:\n",
            "An outage of Airflow's API server deletes all clusters.",
            _SWEEP,
        ),
        "retry-is-the-end": (
            '_OVER = frozenset({"success", "failed", ',
            '_OVER = frozenset({"success", "up_for_retry", "failed", ',
            "The cluster that a retry would adopt is deleted.",
            _SWEEP,
        ),
        "sweeps-a-job-that-drains": (
            "    if one.ends is not None and now < one.ends + grace and (one.ends - now < grace or not "
            "fate.exists):\n",
            "    if one.ends is not None and now < one.ends + grace and not fate.exists:\n",
            "A killed job loses the rows that it was writing.",
            _SWEEP,
        ),
        "sweeps-jobs-without-a-follower": (
            '    if one.unfollowed and fate.state == "success":\n',
            "    if False:\n",
            "The job of a task that does not wait for it loses its cluster.",
            _SWEEP,
        ),
        "no-run-is-the-end": (
            "    if not fate.exists and one.ends is None:\n",
            "    if False:\n",
            "The sweeper of a copied Airflow deletes clusters of the original.",
            _SWEEP,
        ),
        "believes-annotations": (
            "    return task if labels.get(TASK) == task.digest else None\n",
            "    return task\n",
            "A cluster whose annotations were edited is judged by another task.",
            _SWEEP,
        ),
    },
    "places/own.py": {
        "late-attempt-ends-its-successor": (
            "                if uid is not None and rayjob.uid != uid:\n",
            "                if False:\n",
            "A worker that wakes up late deletes the cluster of the attempt after its own.",
            "operators/own_clusters/test_leaks.py",
        ),
    },
    "cluster/kuberay/readiness.py": {
        "worker-ends-a-ready-cluster": (
            '    if job.deployment_status in READY:\n        return Readiness("ready", lines, state)\n',
            "",
            "One dead worker ends the task that waits for a cluster which is ready.",
            _READY,
        ),
    },
    "cluster/kuberay/pod_reasons.py": {
        "busy-registry-is-final": (
            "    if _MAY_BE_PULLED.search(said):\n",
            "    if False:\n",
            "A rate limit of the registry fails the task for good.",
            _READY,
        ),
    },
    "cluster/kuberay/last_words.py": {
        "earlier-head-ends-the-job": (
            "    cause = None if any(pod.head and pod.ready and not pod.deleting for pod in there) else ",
            "    cause = ",
            "A job on a healthy cluster is given up, since an earlier head of it had died.",
            _WORDS,
        ),
        "spot-is-the-user-s-fault": (
            '    return Diagnosis(FailureClass.NODE_LOST, _joined(f"{reason}: {told}", message))\n',
            '    return Diagnosis(FailureClass.USER_ERROR, _joined(f"{reason}: {told}", message))\n',
            "A spot node that is taken back fails the task without a retry.",
            _WORDS,
        ),
    },
})
