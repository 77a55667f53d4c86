# SPDX-License-Identifier: Apache-2.0
"""What GPUs cost: for how long they are held, at which price, and over which attempts."""

from __future__ import annotations

from ..mutant import by_file

_HELD_TESTS = "job/monitor/test_held_gpus.py"
_MONEY_TESTS = "job/monitor/test_money.py"

MUTANTS = by_file({
    "job/monitor/held_gpus.py": {
        "a-dead-node-costs-on": (
            "            ends = report.seen\n",
            "            pass\n",
            "A replica whose node died is billed until the job's end.",
            f"{_HELD_TESTS}::test_a_silent_replica_counts_until_its_last_report",
        ),
        "the-drain-is-free": (
            "        silent = self._looked - report.seen\n",
            "        silent = until - report.seen\n",
            "What replicas hold while a stopped job drains is not billed.",
            f"{_HELD_TESTS}::test_all_are_gone_at_the_end",
        ),
    },
    "job/monitor/money.py": {
        "only-the-last-attempt-is-billed": (
            "        total = added(self.earlier, self.own_gpu_seconds)\n",
            "        total = self.own_gpu_seconds\n",
            "A retry forgets what the killed attempt has cost, and max_cost holds for each attempt alone.",
            f"{_MONEY_TESTS}::test_attempts_add_up_by_type",
        ),
        "a-clear-forgets-nothing": (
            "        if record.run_token == run_token:\n",
            "        if record.run_token:\n",
            "After a clear, a task is refused for the money that an earlier run has spent.",
            f"{_MONEY_TESTS}::test_earlier_jobs_count_since_the_last_clear",
        ),
    },
    "job/monitor/replica_progress.py": {
        "just-written-holds-nothing": (
            ", placed=other.placed, held_until=other.held_until)\n",
            ")\n",
            "The cost drops each time that replicas have written rows.",
            f"{_HELD_TESTS}::TestReports::test_one_that_came_with_parts_is_timed_as_the_others",
        ),
    },
})
