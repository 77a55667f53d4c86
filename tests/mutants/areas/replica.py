# SPDX-License-Identifier: Apache-2.0
"""A row's way through one engine, and what its death leaves."""

from __future__ import annotations

from ..mutant import Mutant

_REPLICA = "job/execution/replica/replica.py"
_ANSWERS = "job/execution/replica/answers.py"
_CONTROL = "job/control/control.py"
_POISON = ("job/execution/replica/test_poison_rows.py",)

MUTANTS = (
    Mutant(
        "passed-never-sent",
        _REPLICA,
        "                        self._board.passed.remote(item.number, self._process)\n",
        "",
        "Rows that have come out are suspected of the next death: more restarts, and the wrong rows in them.",
        (
            "job/execution/replica/test_replica_and_board.py::test_rows_that_have_passed_are_not_suspected_of_what_comes_after",
        ),
    ),
    Mutant(
        "passed-sent-before-the-answer",
        _REPLICA,
        """\
                        written += await self._answer(chunk, group.rows, watch)
                        # Report success before starting the next group, which may crash the engine.
                        self._board.passed.remote(item.number, self._process)
""",
        """\
                        self._board.passed.remote(item.number, self._process)
                        written += await self._answer(chunk, group.rows, watch)
""",
        "The rows that an engine died with are cleared: a row that kills is never found.",
        ("job/execution/replica/test_poison_rows.py::test_one_row_is_found_within_the_bound",),
    ),
    Mutant(
        "abort-never-sent",
        _REPLICA,
        "                await self._board.aborted.remote(self._process)\n",
        "                pass\n",
        "A row that kills the engine takes three more restarts.",
        _POISON,
    ),
    Mutant(
        "kill-sent-as-abort",
        _REPLICA,
        "        if not error.killed:\n",
        "        if True:\n",
        "Two kills from outside make a dead letter of an innocent row.",
        _POISON,
    ),
    Mutant(
        "written-rows-not-looked-up",
        _REPLICA,
        "written = await self._thread(self._written, item) if suspicion.repeated else []",
        "written: list[parts.Part] = []",
        "A chunk that is repeated is paid for and written twice.",
        (
            "job/execution/replica/test_replica.py::test_a_chunk_whose_end_never_reached_ray_is_not_paid_for_again",
        ),
    ),
    Mutant(
        "failed-rows-not-looked-up",
        _REPLICA,
        "ordinals = (parts.outcomes(self._job.folder, part)[0] for part in written)",
        "both = (parts.outcomes(self._job.folder, part) for part in written)\n"
        "        ordinals = (found[good] for found, good in both)",
        "A repeated chunk pays for its failed rows again, in the same submission.",
        (
            "job/execution/replica/test_replica.py::test_a_chunk_whose_end_never_reached_ray_is_not_paid_for_again",
        ),
    ),
    Mutant(
        "asks-while-it-drains",
        _REPLICA,
        "                    if self._draining.is_set():\n                        break\n",
        "",
        "A stopped job pays for rows that it will throw away.",
        _POISON,
    ),
    Mutant(
        "begins-while-it-drains",
        _REPLICA,
        "while pending and not self._draining.is_set():",
        "while pending:",
        "A stopped job pays for rows that it will throw away.",
        ("job/execution/replica/test_replica.py", "job/execution/replica/test_replica_and_board.py"),
        equivalent="The same is asked once more inside of the gate, before any row is. A killer that was "
        "found is written, which costs nothing.",
    ),
    Mutant(
        "lets-others-in-before-it-dies",
        _REPLICA,
        """\
                    except EngineDeadError as error:
                        # Before another group is admitted, which would seem to have crashed with it.
                        await self._die(error)
                    finally:
                        self._asking -= 1
""",
        """\
                    except EngineDeadError as error:
                        failure = error
                    else:
                        failure = None
                    finally:
                        self._asking -= 1
                if failure is not None:
                    await self._die(failure)
""",
        "Rows that waited for their turn seem to have died with those that killed the engine.",
        (
            "job/execution/replica/test_replica_and_board.py::test_who_waits_while_an_engine_dies_is_not_suspected",
        ),
    ),
    Mutant(
        "no-last-words",
        _REPLICA,
        "        if self._dying < self._asking:\n",
        "        if self._dying < 0:\n",
        "Rows that a dead engine had finished for other chunks are paid for again.",
        (
            "job/execution/replica/test_replica_and_board.py::test_each_chunk_of_a_dead_engine_writes_what_it_has",
        ),
    ),
    Mutant(
        "board-not-asked",
        _REPLICA,
        "                    await "
        "self._board.ask.remote(item.number, self._process, group.rows, group.tested)\n",
        "                    self._board.ask.remote(item.number, self._process, group.rows, group.tested)\n",
        "An engine dies before the board knows of the rows in it: the row that kills is never found.",
        _POISON,
    ),
    Mutant(
        "restarts-without-bound",
        _REPLICA,
        "        if in_vain > most:\n",
        "        if in_vain > most + 100:\n",
        "An engine that dies of everything is restarted for hours.",
        _POISON,
    ),
    Mutant(
        "dead-engine-gives-nothing-out",
        _ANSWERS,
        """\
                error = flight.error
                ends""",
        """\
                error = flight.error
                if error is not None:
                    raise error
                ends""",
        "Rows that a dead engine had finished are paid for again.",
        ("job/execution/replica/test_answers.py",),
    ),
    Mutant(
        "drain-gives-nothing-out",
        _ANSWERS,
        "ends = flight.is_over or error is not None or self._draining()",
        "ends = flight.is_over or error is not None",
        "Rows that a stopped job had finished are paid for again.",
        ("job/execution/replica/test_answers.py",),
    ),
    Mutant(
        "late-rows-are-lost",
        _ANSWERS,
        "return self.is_over and not self._finished and self.error is None",
        "return self.is_over and self.error is None",
        "Rows that come while others are written are never written: the commit lacks them.",
        ("job/execution/replica/test_answers.py",),
    ),
    Mutant(
        "slow-row-holds-all-back",
        _ANSWERS,
        "if ends or flight.waits_for() >= self._spec.flush_interval:",
        "if ends:",
        "A killed replica loses all finished rows of its chunks, not those of one `flush_interval`.",
        ("job/execution/replica/test_answers.py",),
    ),
    Mutant(
        "older-attempts-order-wins",
        _CONTROL,
        "        if order.attempt >= self._attempt:\n",
        "        if True:\n",
        "A follower of an earlier attempt takes back the deadline of the present one.",
        ("job/control/test_control.py",),
    ),
    Mutant(
        "every-look-renews-the-lease",
        _CONTROL,
        "        if order is None or order == self._seen:\n",
        "        if order is None:\n",
        "A job that no task follows any more never ends itself.",
        ("job/control/test_control.py",),
    ),
    Mutant(
        "late-driver-ends-inside-its-commit",
        _CONTROL,
        "        with self._ending, self.draining():\n",
        "        with self.draining():\n",
        "A published dataset is reported as late.",
        ("job/control/test_control.py",),
    ),
    Mutant(
        "stop-ends-inside-a-commit",
        _CONTROL,
        "        with self._ending, self.draining():\n",
        "        with self._ending:\n",
        "A published dataset is reported as stopped.",
        ("job/control/test_control.py",),
    ),
)
