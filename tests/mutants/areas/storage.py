# SPDX-License-Identifier: Apache-2.0
"""Whole files, names that survive a power loss, and repeated calls."""

from __future__ import annotations

from ..mutant import by_file

MUTANTS = by_file({
    "storage/durable.py": {
        "folder-not-synced": (
            "        os.fsync(number)\n",
            "        pass\n",
            "After a power loss a reported commit is gone.",
            "storage/test_durable.py::test_each_way_of_writing",
        ),
        "failed-folder-sync-is-ignored": (
            "        if error.errno not in _NO_SUCH_CALL:\n            raise\n",
            "        pass\n",
            "A dataset is reported though the disk has failed to keep it.",
            "storage/test_durable.py::test_a_file_system_without_folder_syncs",
        ),
        "new-folders-not-synced": (
            "        sync_folder(one.parent)\n",
            "",
            "After a power loss a folder is gone with all that is in it.",
            "storage/test_durable.py::test_each_way_of_writing",
        ),
        "folders-of-others-not-synced": (
            "        path.mkdir(parents=True, exist_ok=True)\n",
            "        if path.exists():\n            return\n"
            "        path.mkdir(parents=True, exist_ok=True)\n",
            "A folder that a killed process made is gone after a power loss.",
            "storage/test_durable.py::test_folders_that_a_dead_process_made",
        ),
        "removed-folders-count-as-synced": (
            "    _NAMED.difference_update([one for one in tuple(_NAMED) if path in (one, *one.parents)])\n",
            "",
            "A folder that was removed and made again is gone after a power loss.",
            "storage/test_durable.py::test_folders_that_were_removed_and_made_again",
        ),
    },
    "storage/folder.py": {
        "file-not-synced": (
            "            os.fsync(file.fileno())\n",
            "",
            "After a power loss a file is there and empty.",
            "storage/test_durable.py::test_each_way_of_writing",
        ),
        "written-name-not-synced": (
            "                self._name(scratch, target, exclusive)\n"
            "                durable.sync_folder(target.parent)\n",
            "                self._name(scratch, target, exclusive)\n",
            "After a power loss a part or a journal entry is gone.",
            "storage/test_durable.py::test_each_way_of_writing",
        ),
        "replaced-name-not-synced": (
            "                scratch.replace(target)\n                durable.sync_folder(target.parent)\n",
            "                scratch.replace(target)\n",
            "After a power loss the copy of the manifest is the older one.",
            "storage/test_durable.py::test_each_way_of_writing",
        ),
        "written-in-place": (
            "                self._fill(scratch, content)\n                self._name(",
            "                self._fill(target if not exclusive else scratch, content)\n"
            "                scratch.touch()\n"
            "                exclusive and self._name(",
            "A reader sees half a file, and a killed writer leaves one.",
            "storage/test_full_disk.py::test_write_that_does_not_fit_leaves_nothing",
        ),
        "creates-over-another": (
            "            os.link(scratch, target)\n",
            "            scratch.replace(target)\n",
            "Two drivers on a disk both commit.",
            "storage/test_folder.py::TestEveryFolder::test_creating_what_exists_is_refused_and_changes_nothing",
        ),
        "own-link-counts-as-taken": (
            "if scratch.stat().st_nlink != 2:",
            "if scratch.stat().st_nlink:",
            "On NFS a job takes its own journal entry for another's, and discards its rows.",
            "storage/test_folder.py::TestLocal::test_a_link_whose_answer_was_lost_is_ours",
        ),
        "taken-link-counts-as-own": (
            "if scratch.stat().st_nlink != 2:",
            "if not scratch.stat().st_nlink:",
            "Two drivers on a disk both commit.",
            "storage/test_folder.py::TestEveryFolder::test_creating_what_exists_is_refused_and_changes_nothing",
        ),
        "rivals-stay": (
            "                        one.unlink(missing_ok=True)\n",
            "                        pass\n",
            "Of two writers at once, the older one puts the copy back.",
            "job/output/test_manifest_copy.py::TestReplace::test_of_two_on_a_disk_at_most_one_succeeds",
        ),
        "compared-before-rivals-go": (
            """\
                for one in target.parent.iterdir():
                    if one.name.startswith(rivals) and one != scratch:
                        one.unlink(missing_ok=True)
                if target.read_bytes() != old:
                    raise TakenError(f"destination: {target} has changed.")
""",
            """\
                if target.read_bytes() != old:
                    raise TakenError(f"destination: {target} has changed.")
                for one in target.parent.iterdir():
                    if one.name.startswith(rivals) and one != scratch:
                        one.unlink(missing_ok=True)
""",
            "Of two writers at once, the older one puts the copy back.",
            "job/output/test_manifest_copy.py::TestReplace::test_of_two_on_a_disk_at_most_one_succeeds",
        ),
        "scratch-files-listed": (
            "                if not path.name.startswith(SCRATCH):\n                    found",
            "                if path.name:\n                    found",
            "Half a part of a killed writer counts.",
            "storage/test_folder.py::TestLocal::test_unfinished_writes_and_dangling_links_are_not_listed",
        ),
        "no-scratch-file-is-old": (
            "path.stat().st_mtime < latest",
            "path.stat().st_mtime > latest",
            "Scratch files of running writers are deleted.",
            "job/output/test_cleanup.py::test_old_scratch_files_go_and_new_ones_stay",
        ),
    },
    "storage/s3_folder.py": {
        "put-without-if-none-match": (
            'mode="create", use_multipart=False',
            'mode="overwrite", use_multipart=False',
            "Two drivers in S3 both commit.",
            "storage/test_folder.py::TestEveryFolder::test_creating_what_exists_is_refused_and_changes_nothing",
        ),
        "taken-key-counts-as-own": (
            "if there != content:",
            "if not there:",
            "Two drivers in S3 both commit.",
            "storage/test_folder.py::TestEveryFolder::test_creating_what_exists_is_refused_and_changes_nothing",
        ),
        "own-key-counts-as-taken": (
            "if there != content:",
            "if there:",
            "A job discards its rows after S3 has lost an answer.",
            "storage/test_faults.py::test_every_operation_survives_every_fault",
        ),
        "conflict-counts-as-taken": (
            'raise ConflictError("another creation was under way") from error',
            'raise TakenError("another creation was under way") from error',
            "After an S3 409 without a winner, a job discards its rows.",
            "storage/test_faults.py::TestCreate::test_conflict_without_a_winner_is_retried",
        ),
        "put-without-if-match": (
            'mode={"e_tag": found.meta["e_tag"]}',
            'mode="overwrite"',
            "A frozen writer in S3 puts the copy back.",
            "job/output/test_manifest_copy.py::test_newer_writer_in_s3_before_each_call",
        ),
        "own-replacement-counts-as-change": (
            "            if there == new:\n                return  # by a call whose answer was lost\n",
            "",
            "If S3's answer about the copy is lost, a published commit is reported as failed.",
            "job/output/test_manifest_copy.py::TestReplace::test_one_whose_answer_was_lost_counts",
        ),
        "missing-keys-are-a-matter-of-rights": (
            '            if _is_listed(store, key, self._uri(key.rpartition("/")[0])):\n'
            "                raise\n",
            "            raise\n",
            "A role that is limited to a prefix can't run a job.",
            "job/test_limited_stores.py::test_a_missing_file_is_not_a_matter_of_rights",
        ),
        "hidden-files-are-missing": (
            '            if _is_listed(store, key, self._uri(key.rpartition("/")[0])):\n'
            "                raise\n",
            "",
            "A file that may not be read counts as missing.",
            "job/test_limited_stores.py::test_a_missing_file_is_not_a_matter_of_rights",
        ),
    },
    "storage/retry.py": {
        "never-retried": (
            "            if tried + pause > RETRY_LIMITS.whole:",
            "            if tried + pause:",
            "One lost answer of S3 ends the job.",
            "storage/test_faults.py::test_every_operation_survives_every_fault",
        ),
        "retried-for-ever": (
            "            if tried + pause > RETRY_LIMITS.whole:",
            "            if tried + pause < 0:",
            "A job on a store that is gone never ends.",
            "storage/test_faults.py::test_a_store_that_is_down_is_one_sentence",
        ),
        "refusal-is-tried-again": (
            "        except RaybatchError:\n            raise\n",
            "",
            "A taken journal entry ends the job, although the next one is free.",
            "storage/test_folder.py::TestEveryFolder::test_creating_what_exists_is_refused_and_changes_nothing",
        ),
    },
    "storage/errors.py": {
        "conflicts-are-not-retried": (
            "(exceptions.GenericError, exceptions.AlreadyExistsError, ConflictError)",
            "(exceptions.GenericError, exceptions.AlreadyExistsError)",
            "After an S3 409 without a winner, a job discards its rows.",
            "storage/test_faults.py::TestCreate::test_conflict_without_a_winner_is_retried",
        ),
        "s3s-request-for-a-retry": (
            "    if _code(text) in _PASSING:\n        return True\n",
            "",
            "A request that S3 asks to repeat ends the job.",
            "storage/test_faults.py::TestCreate::test_object_created_by_another_is_not_ours",
        ),
    },
    "storage/conditional.py": {
        "ignored-conditions-are-not-seen": (
            "    if not kept:\n",
            "    if False:\n",
            "Where a store ignores If-None-Match, two jobs publish at once.",
            "storage/test_conditional.py::test_a_store_without_a_condition_is_refused",
        ),
        "probe-stays-after-a-refusal": (
            "        with contextlib.suppress(StorageError):\n            place.delete([path])\n",
            "",
            "A file stays in a destination that was refused.",
            "storage/test_conditional.py::test_a_probe_that_fails_later_leaves_nothing",
        ),
    },
})
