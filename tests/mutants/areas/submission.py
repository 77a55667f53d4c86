# SPDX-License-Identifier: Apache-2.0
"""One submission, whatever dies: checks before a POST, and jobs that are adopted, replaced or stopped."""

from __future__ import annotations

from ..mutant import by_file

_TESTS = "cluster/submit/test_resolve.py"

MUTANTS = by_file({
    "cluster/submit/resolve.py": {
        "no-check-before-the-post": (
            "        k, latest = await latest_submission(client, key)\n",
            "        k, latest = -1, None\n",
            "A retry of a failed run takes the failed job for its own, again and again.",
            _TESTS,
        ),
        "no-check-after-a-lost-answer": (
            "        info = await client.info(request.submission_id)\n"
            "        if info is not None:\n"
            "            return info\n",
            "        info = None if failure else await client.info(request.submission_id)\n"
            "        if info is not None:\n            return info\n",
            "A POST whose answer was lost fails the task, and its job runs on beside the retry.",
            _TESTS,
        ),
        "first-of-all-submissions": (
            "        latest = info\n",
            "        latest = latest or info\n",
            "A retry judges the first job of its run, which failed, and not the one that runs.",
            _TESTS,
        ),
        "next-number-skips-one": (
            "key.submission_id(k + 1)",
            "key.submission_id(k + 2)",
            "Two processes that submit at once make two jobs, and the next attempt finds neither.",
            _TESTS,
        ),
        "any-runs-job": (
            "    if latest.metadata.get(RUN_TOKEN) != run_token:\n",
            "    if False:\n",
            "A user's job with this id is taken for the run's own.",
            _TESTS,
        ),
        "ended-jobs-adopted": (
            "    if status.is_terminal and not finished:\n",
            "    if status is JobStatus.SUCCEEDED and not finished:\n",
            "A retry follows the job that has failed already.",
            _TESTS,
        ),
        "success-without-a-dataset": (
            "    if status.is_terminal and not finished:\n",
            "    if status.is_terminal and status is not JobStatus.SUCCEEDED and not finished:\n",
            "A retry returns a dataset that is not there.",
            _TESTS,
        ),
        "published-and-stopped-runs-again": (
            "    return await finished(job)\n",
            "    return job.status is JobStatus.SUCCEEDED and await finished(job)\n",
            "A dataset whose driver was stopped after it had published is paid for again.",
            "operators/test_one_submission.py::test_retry_returns_what_an_ended_job_had_published",
        ),
        "fingerprint-not-compared": (
            "latest.metadata.get(FINGERPRINT) == fingerprint, on_stale_state",
            "bool(latest.metadata.get(FINGERPRINT)), on_stale_state",
            "Changed arguments return the dataset of the old ones.",
            _TESTS,
        ),
        "race-not-judged-again": (
            " and info.metadata.get(FINGERPRINT) == fingerprint:\n",
            ":\n",
            "Of two processes with other arguments at once, both follow one job.",
            _TESTS,
        ),
        "replaced-beside-the-old-one": (
            "            await client.stop_until_terminal(latest.submission_id, stop_timeout)\n",
            "            await client.stop(latest.submission_id)\n",
            "Old and new job run at the same time, and both are paid for.",
            _TESTS,
        ),
        "adopted-on-replace": (
            "    instead = Action.SUBMIT if status.is_terminal else Action.REPLACE\n",
            "    instead = Action.SUBMIT\n",
            "Old and new job run at the same time, and both are paid for.",
            _TESTS,
        ),
        "id-without-the-run": (
            "json.dumps([self.task.digest, self.run_token]).encode()",
            "json.dumps([self.task.digest]).encode()",
            "A cleared task finds the jobs of the run before it.",
            _TESTS,
            "operators/test_one_submission.py",
        ),
        "id-without-the-task": (
            "json.dumps([self.task.digest, self.run_token]).encode()",
            "json.dumps([self.run_token]).encode()",
            "Tasks whose tokens are alike share a job.",
            _TESTS,
        ),
        "users-metadata-wins": (
            "{JOB_NAME: key.job_name, **request.metadata, **key.metadata(fingerprint)}",
            "{JOB_NAME: key.job_name, **key.metadata(fingerprint), **request.metadata}",
            "A job whose metadata a user sets is never found again: each retry submits another.",
            f"{_TESTS}::test_metadata_of_the_user_hides_no_job",
        ),
        "kill-leaves-a-post-behind": (
            "        return await asyncio.shield(task)\n",
            "        return await task\n",
            "A task that is killed during its POST leaves a job that no task follows.",
            f"{_TESTS}::test_cancelled_submission_returns_once_its_job_exists",
        ),
        "kill-does-not-await-the-post": (
            "        await asyncio.wait([task], timeout=_POST_GRACE)\n",
            "",
            "A task that is killed during its POST leaves a job that no task follows.",
            f"{_TESTS}::test_cancelled_submission_returns_once_its_job_exists",
        ),
        "stops-its-successors-job": (
            "        and (job.start_time or 0) <= (kept.start_time or 0)\n",
            "",
            "A late process of an older run stops the newer run's job.",
            _TESTS,
        ),
        "stops-other-tasks-jobs": (
            "        and job.metadata.get(TASK_KEY) == task_key_digest\n",
            "",
            "A clear stops the jobs of other tasks.",
            _TESTS,
        ),
        "stops-without-a-job-to-keep": (
            "    if kept is None:\n        return []\n",
            '    if kept is None:\n        kept = JobInfo("", JobStatus.RUNNING, start_time=2**62)\n',
            "A process that reaches a restarted head stops its successor's job.",
            _TESTS,
        ),
        "stop-of-the-first-submission": (
            "    _, latest = await latest_submission(client, key)\n"
            "    if latest is None or latest.status.is_terminal:\n",
            "    latest = await client.info(key.submission_id(0))\n"
            "    if latest is None or latest.status.is_terminal:\n",
            "A clear leaves the job of the second attempt running.",
            _TESTS,
        ),
    },
    "contract/run_token.py": {
        "tokens-without-numbers": (
            'return f"named-try{try_number}-{uuid.uuid4()}"',
            'return f"named-{uuid.uuid4()}"',
            "The journal can't tell an older run from a newer one.",
            "operators/test_run_record.py",
        ),
        "tokens-alike": (
            'return f"named-try{try_number}-{uuid.uuid4()}"',
            'return f"named-try{try_number}-{uuid.UUID(int=0)}"',
            "A DAG run that was deleted and made again returns the dataset of the first one.",
            "operators/test_run_record.py::test_a_dag_run_made_again_has_a_run_of_its_own",
        ),
        "numbers-of-one-digit": (
            r'try(\d+)-")',
            r'try(\d)")',
            "From the tenth try on, a clear counts as an older run and can't publish.",
            "job/output/test_fence.py::test_older_run_is_distinguished_from_a_newer_one",
        ),
    },
    "contract/event_line.py": {
        "sentences-are-not-signed": (
            '    return f"{header} {body}\\n{sentence}"\n',
            '    return f"{header} {body}"\n',
            "Text of a row changes the sentence that a person reads in Ray's log.",
            "contract/test_event_line.py",
        ),
        "lines-of-the-version-before-are-text": (
            "    if is_signed(key, _EARLIER, ",
            "    if False and is_signed(key, _EARLIER, ",
            "A job that was submitted before an upgrade has published, and its task fails.",
            "contract/test_event_line.py",
        ),
    },
    "contract/control.py": {
        "unsigned-events-count": (
            "    return hmac.compare_digest(sign(key, purpose, content).encode(), signature.encode())\n",
            "    return len(signature) == len(sign(key, purpose, content))\n",
            "A row whose text looks like an event makes a failed job succeed.",
            "contract/test_control.py",
            "cluster/follow/test_outcome.py",
        ),
        "one-key-for-all-jobs": (
            "    return hmac.new(bytes.fromhex(run_key), submission_id.encode(), "
            "hashlib.sha256).hexdigest()\n",
            "    return run_key\n",
            "Another job of the run obeys an order.",
            "contract/test_control.py",
        ),
    },
})
