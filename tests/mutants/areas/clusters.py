# SPDX-License-Identifier: Apache-2.0
"""A cluster for each run, never two and never leaked: claims, deadlines and deletions."""

from __future__ import annotations

from ..mutant import by_file

_CLAIM = "cluster/kuberay/test_claim.py"
_DECIDE = "cluster/kuberay/test_decide.py"
_LIFECYCLE = "cluster/kuberay/test_lifecycle.py"
_SUBMISSION = "cluster/kuberay/test_submission.py"

MUTANTS = by_file({
    "cluster/kuberay/claim.py": {
        "no-second-list-after-a-create": (
            "    if any(one.number > number for one in found):\n",
            "    if False:\n",
            "A process that was frozen makes a second cluster beside the one of its successor.",
            _CLAIM,
        ),
        "next-cluster-beside-the-old-one": (
            "    await _wait_until_gone(api, [latest], seconds)\n",
            "",
            "The next job starts while that of a cluster which is being deleted still runs.",
            _CLAIM,
        ),
        "lower-clusters-stay": (
            "    await _remove(api, decision.superseded, seconds)\n",
            "",
            "Two clusters of one run are paid for, and both may have a job.",
            _CLAIM,
        ),
        "adopter-makes-no-secret": (
            "    await _ensure_secret(api, plan, latest)\n",
            "",
            "A worker that dies between RayJob and Secret leaves a cluster that never starts.",
            _CLAIM,
        ),
        "cluster-without-a-deadline": (
            "    if made.pre_running_deadline is None:\n",
            "    if False:\n",
            "On an old KubeRay, a worker that dies before it submits leaves its GPUs on for ever.",
            _CLAIM,
        ),
        "kill-leaves-a-rayjob-behind": (
            "await seen_to_its_end(api.create(manifest))",
            "await api.create(manifest)",
            "A task that is killed while it creates its cluster leaves one that it does not know.",
            f"{_CLAIM}::test_a_cancelled_claim_returns_once_its_rayjob_exists",
        ),
        "cluster-stays-without-its-secret": (
            "        with contextlib.suppress(ClusterError):\n"
            "            await delete(api, claim)\n        raise\n",
            "        raise\n",
            "A Secret that is refused leaves a cluster behind that never starts.",
            _CLAIM,
        ),
    },
    "cluster/kuberay/decide.py": {
        "ended-clusters-adopted": (
            "    if latest.terminal and not finished:\n",
            "    if False:\n",
            "A retry waits for a cluster that KubeRay has ended.",
            _DECIDE,
        ),
        "suspended-job-waited-for": (
            "    if latest.suspended and latest.job_id and not latest.terminal:\n",
            "    if False:\n",
            "A task waits for a job that Kueue's preemption has ended.",
            _DECIDE,
        ),
        "strangers-deleted": (
            "            action = Action.WAIT if one.deleting else Action.FAIL\n",
            "            action = Action.WAIT if one.deleting else Action.REPLACE\n",
            "A RayJob that can't be proven to be the run's is deleted.",
            _DECIDE,
        ),
        "lost-job-submitted-again": (
            "    if job is None and attached:\n",
            "    if False:\n",
            "After a restart of the head a job runs on a cluster that KubeRay takes for ended.",
            _DECIDE,
        ),
    },
    "cluster/kuberay/lifecycle.py": {
        "another-rayjob-of-the-name": (
            "    return found if found is not None and found.uid == claim.uid else None\n",
            "    return found\n",
            "An attempt follows, extends and waits for a RayJob that is not its own.",
            _LIFECYCLE,
        ),
        "delete-without-uid": (
            'api.delete("RayJob", claim.name, uid=claim.uid)',
            'api.delete("RayJob", claim.name)',
            "A late process deletes its successor's cluster.",
            _LIFECYCLE,
        ),
        "hole-in-waiting": (
            '    if rayjob.deployment_status == "Waiting":\n',
            "    if False:\n",
            "KubeRay ends a healthy job's cluster, as it was not told of the job in time.",
            _LIFECYCLE,
        ),
        "kill-extends-a-deadline": (
            "if before is None or before > ends}",
            "}",
            "A kill gives a cluster more time than it had.",
            _LIFECYCLE,
        ),
        "deadline-that-is-not-positive": (
            "    return max(1, min(FOR_EVER, math.ceil(seconds)))\n",
            "    return min(FOR_EVER, math.ceil(seconds))\n",
            "KubeRay finds the deadline invalid, and keeps the cluster for ever.",
            _LIFECYCLE,
        ),
        "newer-runs-deleted": (
            "        and (run_number(one.run_token), one.created) < present\n",
            "",
            "A late process of an earlier run deletes the present run's cluster.",
            _LIFECYCLE,
        ),
    },
    "cluster/kuberay/submission.py": {
        "waiting-without-a-cluster": (
            '        if rayjob.deployment_status == "Waiting" and ',
            "        if False and ",
            "A RayCluster that someone has deleted fails all attempts until the RayJob's deadline.",
            _SUBMISSION,
        ),
    },
})
