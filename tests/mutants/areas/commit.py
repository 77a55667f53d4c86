# SPDX-License-Identifier: Apache-2.0
"""Which job publishes what, and in which order: journal, fence, commit, copy, left-overs."""

from __future__ import annotations

from ..mutant import Mutant, by_file

MUTANTS = (
    *by_file({
        "job/output/commit.py": {
            "copy-before-journal": (
                '    journal.commit(manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/"))\n',
                '    path = manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/")\n'
                '    journal.folder.write("manifest.json", journal.folder.read(path))\n'
                "    journal.commit(path)\n",
                "`manifest.json` names a dataset that is never published, or an older one than before.",
                "model/test_model.py::test_every_single_crash",
            ),
            "copy-not-renewed": (
                "    renew_copy(journal.folder, journal)",
                "    pass",
                "`manifest.json` stays at the older dataset.",
                "job/output/test_manifest_copy.py::test_a_commit_leaves_the_copy",
            ),
            "manifest-after-journal": (
                """\
    folder.write(layout.manifest_file(name), manifest.model_dump_json(by_alias=True, indent=1).encode())
    return manifest


def commit(journal: Journal, manifest: BatchManifest) -> None:
    \"\"\"Publish what :func:`prepare` wrote, by a few small requests.

    :raises SupersededError: another submission claimed the destination; nothing was published.
    \"\"\"
    journal.commit(manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/"))
""",
                """\
    return manifest


def commit(journal: Journal, manifest: BatchManifest) -> None:
    path = manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/")
    journal.commit(path)
    journal.folder.write(path, manifest.model_dump_json(by_alias=True, indent=1).encode())
""",
                "A writer that dies in between leaves a published dataset without its manifest, for good.",
                "model/test_model.py::test_every_single_crash",
            ),
            "missing-rows-published": (
                "if rows + errors != expected_rows:",
                "if rows + errors > expected_rows:",
                "A dataset that lacks rows is published as complete.",
                "job/output/test_publish.py::TestNothing::test_a_missing_row_publishes_nothing",
            ),
            "publishes-without-a-check": (
                "    journal.check()\n    name =",
                "    name =",
                "An overtaken driver writes the whole dataset once more before it is refused.",
                "job/output/test_publish.py::TestNothing::test_a_claim_in_between_publishes_nothing",
            ),
        },
        "job/output/journal.py": {
            "commit-after-any-entry": (
                'self._append("commit", self._mine, published)',
                'self._append("commit", self.last(), published)',
                "An older driver publishes after a newer one has claimed.",
                "job/output/test_journal.py::TestZombie::test_commit_fails_once_another_submission_has_claimed",
            ),
            "entry-overwritten": (
                "            self.folder.create(journal_entry",
                "            self.folder.write(journal_entry",
                "Two writers get the same place in the journal.",
                "job/output/test_journal.py::TestZombie::test_commit_fails_once_another_submission_has_claimed",
            ),
            "claim-of-a-finished-run": (
                """\
            if (done := self._own(last)) is not None:
                return done
""",
                "",
                "A run commits twice: all rows are paid for again where parts were lost.",
                "job/output/test_journal.py::test_commit_during_preflight_is_not_done_again",
            ),
            "claim-without-owner": (
                """\
                return done
            self._check_owner(history)
""",
                "                return done\n",
                "Two tasks, or an older run of the same task, take the destination from each other after "
                "preflight.",
                "job/output/test_journal.py::TestOlderRun::test_stale_submission_claims_no_more",
            ),
            "owner-not-refused": (
                "history[-1].owner != self.submission.task and not self._take_over",
                "history[-1].owner != self.submission.task and self._take_over",
                "Another task overwrites the dataset that readers of this one see.",
                "job/output/test_journal.py::TestOwner::test_on_destination_owned_refuses_another_task_first",
            ),
            "claim-forgets-the-dataset": (
                'self._append("claim", last, last.published if last else None)',
                'self._append("claim", last, None)',
                "From a claim until its commit, readers and the run's retry find no dataset.",
                "job/output/test_journal.py::test_the_dataset_stays_published_while_a_new_run_claims",
            ),
            "any-run-matches": (
                "if published is None or published.run_token != self.submission.run_token:",
                "if published is None:",
                "A cleared task returns its old dataset and runs nothing.",
                "job/output/test_journal.py::test_second_submission_of_a_run_finds_its_dataset",
            ),
            "any-arguments-match": (
                "if published.fingerprint != self._fingerprint:",
                "if not published.fingerprint:",
                "A retry with other arguments returns the dataset of the old ones.",
                "job/output/test_journal.py::TestOtherArguments::test_dataset_is_not_the_runs_any_more",
            ),
            "reports-an-unsynced-commit": (
                "            self.folder.sync(JOURNAL)",
                "            pass",
                "A dataset that was reported is gone after a power loss.",
                "storage/test_durable.py::test_commit_reported_by_another_process_is_synced",
            ),
            "claim-of-the-same-run": (
                "if self._mine is None or last is None or last.number != self._mine.number:",
                "if self._mine is None or last is None or last.run_token != self.submission.run_token:",
                "A driver that its own retry has overtaken deletes what the retry publishes.",
                "job/output/test_journal.py::TestZombie::test_commit_fails_once_another_submission_has_claimed",
            ),
            "entries-alike": (
                "            nonce=uuid.uuid4().hex,\n",
                "",
                "In S3, two processes of one submission id both believe that they made the entry.",
                "job/output/test_journal.py::test_two_processes_of_one_submission_id_are_two",
            ),
            "clear-judged-by-the-last-entry": (
                "for entry in self.history())",
                "for entry in self.history()[-1:])",
                "The retry of a cleared run reuses answers that the user wanted to regenerate.",
                "job/output/test_journal.py::test_a_cleared_run_stays_one_after_it_has_claimed",
            ),
            "run-began-at-its-last-entry": (
                "return min(datetime",
                "return max(datetime",
                "A retry has another date in its prompts than the first attempt, so all rows have other "
                "keys.",
                "job/preflight/test_ready.py::test_the_date_of_a_run_is_that_of_its_first_claim",
            ),
        },
        "contract/layout.py": {
            "entries-by-spelling": (
                '{JOURNAL}/{number:08d}.json"',
                '{JOURNAL}/{number}.json"',
                "From the tenth entry on, the ninth counts as the last: the destination can't be claimed "
                "any more.",
                "job/output/test_journal.py::test_a_claim_then_its_commit",
            ),
        },
        "job/output/fence.py": {
            "older-run-claims": (
                " or run_number(token) < max(runs)",
                "",
                "A cleared run that had not claimed takes the destination from its successor.",
                "job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",
            ),
            "same-number-same-run": (
                "runs.get(run_number(token)) != token or ",
                "",
                "A run of a deleted DAG run, or of an older version, claims after its successor.",
                "job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",
            ),
            "runs-of-a-deleted-dag-run-stay": (
                "            runs.clear()",
                "            pass",
                "A DAG run that was deleted and made again can't publish.",
                "job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",
            ),
        },
        "job/output/manifest_copy.py": {
            "copy-read-too-late": (
                """\
            old = None if folder.head(copy) is None else folder.read(copy)
            last = journal.last()
""",
                """\
            last = journal.last()
            old = None if folder.head(copy) is None else folder.read(copy)
""",
                "A writer that is frozen between the two puts an older `manifest.json` back.",
                "model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",
            ),
            "copy-overwritten": (
                "folder.replace(copy, old, new)",
                "folder.write(copy, new)",
                "A writer that is frozen before it puts an older `manifest.json` back.",
                "model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",
            ),
            "copy-of-the-own-run": (
                "last = journal.last()",
                "last = journal._mine or journal.last()",
                "The copy goes back to the dataset of an overtaken run.",
                "model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",
            ),
            "equal-copy-not-synced": (
                "                folder.sync()\n",
                "",
                "The copy goes back after a power loss, though the run was reported.",
                "storage/test_durable.py::test_a_copy_whose_writer_died_before_its_sync",
            ),
        },
        "job/output/cleanup.py": {
            "left-overs-listed-after-history": (
                """\
        files = [entry.path for kind in OF_COMMITS for entry in folder.list(kind)]
        journal.check()
        dead = unpublished(files, journal.history())
""",
                """\
        journal.check()
        history = journal.history()
        files = [entry.path for kind in OF_COMMITS for entry in folder.list(kind)]
        dead = unpublished(files, history)
""",
                "The dataset that a newer run publishes meanwhile is deleted.",
                "model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",
            ),
            "left-overs-beside-a-claim": (
                'if not history or history[-1].kind != "commit":',
                "if not history:",
                "The files that another driver is about to publish are deleted.",
                "job/output/test_cleanup.py::TestDecision::test_in_doubt_everything_stays",
            ),
            "left-overs-of-the-last-commit": (
                "for entry in history if entry.published}",
                "for entry in history[-1:] if entry.published}",
                "Older datasets are deleted while they are read.",
                "job/output/test_cleanup.py::TestDecision::test_what_any_entry_published_stays",
            ),
            "left-overs-before-the-journal": (
                " and name not in published and name >= began",
                " and name not in published",
                "After the journal was deleted, all older datasets are deleted, too.",
                "job/output/test_cleanup.py::TestDecision::test_what_is_older_than_the_journal_stays",
            ),
            "left-overs-with-a-gap": (
                "if [entry.number for entry in history] != list(range(1, len(history) + 1)):",
                "if not history[0].number:",
                "Datasets whose journal entries were lost are deleted.",
                "job/output/test_cleanup.py::TestDecision::test_in_doubt_everything_stays",
            ),
        },
        "job/output/publish.py": {
            "failed-before-good": (
                '("ok", "descending")',
                '("ok", "ascending")',
                "A row that failed once and then succeeded is published as failed.",
                "job/output/test_publish.py::TestDoubles::test_any_ledger_gives_each_row_once_in_order",
            ),
            "rows-twice": (
                "order[first_of_each]",
                "order",
                "A row that two submissions answered is in the dataset twice.",
                "job/output/test_publish.py::TestDoubles::test_any_ledger_gives_each_row_once_in_order",
            ),
            "range-lacks-a-part": (
                "if part.inside(first, stop))",
                "if part.inside(first + 1, stop))",
                "A part that ends where a range begins is left out.",
                "job/output/test_publish.py::TestFiles::test_ranges_cover_the_input",
            ),
        },
    }),
    Mutant(
        "left-overs-without-a-check",
        "job/output/cleanup.py",
        "        journal.check()\n",
        "",
        "An overtaken driver collects, too.",
        (
            "job/output/test_cleanup.py",
            "model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",
        ),
        equivalent=(
            "Files are listed before the history is read, so each writer had claimed by then. If the last "
            "entry is a commit, that writer's own commit is in the history, or its place is taken."
        ),
    ),
)
