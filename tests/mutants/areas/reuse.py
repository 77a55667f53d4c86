# SPDX-License-Identifier: Apache-2.0
"""Which responses are reused, and for which rows."""

from __future__ import annotations

from ..mutant import by_file

_TESTS = ("job/reuse/test_reuse.py", "job/reuse/test_response_store.py")

MUTANTS = by_file({
    "job/preflight/model_bucket.py": {
        "objects-of-equal-size-are-equal": (
            "(entry.path, entry.size, entry.version)",
            "(entry.path, entry.size)",
            "After weights in a bucket were trained further, stored answers of the old ones are given out.",
            "job/preflight/test_model_bucket.py::test_a_changed_file_is_another_model",
        ),
    },
    "job/reuse/reuse.py": {
        "search-noted-before-its-finds": (
            """\
        chunks, written = source.chunks(ROWS_PER_CHUNK), list[Part]()
""",
            """\
        if self.search is not None:
            self.search.write(job.folder, job.part_folder)
        chunks, written = source.chunks(ROWS_PER_CHUNK), list[Part]()
""",
            "A driver that is killed in between makes the next one pay for answers that are there.",
            "job/reuse/test_killed_searches.py::test_what_a_killed_driver_had_found_is_found_again",
        ),
        "search-finds-nothing-new": (
            "if part.path not in search.searched]",
            "if not part.path]",
            "Answers of an earlier input or prompt are paid for again.",
            *_TESTS,
        ),
        "lost-answers-are-paid-for-by-each-row": (
            "        if job.spec.deduplicate:\n            self._follow(lost)\n",
            "",
            "Where the store's data was deleted, each of 500 rows that ask the same is paid for.",
            *_TESTS,
        ),
        "regenerates-from-old-answers": (
            '    if job.spec.on_clear != "regenerate":\n        return found\n',
            "    if found:\n        return found\n",
            'A clear with `on_clear="regenerate"` returns the old answers.',
            *_TESTS,
        ),
        "failures-before-answers": (
            "for failures in (False, True))",
            "for failures in (True, False))",
            "Equal rows share a failure although one of them has an answer.",
            "job/reuse/test_fan_out.py::test_an_answer_counts_more_than_an_earlier_failure",
        ),
        "shares-though-turned-off": (
            "earlier.good, caches, job.spec.deduplicate)",
            "earlier.good, caches, True)",
            "`deduplicate=False` is ignored.",
            *_TESTS,
        ),
    },
    "job/reuse/duplicates.py": {
        "search-covers-a-smaller-limit": (
            'if note["rows"] < rows or note["files"] != len(files):',
            'if note["files"] != len(files):',
            "With a larger `limit`, rows that repeat others are paid for.",
            *_TESTS,
        ),
        "damaged-search-ends-the-job": (
            "table = pq.read_table(io.BytesIO(checked(content)))",
            "table = pq.read_table(io.BytesIO(content[:-16]))",
            "A damaged file beside the parts fails each attempt of the task.",
            *_TESTS,
        ),
        "half-a-search-counts": (
            ' or note["files"] != len(files):',
            ":",
            "A driver that is killed while it writes its search lets the next one pay for repeated rows.",
            "job/reuse/test_killed_searches.py::test_what_a_killed_driver_had_found_is_found_again",
        ),
    },
    "job/reuse/resolver.py": {
        "samples-share-an-answer": (
            "remaining.where(~later).numbered(numbers[~later])",
            "remaining.where(~later)",
            "Equal rows at a temperature above 0 get one and the same answer.",
            *_TESTS,
        ),
        "numbered-keys-looked-up-with-others": (
            "key_array.range_of(numbered.keys, self._numbered.number)",
            "np.zeros(len(numbered.ordinals), np.int64)",
            "With many rows, repeated samples that are there are paid for again.",
            "job/reuse/test_reuse.py::test_equal_sampled_rows_are_paid_once_if_the_input_changes",
        ),
        "answered-rows-asked-again": (
            "followers_of(repeats, self._is_open, self._good.__getitem__)",
            "followers_of(repeats, self._good.__getitem__, self._good.__getitem__)",
            "A row is paid for although an earlier attempt has answered an equal one.",
            "job/reuse/test_reuse.py::TestRegenerate::test_equal_row_reuses_the_answer_of_an_earlier_attempt",
        ),
        "leader-that-was-given-up": (
            "followers_of(repeats, missing, missing)",
            "followers_of(repeats, missing, lambda ordinals: ~self.rows[ordinals])",
            "Rows wait for the answer of a row that is not asked any more: the commit lacks them.",
            "job/reuse/test_reuse.py::TestResume::test_a_follower_leads_where_its_leader_has_failed_for_good",
        ),
    },
    "job/reuse/response_store.py": {
        "stored-answers-stored-as-new": (
            "if part.may_be_generated)",
            "if part.rows)",
            "An expired answer is stored again as a new one, and never expires.",
            *_TESTS,
        ),
        "stored-by-submission-and-not-by-driver": (
            "groupby(paid, key=lambda part: part.driver)",
            "groupby(paid, key=lambda part: part.submission_id)",
            "After a head restart, what a driver of a repeated submission id paid for is not stored.",
            *_TESTS,
        ),
        "store-fails-a-committed-job": (
            "    except Exception as error:  # the dataset is committed",
            "    except ValueError as error:  # the dataset is committed",
            "A response store that is away fails a job whose dataset is published: it runs again.",
            *_TESTS,
        ),
    },
    "job/reuse/cached_parts.py": {
        "carried-loses-where-it-came-from": (
            '    return pc.if_else(pc.equal(one_array(found["origin"]), "stored"), "stored", origins)\n',
            "    return origins\n",
            "The tokens of a stored answer are counted as this task's own.",
            *_TESTS,
        ),
        "cached-rows-in-the-order-of-hits": (
            '.sort_by("hit")',
            "",
            "Rows get each other's stored answers.",
            "job/reuse/test_reuse.py::TestResume::test_no_key_is_made_and_no_part_is_opened",
        ),
    },
})
