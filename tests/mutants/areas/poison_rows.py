# SPDX-License-Identifier: Apache-2.0
"""The search for the row that kills the engine, and the rows of a lost process."""

from __future__ import annotations

from ..mutant import by_file

_LOST = "job/replica/test_lost_replicas.py"
_TESTS = "job/replica/test_poison_rows.py"

MUTANTS = by_file({
    "job/replica/coordinator.py": {
        "unreported-parts-not-looked-up": (
            "        if process in self._queue.replicas and not self._queue.is_idle(process):\n",
            "        if False:\n",
            "Rows that a killed process had written are paid for and written twice.",
            "job/replica/test_replica.py::test_rows_written_but_not_reported_are_not_paid_again",
        ),
        "starts-before-its-last-death-is-judged": (
            "        if self._left_parts.awaited_of(actor):\n            return None\n",
            "",
            "While storage is slow, a job whose engine works is given up.",
            f"{_LOST}::test_the_coordinator_answers_while_storage_is_away",
        ),
        "rows-freed-by-a-process-that-is-lost": (
            "if process in self._membership and process in self._queue.replicas:\n"
            "            self._left_answers +=",
            "if process in self._queue.replicas:\n            self._left_answers +=",
            "Rows that a lost process had written are paid for twice if it lives still.",
            f"{_LOST}::test_a_silent_replica_that_lives_still_has_no_say",
        ),
        "leaves-before-lost-rows-are-free": (
            "return self._queue.has_rows_for_another or bool(self._left_parts)",
            "return self._queue.has_rows_for_another",
            "The last replicas leave while rows of a lost one are still to do.",
            f"{_LOST}::test_others_stay_for_rows_that_are_not_free_yet",
        ),
        "storage-that-is-away-is-not-told": (
            "        self._left_parts.check()\n",
            "",
            "A job waits for rows of a lost replica until no_progress_timeout.",
            f"{_LOST}::test_a_silent_replica_is_told_as_storage_while_that_is_away",
        ),
        "killer-proves-the-engine": (
            "or self._queue.proves(process, report.finished):\n",
            "or len(report.finished):\n",
            "An engine that dies of every row is restarted once for each row.",
            f"{_TESTS}::test_max_restarts_end_an_engine_that_dies_of_every_row",
        ),
        "earlier-process-not-buried": (
            "            self._bury(earlier, begun)\n",
            "            pass\n",
            "The rows of a killed process wait until its silence is noticed.",
            "job/replica/test_replica.py::test_rows_written_but_not_reported_are_not_paid_again",
        ),
        "on_probation-replicas-not-marked": (
            "        self._queue.join(process, slots, time.monotonic(), "
            "self._membership.is_suspect(process))\n",
            "        self._queue.join(process, slots, time.monotonic())\n",
            "A job with several poison rows in one engine is given up, though the engine works.",
            "model/test_search.py::test_an_engine_that_works_is_not_given_up",
        ),
    },
    "job/replica/membership.py": {
        "silence-by-the-clock": (
            "min(now - self._looked, _LONGEST_PAUSE)",
            "now - self._looked",
            "After a pause of the whole cluster all replicas count as lost, and their rows are paid "
            "for again.",
            f"{_LOST}::test_a_silent_replica_that_lives_still_has_no_say",
        ),
        "silence-never-ends": (
            "if self._living[process].silence > SILENT]",
            "if self._living[process].silence > 1e9]",
            "The rows of a lost node wait until Ray starts its replica again, if ever.",
            f"{_LOST}::test_a_silent_replica_that_lives_still_has_no_say",
        ),
    },
    "job/scheduling/poison_search.py": {
        "single-row-forgets-its-deaths": (
            "        if len(group.rows) < 2:\n            return group\n",
            "        if len(group.rows) < 2:\n            return Group(group.rows)\n",
            "A row that makes the system kill the engine is never found.",
            f"{_TESTS}::test_one_row_is_found_within_the_bound",
        ),
        "silent-deaths-are-proof": (
            "        silent = 0 if engine_died else group.silent_deaths + 1\n",
            "        silent = 9\n",
            "A row that was alone in a killed engine is blamed.",
            _TESTS,
        ),
    },
})
