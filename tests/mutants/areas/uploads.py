# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads of the Batch API: whole or not at all, and little of them in memory."""

from __future__ import annotations

from ..mutant import by_file

_REFUSED = "plugins/batch_api/test_upload.py::test_what_is_wrong_is_refused_by_name"

MUTANTS = by_file({
    "storage/stream.py": {
        "streamed-file-not-synced": (
            "            os.fsync(self._file.fileno())\n",
            "",
            "After a power loss an upload is there and empty.",
            "storage/test_stream.py::test_name_and_content_survive_a_power_loss",
        ),
        "streamed-name-not-synced": (
            "            durable.sync_folder(self._target.parent)\n",
            "",
            "After a power loss an acknowledged upload is gone.",
            "storage/test_stream.py::test_name_and_content_survive_a_power_loss",
        ),
        "streamed-in-place": (
            'self._target.parent / f"{SCRATCH}{uuid.uuid4().hex}"',
            "self._target",
            "A reader sees half an upload, and a killed server leaves one.",
            "storage/test_stream.py::test_a_killed_writer_leaves_nothing_visible",
        ),
        "failed-write-completed": (
            "            self._failure = error\n",
            "",
            "A file with a hole is published.",
            "storage/test_stream.py::test_a_failure_that_is_ignored_is_told_at_the_end",
        ),
        "failed-stream-not-aborted": (
            "        stream.abort()\n",
            "",
            "Each refused upload leaves its bytes in storage.",
            "storage/test_stream.py::TestEveryFolder::test_an_exception_leaves_nothing",
        ),
        "aborted-stream-completed": (
            "upload.__exit__(StorageError, None, None)",
            "upload.close()",
            "A refused upload in S3 is published.",
            "storage/test_stream.py::TestEveryFolder::test_an_exception_leaves_nothing",
        ),
        "lost-completion-fails": (
            "            if not self._is_there():\n",
            "            if self._is_there() is not None:\n",
            "An upload is refused though it is stored, whenever the last answer is lost.",
            "storage/test_stream.py::test_a_completion_whose_answer_is_lost_counts",
        ),
        "any-object-is-the-own": (
            "return found.attributes.get(_WRITER) == self._name",
            "return True",
            "A client is told that its file is stored, and another one is there.",
            "storage/test_stream.py::test_another_writers_object_is_not_taken_for_the_own",
        ),
        "stream-begun-once": (
            'with_retries(lambda: self._begin(content), "write", self._uri)',
            "self._begin(content)",
            "A cut answer of S3 ends an upload.",
            "storage/test_stream.py::test_faults_of_s3_are_survived",
        ),
        "parts-pile-up": (
            "            max_concurrency=_AT_ONCE,\n",
            "            max_concurrency=1000,\n",
            "Where S3 is slow, whole uploads are in memory.",
            "storage/test_stream.py::test_slow_s3_makes_the_writer_wait",
        ),
    },
    "plugins/batch_api/sink.py": {
        "pieces-pile-up": (
            "        await self._written()\n        piece =",
            "        piece =",
            "Where storage is slow, whole uploads are in memory.",
            "plugins/batch_api/test_sink.py::test_slow_storage_makes_the_caller_wait",
        ),
        "cancelled-upload-stays": (
            "await self._end(abandoned=error is not None)",
            "await self._end(abandoned=isinstance(error, Exception))",
            "An upload that a shutdown cuts off is stored as if it were whole.",
            "plugins/batch_api/test_upload.py::test_a_cancelled_request_leaves_nothing",
        ),
        "writes-after-the-end": (
            "            if self._over:  # a later call may get the lock first\n                return\n",
            "",
            "A piece is written into a file that is closed, or that is never removed.",
            "plugins/batch_api/test_sink.py::test_a_write_after_the_end_does_nothing",
        ),
    },
    "plugins/batch_api/form.py": {
        "cut-form-is-whole": (
            "        if not self._ended:\n",
            "        if self.filename is None and not self._ended:\n",
            "Half a file is stored as a whole one.",
            "plugins/batch_api/test_upload.py::test_a_form_that_ends_early_is_refused",
        ),
        "form-of-any-size": (
            "        if self._around > FORM_BYTES:\n",
            "        if self._around < 0:\n",
            "Headers and fields of any size are read.",
            "plugins/batch_api/test_upload.py::test_much_besides_the_file_is_refused",
        ),
        "field-of-any-size": (
            "        if len(self._field) > _FIELD_BYTES:\n",
            "        if len(self._field) < 0:\n",
            "A field fills the memory.",
            _REFUSED,
        ),
        "two-files": (
            "(self._part == FILE and self.filename is not None)",
            "(self._part == FILE and self.filename is None)",
            "Two files are stored as one.",
            _REFUSED,
        ),
    },
    "plugins/batch_api/upload.py": {
        "limit-not-kept": (
            "    if max_bytes is not None and size > max_bytes:\n",
            "    if max_bytes is None and size > 0:\n",
            "A client without a Content-Length fills the disk.",
            "plugins/batch_api/test_upload.py::test_a_file_is_refused_above_the_limit",
        ),
        "silent-clients-stay": (
            "                async with asyncio.timeout(_IDLE):\n",
            "                async with asyncio.timeout(None):\n",
            "Clients that stop sending keep their uploads open for ever.",
            "plugins/batch_api/test_upload.py::test_a_silent_client_is_given_up",
        ),
        "purpose-not-asked-for": (
            '    if "purpose" not in fields:\n',
            '    if "purpose" in {*fields, "x"} - {*fields}:\n',
            "A form without a purpose is taken.",
            _REFUSED,
        ),
    },
    "plugins/batch_api/download.py": {
        "short-piece-sent": (
            "        if len(piece) != length:\n",
            "        if len(piece) > length:\n",
            "Half a file is sent, and the next one in its place.",
            "plugins/batch_api/test_download.py::test_a_file_that_is_shorter_than_said_is_told",
        ),
        "all-read-ahead": (
            "            if len(waiting) > _AHEAD:\n",
            "            if len(waiting) > 1000:\n",
            "A download to a slow client is in memory as a whole.",
            "plugins/batch_api/test_download.py::test_few_pieces_are_read_ahead",
        ),
    },
})
