# SPDX-License-Identifier: Apache-2.0
"""A row's way through one engine, and the state after the engine's death."""

from __future__ import annotations

from ..mutant import by_file

_BUCKETS_TESTS = "job/replica/test_rows_in_buckets.py"
_COORDINATOR_TESTS = "job/replica/test_coordinator.py"
_FORK_SERVER_TESTS = "job/engine_process/test_fork_server.py"
_POISON = "job/replica/test_poison_rows.py"
_WORKER_TESTS = "job/replica/test_worker.py"

MUTANTS = by_file({
    "job/replica/coordinator.py": {
        "ordinals-taken-for-numbers-of-the-queue": (
            "self._input.numbers(ordinals)",
            "ordinals",
            "After the death of a replica with rows in buckets, written rows are asked again, or "
            "others never.",
            f"{_BUCKETS_TESTS}::test_what_a_lost_replica_has_written_is_found",
        ),
        "leaves-while-rows-come-back": (
            "            or self._has_rows_for_another\n        ):\n",
            "        ):\n",
            "A replica leaves that could have taken rows of another one, and the last rows take twice "
            "as long.",
            f"{_COORDINATOR_TESTS}::test_a_replica_stays_while_another_can_give_rows_back",
        ),
        "leaves-below-the-fewest": (
            "            or len(queue.replicas) <= self._fewest\n",
            "            or len(queue.replicas) < self._fewest\n",
            "Replicas that the user keeps leave.",
            f"{_COORDINATOR_TESTS}::test_idle_replicas_leave_down_to_the_fewest",
        ),
    },
    "job/replica/process_parts.py": {
        "numbers-of-the-queue-written-as-ordinals": (
            "outcome(row.position,",
            "outcome(row.ordinal,",
            "Answers of rows in buckets belong to other rows of the input.",
            f"{_BUCKETS_TESTS}::test_rows_keep_their_ordinals",
        ),
    },
    "job/row_order/buckets.py": {
        "missing-row-of-a-bucket-overlooked": (
            "if not np.isin(ordinals, self._ordinals).all():",
            "if False:",
            "If a prompt function changes its mind after a node is lost, a row gets the answer of "
            "another one.",
            "job/row_order/test_buckets.py::test_a_row_that_another_call_put_elsewhere_is_missed",
        ),
        "rows-of-another-chunk-in-a-bucket": (
            "        first += len(ordinals)\n",
            "",
            "Rows of an input that is brought together are lost, or come twice.",
            "job/row_order/test_buckets.py::test_a_row_is_in_its_bucket_as_it_was_read",
        ),
    },
    "job/row_order/grouping.py": {
        "longest-rows-all-to-one-replica": (
            "(turn + ordinals[:1].sum()) % self.decks",
            "turn * self.decks // len(turn)",
            "Of two replicas, one gets all rows with long answers, and the other waits for it.",
            "job/row_order/test_grouping.py::test_each_is_dealt_as_many_long_rows_as_any_other",
        ),
    },
    "job/replica/remote_call.py": {
        "question-waits-for-a-lost-node": (
            "any(now - heard < SILENT for heard in self._heard.values())",
            "bool(self._heard)",
            "A job whose node is lost while its model is checked waits until the node is back, if ever.",
            f"{_COORDINATOR_TESTS}::test_a_silent_process_is_not_waited_for",
        ),
        "question-lost-with-its-process": (
            '        if process == self._process and self._answer is None:\n            self._process = ""\n',
            "",
            "A job whose replica dies of the check of its model waits without end.",
            f"{_COORDINATOR_TESTS}::test_another_process_answers_if_one_ends_before",
        ),
    },
    "job/engine_process/fork_server.py": {
        "engine-outlives-its-replica": (
            "        threading.Thread(target=_end_with_parent, daemon=True).start()\n",
            "",
            "The engine of a killed replica keeps its GPU, and the next one does not start.",
            f"{_FORK_SERVER_TESTS}::test_all_end_with_the_parent_or_server",
        ),
        "engine-with-the-environment-of-another": (
            "        _use(self._environment)\n",
            "",
            "Workers of an engine run without what vLLM has set for them, such as their GPUs.",
            f"{_FORK_SERVER_TESTS}::test_children_share_import_and_environment",
        ),
    },
    "job/replica/worker.py": {
        "kill-sent-as-abort": (
            "self._coordinator.lost.remote(self._process, not error.killed,",
            "self._coordinator.lost.remote(self._process, True,",
            "After two kills from outside, an innocent row becomes a dead letter.",
            _POISON,
        ),
        "killer-of-the-tokenizer-not-suspected": (
            "        if not any(isinstance(one, EngineDeadError) for one in prepared):\n",
            "        if True:\n",
            "A row that kills the front end while it is tokenised fails the job.",
            f"{_POISON}::test_one_row_is_found_within_the_bound",
        ),
        "dead-engine-writes-nothing": (
            "            await self._write_the_rest()\n        with contextlib.suppress(Exception)",
            "            pass\n        with contextlib.suppress(Exception)",
            "Rows that a dead engine had finished are paid for again.",
            f"{_WORKER_TESTS}::test_dead_engine_leaves_finished_rows_and_names_the_others",
        ),
        "drain-writes-nothing": (
            "        await self._inflight.cancel()\n        await self._write_the_rest()\n",
            "        await self._inflight.cancel()\n",
            "Rows that a stopped job had finished are paid for again.",
            f"{_WORKER_TESTS}::test_draining_replica_writes_finished_rows_and_begins_none",
        ),
        "slow-row-holds-all-back": (
            "return not self._unanswered or self._inflight.waits_for() >= after",
            "return not self._unanswered",
            "A killed replica loses all its finished rows, and not only those of one `flush_interval`.",
            f"{_WORKER_TESTS}::test_slow_row_delays_the_others_by_flush_interval_only",
        ),
    },
    "job/replica/replica.py": {
        "restarts-without-bound": (
            "        if consecutive_failures > spec.max_restarts:\n",
            "        if consecutive_failures > spec.max_restarts + 100:\n",
            "An engine that dies of every row is restarted for hours.",
            _POISON,
        ),
        "goes-on-when-it-was-given-up": (
            "            os._exit(ENGINE_DIED)  # others have its rows: begin anew\n",
            "            return\n",
            "A replica that was taken for lost ends its ticket for good, and its GPU idles.",
            f"{_WORKER_TESTS}::test_a_replica_that_was_taken_for_lost_ends",
        ),
    },
    "job/run/actors.py": {
        "ends-actors-that-ray-data-has": (
            " if ended & set(left) else set()\n",
            " if left else set()\n",
            "The end of an actor that Ray Data still waits for fails the job.",
            "job/run/test_actors.py::test_waiting_actors_end_after_one_that_left",
        ),
    },
    "job/control/control.py": {
        "older-attempts-order-wins": (
            "        if order.attempt >= self._attempt:\n",
            "        if True:\n",
            "A follower of an earlier attempt takes back the deadline of the present one.",
            "job/control/test_control.py",
        ),
        "every-poll-renews-the-lease": (
            "        if order is None or order == self._seen:\n",
            "        if order is None:\n",
            "A job that no task follows any more never ends itself.",
            "job/control/test_control.py",
        ),
        "late-driver-ends-inside-its-commit": (
            "        with self._ending, self.draining():\n",
            "        with self.draining():\n",
            "A published dataset is reported as late.",
            "job/control/test_control.py",
        ),
        "stop-ends-inside-a-commit": (
            "        with self._ending, self.draining():\n",
            "        with self._ending:\n",
            "A published dataset is reported as stopped.",
            "job/control/test_control.py",
        ),
    },
})
