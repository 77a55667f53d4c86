# SPDX-License-Identifier: Apache-2.0
"""The meaning of a poll, and which process may stop a job: judge, follower, trigger."""

from __future__ import annotations

from ..mutant import by_file

_JUDGED = "cluster/follow/test_outcome.py"
_FOLLOWED = "cluster/follow/test_poll.py"
_KILLED = "triggers/test_ray_job.py"

MUTANTS = by_file({
    "cluster/follow/outcome.py": {
        "committed-and-stopped-is-stopped": (
            "    if committed is not None:\n",
            "    if committed is not None and info.status is not JobStatus.STOPPED:\n",
            "A dataset that is published is reported as stopped, and paid for again.",
            _JUDGED,
        ),
        "last-event-decides": (
            "    committed = next((event for event in told if isinstance(event, Committed)), None)\n",
            "    committed = next((event for event in told[:1] if isinstance(event, Committed)), None)\n",
            "A driver that fails after its commit fails the task, and the dataset is paid for again.",
            _JUDGED,
        ),
        "first-silence-is-the-end": (
            "    if silent >= unreachable_timeout:\n",
            "    if silent >= 0:\n",
            "One lost answer ends the following of a healthy job.",
            _JUDGED,
        ),
        "silences-add-up": (
            "        state = replace(state, unreachable_since=None)\n",
            "",
            "Two short outages, hours apart, end the following of a healthy job.",
            _JUDGED,
        ),
        "restarted-head-means-deleted": (
            "    if observation.session_name is not None and observation.session_name == "
            "state.session_name:\n",
            "    if observation.session_name is not None:\n",
            "A job that was lost with its head is reported as deleted by a user.",
            _JUDGED,
        ),
        "late-though-ended": (
            "    if not info.status.is_terminal:\n",
            "    if not info.status.is_terminal or (deadline is not None and observation.at >= deadline):\n",
            "A job that published in time is reported as late.",
            _JUDGED,
        ),
        "ends-without-its-log": (
            "    if observation.tail is None and state.polls_without_log + 1 < _POLLS_FOR_THE_END:\n",
            "    if False:\n",
            "A job whose log can't be read for a second hands no dataset over.",
            _JUDGED,
        ),
        "copies-count-as-events": (
            "        elif found.number >= seen:",
            "        elif True:",
            "Text of a row that repeats an event of its job is shown as one.",
            _JUDGED,
        ),
        "drivers-timeout-counts-as-a-stop": (
            "(last is None or last.failure_class is not FailureClass.TIMEOUT)",
            "(last is None or last.failure_class is not FailureClass.SUPERSEDED)",
            "A job that ended itself at its deadline is reported as stopped by a user.",
            _JUDGED,
        ),
        "events-as-they-came": (
            "        return all_storable(plain)\n",
            "        return plain\n",
            "A NUL byte of an older driver ends the triggerer on PostgreSQL.",
            f"{_JUDGED}::test_event_of_a_trigger_is_small_and_fit_for_a_database",
        ),
    },
    "cluster/follow/poll.py": {
        "state-read-after-the-log": (
            "        tail = await _end_of_log(client, info, state)\n",
            "        tail = await _end_of_log(client, info, state)\n"
            "        info = await client.info(submission_id) or info\n",
            "A job that commits between the two has no dataset: it is paid for again.",
            f"{_FOLLOWED}::test_commit_right_after_the_log_was_read_is_seen",
        ),
        "last-poll-is-short": (
            "    if state.log_read and not info.status.is_terminal and state.expected_lines < TAIL_LINES:\n",
            "    if state.log_read and state.expected_lines < TAIL_LINES:\n",
            "Noise after a commit hides it: the dataset is paid for again.",
            f"{_FOLLOWED}::test_a_job_that_is_stopped_after_its_commit_was_shown",
        ),
        "unreachable-ends-the-poll": (
            "    except ClusterError as error:\n"
            "        return Observation(at=time.time(), error=str(error))\n",
            "    except NotImplementedError as error:\n"
            "        return Observation(at=time.time(), error=str(error))\n",
            "One lost answer ends the following of a healthy job.",
            _FOLLOWED,
        ),
    },
    "cluster/follow/control.py": {
        "lease-renewed-once": (
            "        self._next = now + self.terms.interval\n",
            "        self._next = now + 10 * self.terms.interval * _ORDERS_A_LEASE\n",
            "A healthy job that is followed takes itself for an orphan.",
            "cluster/follow/test_lease.py::test_a_lease_lasts_as_long_as_it_is_followed",
        ),
        "orders-alike": (
            "            nonce=random_tokens.token_hex(8),\n",
            '            nonce="",\n',
            "A healthy job that is followed takes itself for an orphan.",
            "cluster/follow/test_lease.py::test_a_lease_lasts_as_long_as_it_is_followed",
        ),
    },
    "cluster/follow/loop.py": {
        "healthy-job-not-left-to-the-retry": (
            "        if not failure_class.retryable:\n",
            "        if failure_class is FailureClass.INTERNAL:\n",
            "A healthy job whose trigger failed is left without a follower, and the task fails for good.",
            "operators/test_resuming.py",
        ),
        "healthy-job-without-a-follower": (
            "        if not leave_to_a_retry:\n",
            "        if False:\n",
            "The last attempt fails while its job is healthy.",
            "operators/test_resuming.py",
        ),
        "stopped-though-it-finished": (
            '    if finished is not None and finished.state in {"succeeded", "failed"}:\n',
            '    if finished is not None and finished.state in {"failed"}:\n',
            "A dataset that was published in the last second is reported as late, and paid for again.",
            _KILLED,
        ),
        "not-stopped-at-its-deadline": (
            '        if outcome.state == "timeout" and job.stop_at_deadline:\n',
            "        if False:\n",
            "A job that ignores its deadline keeps its GPUs.",
            "operators/test_deadline.py",
            _KILLED,
        ),
        "stop-is-asked-once": (
            "        except ClusterUnreachableError:\n"
            "            if time.monotonic() >= deadline:\n"
            "                raise\n"
            "        await asyncio.sleep(_ASK_AGAIN_SECONDS)\n",
            "        except ClusterUnreachableError:\n"
            "            raise\n"
            "        await asyncio.sleep(_ASK_AGAIN_SECONDS)\n",
            "If the cluster is unreachable for a second, the job of an ended task keeps running.",
            "operators/test_deadline.py::test_stop_is_repeated_while_the_cluster_is_unreachable",
        ),
        "asked-after-the-order": (
            """\
            in_flight = may_come()  # before the order: the job may be there right after it
            if await _answered(lambda: client.stop(submission_id), deadline):
                await client.stop_until_terminal(submission_id, deadline - time.monotonic())
                return True
            if not in_flight or time.monotonic() >= deadline:
""",
            """\
            if await _answered(lambda: client.stop(submission_id), deadline):
                await client.stop_until_terminal(submission_id, deadline - time.monotonic())
                return True
            if not may_come() or time.monotonic() >= deadline:
""",
            "A killed task leaves the job whose POST arrived right after the order to stop.",
            "cluster/follow/test_stop_at_once.py::test_job_submitted_after_the_stop_order_is_stopped",
        ),
        "one-order-to-stop": (
            "                await client.stop_until_terminal(submission_id, deadline - time.monotonic())\n"
            "                return True\n",
            "                return True\n",
            "Ray ignores the order to stop a pending job: a killed task leaves it.",
            "cluster/follow/test_stop_at_once.py::test_pending_job_is_asked_again_to_stop",
        ),
    },
    "triggers/killable.py": {
        "stops-deferred-tasks-jobs": (
            "        if state is not None and state in self.goes_on:\n",
            '        if state is not None and state in self.goes_on and state != "deferred":\n',
            "A triggerer that restarts, or loses a trigger to another one, ends healthy jobs.",
            _KILLED,
        ),
        "stops-retried-tasks-jobs": (
            "        if state is not None and state in self.goes_on:\n",
            '        if state is not None and state in self.goes_on and state != "up_for_retry":\n',
            "A task that waits for its retry loses the job that the retry would follow.",
            _KILLED,
        ),
        "stops-in-doubt": (
            "            await self.leave_in_doubt()\n            return\n",
            "            await self.leave_in_doubt()\n",
            "An Airflow whose API is away ends healthy jobs.",
            _KILLED,
        ),
        "asks-for-the-state-once": (
            "        for wait in (*_STATE_WAITS, None):\n",
            "        for wait in (None,):\n",
            "A user marks a task while Airflow's API is away for a second: the job runs on.",
            _KILLED,
        ),
        "never-stops": (
            "        await self.stop_followed(max(",
            "        await asyncio.sleep(0 * max(",
            "The job of a task that a user marked keeps its GPUs.",
            _KILLED,
        ),
        "stop-ends-with-its-trigger": (
            "            with suppress(asyncio.CancelledError):\n"
            "                await asyncio.shield(self._killing)\n",
            "            await asyncio.shield(self._killing)\n",
            "The triggerer's second cancellation leaves the job of a task that a user marked.",
            _KILLED,
        ),
        "stop-is-cancelled-with-its-trigger": (
            "                await asyncio.shield(self._killing)\n",
            "                await self._killing\n",
            "The triggerer's second cancellation leaves the job of a task that a user marked.",
            _KILLED,
        ),
    },
    "triggers/ray_job.py": {
        "trigger-in-doubt-leaves-the-lease": (
            "        seconds = await shorten_lease((await self._known_cluster()).address, self._lease)\n",
            "        seconds = 0.0\n",
            "A user marks a task while Airflow's API is away: its job runs for six hours more.",
            _KILLED,
        ),
        "connection-that-is-away-ends-the-job": (
            '            return Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, str(error))\n',
            '            return Outcome("failed", FailureClass.USER_ERROR, str(error))\n',
            "A triggerer that can't read the connection fails a task whose job is healthy.",
            _KILLED,
        ),
        "trigger-raises": (
            "        except Exception as error:\n            # Airflow would store",
            "        except MemoryError as error:\n            # Airflow would store",
            "Airflow stores the traceback as it is, and a NUL byte in it ends the triggerer.",
            "operators/test_foreign_text.py::test_a_failure_of_the_trigger_itself",
        ),
    },
    "cluster/jobs_api/log_text.py": {
        "long-events-are-cut": (
            '    event = b"" if at is None else line[at:]\n',
            '    event = b""\n',
            "A row's text before the last event hides a published dataset: it is paid for again.",
            "cluster/jobs_api/test_log_text.py",
        ),
    },
})
