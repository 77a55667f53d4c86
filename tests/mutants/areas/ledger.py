# SPDX-License-Identifier: Apache-2.0
"""Finished rows and missing rows."""

from __future__ import annotations

from ..mutant import Mutant

_LEDGER = "job/parts/ledger.py"
_LAYOUT = "contract/layout.py"
_PARTS = "job/parts/part.py"
_RESPONSES = "job/reuse/earlier_parts.py"
_RESUME = "job/work.py"
_WORK = "job/work.py"

MUTANTS = (
    Mutant(
        "part-with-failures-counts-whole",
        _LEDGER,
        "        if part.is_solid:\n",
        "        if part.ok:\n",
        "Rows that failed, or that no part has, are never asked: the commit lacks them.",
        ("job/test_remaining.py::TestLookBack::test_only_good_rows_of_all_submissions_are_done",),
    ),
    Mutant(
        "failed-rows-are-done",
        _LEDGER,
        "good[ordinals[inside & ok]] = True",
        "good[ordinals[inside]] = True",
        "A row that failed once is not asked again.",
        ("job/test_remaining.py::TestLookBack::test_only_good_rows_of_all_submissions_are_done",),
    ),
    Mutant(
        "good-rows-keep-their-failures",
        _LEDGER,
        "    failures[good] = 0\n",
        "",
        "A row that succeeded in the end counts as failed, and the job as failing.",
        ("job/test_remaining.py::TestLookBack::test_a_row_that_fails_each_time_is_given_up",),
    ),
    Mutant(
        "given-up-one-try-late",
        _LEDGER,
        "self.failures >= attempts",
        "self.failures > attempts",
        "A row that can't succeed is paid for once more than `max_row_attempts`.",
        ("job/test_remaining.py::TestLookBack::test_a_row_that_fails_each_time_is_given_up",),
    ),
    Mutant(
        "parts-of-another-config",
        _LEDGER,
        'own = [file for file in files if file.path.startswith(f"{run_folder}/")]',
        "own = files",
        "Answers to another prompt or input are published under this one.",
        ("job/reuse/test_reuse.py::TestRegenerate::test_retry_over_a_changed_input_keeps_paid_responses",),
    ),
    Mutant(
        "drivers-share-a-folder",
        _LAYOUT,
        'return f"{run}/{submission_id}~{uuid.uuid4().hex[:8]}"',
        'return f"{run}/{submission_id}~0"',
        "After a head restart, two drivers of one submission id write over each other's parts.",
        ("job/reuse/test_reuse.py::TestFromNightToNight::test_driver_with_a_reused_id_stores_its_rows_too",),
    ),
    Mutant(
        "folder-without-the-config",
        _LAYOUT,
        'return f"{task_folder(submission)}/{question[:16]}-{listing_digest[:16]}"',
        'return f"{task_folder(submission)}/{listing_digest[:16]}"',
        "Answers to another prompt are published under this one.",
        ("job/output/test_publish.py::TestLedger::test_run_folder_depends_on_task_config_and_input_only",),
    ),
    Mutant(
        "folder-without-the-listing",
        _LAYOUT,
        'return f"{task_folder(submission)}/{question[:16]}-{listing_digest[:16]}"',
        'return f"{task_folder(submission)}/{question[:16]}-"',
        "Answers are published beside rows of a changed input that never asked for them.",
        ("job/output/test_publish.py::TestLedger::test_run_folder_depends_on_task_config_and_input_only",),
    ),
    Mutant(
        "part-says-all-good",
        _PARTS,
        'path = f"{stem}.{len(content)}.{ranges}.{rows}.{ok}.parquet"',
        'path = f"{stem}.{len(content)}.{ranges}.{rows}.{rows}.parquet"',
        "Rows that failed are never asked again.",
        ("job/test_remaining.py::TestLookBack::test_only_good_rows_of_all_submissions_are_done",),
    ),
    Mutant(
        "part-with-a-gap-is-solid",
        _PARTS,
        "return self.ok == self.rows == sum(last - first + 1 for first, last in self.runs)",
        "return self.ok == self.rows",
        "Rows that a drained chunk left out are never asked: the commit lacks them.",
        ("job/parts/test_runs.py::test_runs_are_cut_at_the_largest_gaps",),
    ),
    Mutant(
        "tokens-of-failed-rows-are-free",
        _PARTS,
        "for outcome in some)\n",
        "for outcome in some if isinstance(outcome.result, Response))\n",
        "Failed rows exceed `max_tokens_total`.",
        ("job/replica/test_replica.py::test_what_should_be_json_is_checked",),
    ),
    Mutant(
        "another-rows-answer",
        _RESPONSES,
        "        return places[right], rows_there[right]\n",
        "        return places, rows_there\n",
        "A row gets the answer of a request that is not its own.",
        ("job/reuse/test_reuse.py::test_nondeterministic_function_is_reported",),
    ),
    Mutant(
        "failures-shared-as-answers",
        _RESPONSES,
        'pc.equal(table["ok"], not self._failures)',
        'pc.or_(table["ok"], True)',
        "Equal rows share a failure although one of them has an answer.",
        ("job/reuse/test_response_store.py::test_the_ledger_gives_its_answers_or_its_failures",),
    ),
    Mutant(
        "finished-rows-asked-again",
        _RESUME,
        "WorkItem(chunk, _runs(done), ",
        "WorkItem(chunk, (), ",
        "A resume pays for whole chunks in which one row is missing.",
        ("job/test_remaining.py::test_work_is_exactly_what_is_not_done",),
    ),
    Mutant(
        "touched-chunks-count-as-done",
        _RESUME,
        "        if not done.all():\n",
        "        if not done.any():\n",
        "Rows of a chunk that was begun are never asked: the commit lacks them.",
        ("job/test_remaining.py::test_work_is_exactly_what_is_not_done",),
    ),
    Mutant(
        "repetitions-of-the-next-chunk",
        _RESUME,
        ".among(ordinals))",
        ".among(ordinals - chunk.ordinal))",
        "Equal sampled rows have other keys after a resume, and are paid for again.",
        ("job/test_remaining.py::test_repetitions_travel_with_their_chunk",),
    ),
    Mutant(
        "skips-one-row-too-many",
        _WORK,
        "starts = [0, *(stop for _, stop in self.skip)]",
        "starts = [0, *(stop + 1 for _, stop in self.skip)]",
        "The row after a finished run is never asked: the commit lacks it.",
        ("job/test_remaining.py::test_work_is_exactly_what_is_not_done",),
    ),
)
