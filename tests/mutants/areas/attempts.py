# SPDX-License-Identifier: Apache-2.0
"""From one attempt of a task to the next: run record, events of triggers, jobs of earlier runs."""

from __future__ import annotations

from ..mutant import by_file

_RECORDED = "operators/test_run_record.py"
_ONE = "operators/test_one_submission.py"
_RESUMED = "operators/test_resuming.py"
_DECORATED = "decorators/test_ray_batch.py"

MUTANTS = by_file({
    "operators/run_record.py": {
        "token-not-stored": (
            "    _write(store, minted)\n"
            "    if recorded_run(store) != minted:\n"
            '        raise _unreachable("it doesn\'t give back what was written")\n',
            "",
            "A retry doesn't find the job of the attempt before it, and submits a second one.",
            _RECORDED,
            _ONE,
        ),
        "store-that-forgets-is-trusted": (
            "    if recorded_run(store) != minted:\n",
            "    if recorded_run(store) is minted:\n",
            "Where Airflow's store keeps nothing, each retry submits another job.",
            _RECORDED,
        ),
        "record-expires": (
            '_asked(lambda: store.set(KEY, record.model_dump(mode="json"), retention=NEVER_EXPIRE))',
            '_asked(lambda: store.set(KEY, record.model_dump(mode="json")))',
            "A retry that comes after Airflow has swept its store submits a second job.",
            f"{_RECORDED}::test_a_retry_that_comes_late_finds_its_run",
        ),
        "clear-is-a-retry": (
            "return self.max_tries == attempt.max_tries and not counted_anew",
            "return not counted_anew",
            "A cleared task returns its old dataset.",
            _RECORDED,
        ),
        "dag-run-made-again-is-a-retry": (
            "return self.max_tries == attempt.max_tries and not counted_anew",
            "return self.max_tries == attempt.max_tries",
            "A DAG run that was deleted and made again returns the dataset of the first one.",
            _RECORDED,
        ),
        "result-of-an-overtaken-run": (
            "if known is not None and known.token == token:  # else a clear",
            "if known is not None:  # else a clear",
            "A run that a clear has overtaken records its result: the clear returns the old dataset.",
            _RECORDED,
        ),
        "overtaken-run-forgets": (
            "    if known is not None and known.token == token:\n"
            '        _write(store, known.model_copy(update={"earlier": (), "earlier_keys": {}}))\n',
            "    if known is not None:\n"
            '        _write(store, known.model_copy(update={"earlier": (), "earlier_keys": {}}))\n',
            "A job that a run before the last clear left is never stopped.",
            _RECORDED,
        ),
        "only-the-last-run-is-known": (
            "(*known.earlier, known.token)",
            "(known.token,)",
            "After two clears in a row, the first run's job runs on.",
            _RECORDED,
        ),
        "lost-record-means-no-earlier-runs": (
            "return () if attempt.try_number <= 1 else None",
            "return ()",
            "Where Airflow drops the record with a clear, the cleared run's job runs on.",
            _RECORDED,
        ),
        "namespace-changes-with-a-clear": (
            "namespace=namespace() if known is None else known.namespace,",
            "namespace=namespace(),",
            "After an upgrade, a cleared task may not replace its own dataset.",
            _RECORDED,
        ),
        "mark-of-a-clear-is-not-read": (
            " and not was_cleared(known):\n",
            ":\n",
            "A running task is cleared to generate anew, and its executor reports a failure: old rows stay.",
            "operators/test_kill.py::test_a_clear_that_counts_as_a_retry_begins_a_new_run",
        ),
    },
    "operators/base.py": {
        "event-of-an-earlier-run": (
            '        if record is not None and handle["run_token"] != record.token:\n',
            "        if False:\n",
            "The event of a cleared run's trigger ends the task with the old job's outcome.",
            _RESUMED,
        ),
        "trigger-event-decides": (
            "        if not outcome.saw_the_end:\n"
            '            outcome = self._recheck(context, outcome, str(handle["submission_id"]))\n',
            "",
            "A trigger that could not reach the cluster fails a task whose dataset is there.",
            _RESUMED,
        ),
        "deferral-timeout-fails-the-task": (
            "        except (TaskDeferralError, TaskDeferralTimeout) as error:\n",
            "        except TaskDeferralError as error:\n",
            "A task whose triggerer was away fails though its dataset is there.",
            _RESUMED,
        ),
        "result-not-recorded": (
            '            record_result(store, handle["run_token"], ti, handle["fingerprint"], result)\n',
            "            pass\n",
            "A retry after success asks a cluster that may be gone, and pays for the dataset again.",
            _ONE,
        ),
        "record-that-fails-fails-the-task": (
            """\
            record_result(store, handle["run_token"], ti, handle["fingerprint"], result)
        except RayBatchException as error:
""",
            """\
            record_result(store, handle["run_token"], ti, handle["fingerprint"], result)
        except ZeroDivisionError as error:
""",
            "A task whose dataset is there fails because Airflow's store is away.",
            _ONE,
        ),
        "recorded-result-not-returned": (
            "        if run.record.fingerprint == plan.fingerprint:\n",
            "        if False:\n",
            "A retry after success asks a cluster that may be gone, and pays for the dataset again.",
            _ONE,
        ),
        "recorded-result-of-other-arguments": (
            "        if run.record.fingerprint == plan.fingerprint:\n",
            "        if run.record.fingerprint:\n",
            "A retry with other arguments returns the dataset of the old ones.",
            _ONE,
        ),
        "last-attempt-leaves-a-job": (
            '            if self._is_resumed or context["ti"].try_number > 1:\n',
            "            if False:\n",
            "An attempt that can submit nothing leaves the job of the one before it without a follower.",
            _ONE,
        ),
    },
    "operators/submitting.py": {
        "earlier-runs-not-stopped": (
            "    if run.record.earlier != () and stop_earlier_runs(",
            "    if False and stop_earlier_runs(",
            "The job of a cleared run keeps its GPUs beside the new one's.",
            _ONE,
        ),
        "earlier-runs-forgotten-before-they-are-stopped": (
            """\
    if run.record.earlier != () and stop_earlier_runs(run, keep, log):
        try:
            forget_earlier(store, run.run_token)
        except RayBatchException as error:
            log.warning("The next attempt asks for jobs of earlier runs again: %s", error)
""",
            """\
    if run.record.earlier != ():
        forget_earlier(store, run.run_token)
        stop_earlier_runs(run, keep, log)
""",
            "A worker that is killed in between leaves the cleared run's job running for good.",
            f"{_ONE}::test_unstopped_job_is_stopped_by_the_next_attempt",
        ),
        "submits-past-the-deadline": (
            "        run.deadline.refuse_if_passed()  # here,",
            "        pass  # here,",
            "A job is submitted after its deadline.",
            "operators/test_deadline.py",
        ),
    },
    "operators/attempt.py": {
        "unstopped-runs-forgotten": (
            'may still be there: %s", error)\n        return False\n',
            'may still be there: %s", error)\n        return True\n',
            "A job that could not be stopped at once runs on for good.",
            f"{_ONE}::test_unstopped_job_is_stopped_by_the_next_attempt",
        ),
        "earlier-runs-that-can-not-be-stopped-fail-the-task": (
            "    except RaybatchError as error:\n        log.warning(",
            "    except ZeroDivisionError as error:\n        log.warning(",
            "A task fails because of a job that is not its own.",
            f"{_ONE}::test_unstopped_job_is_stopped_by_the_next_attempt",
        ),
        "last-error-leaves-a-job": (
            "        if policy is None or ti.try_number > ti.max_tries:\n",
            "        if policy is None:\n            return False\n"
            "        if ti.try_number > ti.max_tries:\n",
            "A function that fails in the last attempt leaves the GPU job of the one before it.",
            _DECORATED,
        ),
    },
    "operators/cancel_handler.py": {
        "kill-before-the-post-arrives": (
            "            self._target.submission_id, self._target.posts = submission_id, True\n",
            "            self._target.submission_id = submission_id\n",
            "A task that is killed while its POST is under way leaves the job.",
            "operators/test_cancel_handler.py::test_a_kill_during_the_post_waits_for_the_job",
        ),
        "posts-though-killed": (
            "            if self._killed:  # after the line above",
            "            if False:  # after the line above",
            "A task that is killed while it uploads submits its job all the same.",
            "operators/test_cancel_handler.py::test_a_task_that_is_killed_early_neither_submits_nor_adopts",
        ),
        "kill-while-it-submits-forgotten": (
            "        if self._killed:\n            self.kill(log)",
            "        if False:\n            self.kill(log)",
            "A task that is killed while it submits follows its job all the same.",
            "operators/test_cancel_handler.py::test_a_task_that_is_killed_early_neither_submits_nor_adopts",
        ),
        "kill-in-doubt-leaves-the-lease": (
            "await shorten_lease(cluster.address, lease)",
            "0.0",
            "A user ends a task while Airflow's store is slow: its job runs for six hours more.",
            "operators/test_kill.py::test_a_kill_in_doubt_shortens_the_lease",
        ),
        "cleared-attempt-leaves-its-job": (
            "            if target.is_cleared():\n",
            "            if False:\n",
            "A user clears a running task: its job goes on, and the clear may count as a retry.",
            "operators/test_kill.py::test_a_clear_that_counts_as_a_retry_begins_a_new_run",
        ),
        "kill-asks-nothing": (
            "        if store is None:\n",
            "        if True:\n",
            "The end of an attempt that was given up stops the job that the next attempt has adopted.",
            "operators/test_kill.py::test_a_job_that_the_next_attempt_follows_goes_on",
        ),
        "kill-trusts-a-silent-store": (
            "            _leave_in_doubt(target, error, log)\n",
            "            _stop(target.stop(log), log)\n",
            "A kill stops a healthy job while Airflow gives no answer.",
            "operators/test_kill.py::test_a_kill_in_doubt_shortens_the_lease",
        ),
        "kill-before-the-job-is-found": (
            "            if (stop := self._left_behind) is not None:\n",
            "            if (stop := None) is not None:\n",
            "A kill while a decorated function runs leaves the GPU job of the attempt before.",
            _DECORATED,
        ),
    },
    "operators/rendering.py": {
        "template-that-fails-leaves-a-job": (
            "            self.before_failing(failure, context)\n",
            "",
            "A last attempt whose template fails leaves the GPU job of the one before it.",
            _DECORATED,
        ),
    },
})
