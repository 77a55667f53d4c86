# SPDX-License-Identifier: Apache-2.0
"""Engines that share a GPU: how many fit, which memory each has, and that none starts beside another."""

from __future__ import annotations

from ..mutant import by_file

_SHARE_TESTS = "job/planning/test_gpu_share.py"
_LOCK_TESTS = "job/engine/test_gpu_lock.py"

MUTANTS = by_file({
    "job/planning/node_groups.py": {
        "rests-of-gpus-are-room": (
            'if name != "GPU" or amount >= 1:',
            'if name != "gpu" or amount >= 1:',
            "A plan counts on the rests of two GPUs, which Ray never gives to one engine.",
            f"{_SHARE_TESTS}::test_shares_are_counted_gpu_by_gpu",
        ),
    },
    "job/planning/gpu_share.py": {
        "contexts-take-no-memory": (
            "(OUTSIDE / gpu_bytes if gpu_bytes else 0.0)",
            "0.0",
            "The last of several engines on a small GPU finds less memory than it asks for.",
            f"{_SHARE_TESTS}::test_all_shares_of_a_gpu_fit_on_it",
        ),
    },
    "job/engine/gpu_lock.py": {
        "starts-overlap": (
            "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
            "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
            "Two engines that start at once take each other's weights for their own.",
            f"{_LOCK_TESTS}::test_the_second_start_waits_for_the_first",
        ),
        "a-hanging-start-stops-all": (
            "        if time.monotonic() >= ends:\n",
            "        if time.monotonic() >= ends + 1000:\n",
            "One engine that hangs while it starts keeps all others from the GPU.",
            f"{_LOCK_TESTS}::test_a_hanging_start_is_not_waited_for_for_ever",
        ),
    },
    "job/monitor/held_gpus.py": {
        "a-warm-share-costs-a-gpu": (
            "each = min(1, self.gpus)",
            "each = 1",
            "A job with a half of a GPU on a warm engine is billed for a whole one.",
            "job/monitor/test_held_gpus.py::test_a_share_of_a_gpu_counts_as_a_share",
        ),
    },
})
