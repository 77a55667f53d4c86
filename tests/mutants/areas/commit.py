# SPDX-License-Identifier: Apache-2.0
"""Which job publishes what, and in which order: journal, fence, commit, copy, left-overs."""

from __future__ import annotations

from ..mutant import Mutant

_COMMIT = "job/output/commit.py"
_JOURNAL = "job/output/journal.py"
_LAYOUT = "contract/layout.py"
_FENCE = "job/output/fence.py"
_NEWEST = "job/output/manifest_copy.py"
_LEFTOVERS = "job/output/cleanup.py"
_PUBLISH = "job/output/publish.py"

MUTANTS = (
    Mutant(
        "copy-before-journal",
        _COMMIT,
        '    journal.commit(manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/"))\n',
        '    path = manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/")\n'
        '    journal.folder.write("manifest.json", journal.folder.read(path))\n'
        "    journal.commit(path)\n",
        "`manifest.json` names a dataset that is never published, or an older one than before.",
        ("model/test_model.py::test_every_single_crash",),
    ),
    Mutant(
        "copy-not-renewed",
        _COMMIT,
        "    renew_copy(journal.folder, journal)",
        "    pass",
        "`manifest.json` stays at the older dataset.",
        ("job/output/test_manifest_copy.py::test_a_commit_leaves_the_copy",),
    ),
    Mutant(
        "manifest-after-journal",
        _COMMIT,
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
        ("model/test_model.py::test_every_single_crash",),
    ),
    Mutant(
        "missing-rows-published",
        _COMMIT,
        "if rows + errors != expected_rows:",
        "if rows + errors > expected_rows:",
        "A dataset that lacks rows is published as complete.",
        ("job/output/test_publish.py::TestNothing::test_a_missing_row_publishes_nothing",),
    ),
    Mutant(
        "publishes-without-a-check",
        _COMMIT,
        "    journal.check()\n    name =",
        "    name =",
        "An overtaken driver writes the whole dataset once more before it is refused.",
        ("job/output/test_publish.py::TestNothing::test_a_claim_in_between_publishes_nothing",),
    ),
    Mutant(
        "commit-after-any-entry",
        _JOURNAL,
        'self._append("commit", self._mine, published)',
        'self._append("commit", self.last(), published)',
        "An older driver publishes after a newer one has claimed.",
        ("job/output/test_journal.py::TestZombie::test_commit_fails_once_another_submission_has_claimed",),
    ),
    Mutant(
        "entry-overwritten",
        _JOURNAL,
        "            self.folder.create(journal_entry",
        "            self.folder.write(journal_entry",
        "Two writers get the same place in the journal.",
        ("job/output/test_journal.py::TestZombie::test_commit_fails_once_another_submission_has_claimed",),
    ),
    Mutant(
        "claim-of-a-finished-run",
        _JOURNAL,
        """\
            if (done := self._own(last)) is not None:
                return done
""",
        "",
        "A run commits twice: all rows are paid for again where parts were lost.",
        ("job/output/test_journal.py::test_commit_during_preflight_is_not_done_again",),
    ),
    Mutant(
        "claim-without-owner",
        _JOURNAL,
        """\
                return done
            self._check_owner(history)
""",
        "                return done\n",
        "Two tasks, or an older run of the same task, take the destination from each other after preflight.",
        ("job/output/test_journal.py::TestOlderRun::test_stale_submission_claims_no_more",),
    ),
    Mutant(
        "owner-not-refused",
        _JOURNAL,
        "history[-1].owner != self.submission.task and not self._take_over",
        "history[-1].owner != self.submission.task and self._take_over",
        "Another task overwrites the dataset that readers of this one see.",
        ("job/output/test_journal.py::TestOwner::test_on_destination_owned_refuses_another_task_first",),
    ),
    Mutant(
        "claim-forgets-the-dataset",
        _JOURNAL,
        'self._append("claim", last, last.published if last else None)',
        'self._append("claim", last, None)',
        "From a claim until its commit, readers and the run's retry find no dataset.",
        ("job/output/test_journal.py::test_the_dataset_stays_published_while_a_new_run_claims",),
    ),
    Mutant(
        "any-run-matches",
        _JOURNAL,
        "if published is None or published.run_token != self.submission.run_token:",
        "if published is None:",
        "A cleared task returns its old dataset and runs nothing.",
        ("job/output/test_journal.py::test_second_submission_of_a_run_finds_its_dataset",),
    ),
    Mutant(
        "any-arguments-match",
        _JOURNAL,
        "if published.fingerprint != self._fingerprint:",
        "if not published.fingerprint:",
        "A retry with other arguments returns the dataset of the old ones.",
        ("job/output/test_journal.py::TestOtherArguments::test_dataset_is_not_the_runs_any_more",),
    ),
    Mutant(
        "reports-an-unsynced-commit",
        _JOURNAL,
        "            self.folder.sync(JOURNAL)",
        "            pass",
        "A dataset that was reported is gone after a power loss.",
        ("storage/test_durable.py::test_commit_reported_by_another_process_is_synced",),
    ),
    Mutant(
        "entries-by-spelling",
        _LAYOUT,
        '{number:08d}.json"',
        '{number}.json"',
        "From the tenth entry on, the ninth counts as the last: the destination can't be claimed any more.",
        ("job/output/test_journal.py::test_a_claim_then_its_commit",),
    ),
    Mutant(
        "claim-of-the-same-run",
        _JOURNAL,
        "if self._mine is None or last is None or last.number != self._mine.number:",
        "if self._mine is None or last is None or last.run_token != self.submission.run_token:",
        "A driver that its own retry has overtaken deletes what the retry publishes.",
        ("job/output/test_journal.py::TestZombie::test_commit_fails_once_another_submission_has_claimed",),
    ),
    Mutant(
        "entries-alike",
        _JOURNAL,
        "            nonce=uuid.uuid4().hex,\n",
        "",
        "In S3, two processes of one submission id both believe that they made the entry.",
        ("job/output/test_journal.py::test_two_processes_of_one_submission_id_are_two",),
    ),
    Mutant(
        "clear-judged-by-the-last-entry",
        _JOURNAL,
        "for entry in self.history())",
        "for entry in self.history()[-1:])",
        "The retry of a cleared run reuses answers that the user wanted to regenerate.",
        ("job/output/test_journal.py::test_a_cleared_run_stays_one_after_it_has_claimed",),
    ),
    Mutant(
        "run-began-at-its-last-entry",
        _JOURNAL,
        "return min(datetime",
        "return max(datetime",
        "A retry has another date in its prompts than the first attempt, so all rows have other keys.",
        ("job/preflight/test_ready.py::test_the_date_of_a_run_is_that_of_its_first_claim",),
    ),
    Mutant(
        "older-run-claims",
        _FENCE,
        " or run_number(token) < max(runs)",
        "",
        "A cleared run that had not claimed takes the destination from its successor.",
        ("job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",),
    ),
    Mutant(
        "same-number-same-run",
        _FENCE,
        "runs.get(run_number(token)) != token or ",
        "",
        "A run of a deleted DAG run, or of an older version, claims after its successor.",
        ("job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",),
    ),
    Mutant(
        "runs-of-a-deleted-dag-run-stay",
        _FENCE,
        "            runs.clear()",
        "            pass",
        "A DAG run that was deleted and made again can't publish.",
        ("job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",),
    ),
    Mutant(
        "copy-read-too-late",
        _NEWEST,
        """\
            old = None if folder.head(NEWEST_MANIFEST) is None else folder.read(NEWEST_MANIFEST)
            last = journal.last()
""",
        """\
            last = journal.last()
            old = None if folder.head(NEWEST_MANIFEST) is None else folder.read(NEWEST_MANIFEST)
""",
        "A writer that is frozen between the two puts an older `manifest.json` back.",
        ("model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",),
    ),
    Mutant(
        "copy-overwritten",
        _NEWEST,
        "folder.replace(NEWEST_MANIFEST, old, new)",
        "folder.write(NEWEST_MANIFEST, new)",
        "A writer that is frozen before it puts an older `manifest.json` back.",
        ("model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",),
    ),
    Mutant(
        "copy-of-the-own-run",
        _NEWEST,
        "last = journal.last()",
        "last = journal._mine or journal.last()",
        "The copy goes back to the dataset of an overtaken run.",
        ("model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",),
    ),
    Mutant(
        "equal-copy-not-synced",
        _NEWEST,
        "                folder.sync()\n",
        "",
        "The copy goes back after a power loss, though the run was reported.",
        ("storage/test_durable.py::test_a_copy_whose_writer_died_before_its_sync",),
    ),
    Mutant(
        "left-overs-listed-after-history",
        _LEFTOVERS,
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
        ("model/test_model.py::test_every_preemption_of_a_zombie_by_its_successor",),
    ),
    Mutant(
        "left-overs-without-a-check",
        _LEFTOVERS,
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
    Mutant(
        "left-overs-beside-a-claim",
        _LEFTOVERS,
        'if not history or history[-1].kind != "commit":',
        "if not history:",
        "The files that another driver is about to publish are deleted.",
        ("job/output/test_cleanup.py::TestDecision::test_in_doubt_everything_stays",),
    ),
    Mutant(
        "left-overs-of-the-last-commit",
        _LEFTOVERS,
        "for entry in history if entry.published}",
        "for entry in history[-1:] if entry.published}",
        "Older datasets are deleted while they are read.",
        ("job/output/test_cleanup.py::TestDecision::test_what_any_entry_published_stays",),
    ),
    Mutant(
        "left-overs-before-the-journal",
        _LEFTOVERS,
        " and name not in published and name >= began",
        " and name not in published",
        "After the journal was deleted, all older datasets are deleted, too.",
        ("job/output/test_cleanup.py::TestDecision::test_what_is_older_than_the_journal_stays",),
    ),
    Mutant(
        "left-overs-with-a-gap",
        _LEFTOVERS,
        "if [entry.number for entry in history] != list(range(1, len(history) + 1)):",
        "if not history[0].number:",
        "Datasets whose journal entries were lost are deleted.",
        ("job/output/test_cleanup.py::TestDecision::test_in_doubt_everything_stays",),
    ),
    Mutant(
        "failed-before-good",
        _PUBLISH,
        '("ok", "descending")',
        '("ok", "ascending")',
        "A row that failed once and then succeeded is published as failed.",
        ("job/output/test_publish.py::TestDoubles::test_any_ledger_gives_each_row_once_in_order",),
    ),
    Mutant(
        "rows-twice",
        _PUBLISH,
        "order[first_of_each]",
        "order",
        "A row that two submissions answered is in the dataset twice.",
        ("job/output/test_publish.py::TestDoubles::test_any_ledger_gives_each_row_once_in_order",),
    ),
    Mutant(
        "range-lacks-a-part",
        _PUBLISH,
        "if part.inside(first, stop))",
        "if part.inside(first + 1, stop))",
        "A part that ends where a range begins is left out.",
        ("job/output/test_publish.py::TestFiles::test_ranges_cover_the_input",),
    ),
)
