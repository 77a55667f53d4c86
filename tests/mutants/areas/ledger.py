# SPDX-License-Identifier: Apache-2.0
"""Finished rows and missing rows."""

from __future__ import annotations

from ..mutant import by_file

MUTANTS = by_file({
    "job/parts/ledger.py": {
        "part-with-failures-counts-whole": (
            "        if part.is_solid:\n",
            "        if part.ok:\n",
            "Rows that failed, or that no part has, are never asked: the commit lacks them.",
            "job/test_remaining.py::TestLookBack::test_only_good_rows_of_all_submissions_are_done",
        ),
        "failed-rows-are-done": (
            "good[ordinals[inside & ok]] = True",
            "good[ordinals[inside]] = True",
            "A row that failed once is not asked again.",
            "job/test_remaining.py::TestLookBack::test_only_good_rows_of_all_submissions_are_done",
        ),
        "good-rows-keep-their-failures": (
            "    failures[good] = 0\n",
            "",
            "A row that succeeded in the end counts as failed, and the job as failing.",
            "job/test_remaining.py::TestLookBack::test_a_row_that_fails_each_time_is_given_up",
        ),
        "given-up-one-try-late": (
            "self.failures >= attempts",
            "self.failures > attempts",
            "A row that can't succeed is paid for once more than `max_row_attempts`.",
            "job/test_remaining.py::TestLookBack::test_a_row_that_fails_each_time_is_given_up",
        ),
        "parts-of-another-config": (
            'own = [file for file in files if file.path.startswith(f"{run_folder}/")]',
            "own = files",
            "Answers to another prompt or input are published under this one.",
            "job/reuse/test_reuse.py::TestRegenerate::test_retry_over_a_changed_input_keeps_paid_responses",
        ),
    },
    "contract/layout.py": {
        "drivers-share-a-folder": (
            'return f"{run}/{submission_id}~{uuid.uuid4().hex[:8]}"',
            'return f"{run}/{submission_id}~0"',
            "After a head restart, two drivers of one submission id write over each other's parts.",
            "job/reuse/test_reuse.py::TestFromNightToNight::test_driver_with_a_reused_id_stores_its_rows_too",
        ),
        "folder-without-the-config": (
            'return f"{task_folder(submission)}/{question[:16]}-{listing_digest[:16]}"',
            'return f"{task_folder(submission)}/{listing_digest[:16]}"',
            "Answers to another prompt are published under this one.",
            "job/output/test_publish.py::TestLedger::test_run_folder_depends_on_task_config_and_input_only",
        ),
        "folder-without-the-listing": (
            'return f"{task_folder(submission)}/{question[:16]}-{listing_digest[:16]}"',
            'return f"{task_folder(submission)}/{question[:16]}-"',
            "Answers are published beside rows of a changed input that never asked for them.",
            "job/output/test_publish.py::TestLedger::test_run_folder_depends_on_task_config_and_input_only",
        ),
    },
    "job/parts/part.py": {
        "part-says-all-good": (
            'path = f"{stem}.{len(content)}.{ranges}.{rows}.{ok}.parquet"',
            'path = f"{stem}.{len(content)}.{ranges}.{rows}.{rows}.parquet"',
            "Rows that failed are never asked again.",
            "job/test_remaining.py::TestLookBack::test_only_good_rows_of_all_submissions_are_done",
        ),
        "part-with-a-gap-is-solid": (
            "return self.ok == self.rows == sum(last - first + 1 for first, last in self.runs)",
            "return self.ok == self.rows",
            "Rows that a drained chunk left out are never asked: the commit lacks them.",
            "job/parts/test_runs.py::test_runs_are_cut_at_the_largest_gaps",
        ),
        "tokens-of-failed-rows-are-free": (
            "for outcome in some)\n",
            "for outcome in some if isinstance(outcome.result, Response))\n",
            "Failed rows exceed `max_tokens_total`.",
            "job/replica/test_replica.py::test_what_should_be_json_is_checked",
        ),
    },
    "job/reuse/earlier_parts.py": {
        "another-rows-answer": (
            "        return places[right], rows_there[right]\n",
            "        return places, rows_there\n",
            "A row gets the answer of a request that is not its own.",
            "job/reuse/test_reuse.py::test_nondeterministic_function_is_reported",
        ),
        "failures-shared-as-answers": (
            'pc.equal(table["ok"], not self._failures)',
            'pc.or_(table["ok"], True)',
            "Equal rows share a failure although one of them has an answer.",
            "job/reuse/test_response_store.py::test_the_ledger_gives_its_answers_or_its_failures",
        ),
    },
    "job/work.py": {
        "finished-rows-asked-again": (
            "WorkItem(chunk, _runs(done), ",
            "WorkItem(chunk, (), ",
            "A resume pays for whole chunks in which one row is missing.",
            "job/test_remaining.py::test_work_is_exactly_what_is_not_done",
        ),
        "touched-chunks-count-as-done": (
            "        if not done.all():\n",
            "        if not done.any():\n",
            "Rows of a chunk that was begun are never asked: the commit lacks them.",
            "job/test_remaining.py::test_work_is_exactly_what_is_not_done",
        ),
        "repetitions-of-the-next-chunk": (
            ".among(ordinals))",
            ".among(ordinals - chunk.ordinal))",
            "Equal sampled rows have other keys after a resume, and are paid for again.",
            "job/test_remaining.py::test_repetitions_travel_with_their_chunk",
        ),
        "skips-one-row-too-many": (
            "starts = [0, *(stop for _, stop in self.skip)]",
            "starts = [0, *(stop + 1 for _, stop in self.skip)]",
            "The row after a finished run is never asked: the commit lacks it.",
            "job/test_remaining.py::test_work_is_exactly_what_is_not_done",
        ),
    },
})
