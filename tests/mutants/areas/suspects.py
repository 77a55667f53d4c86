# SPDX-License-Identifier: Apache-2.0
"""Which row kills the engine: found soon, and never an innocent one."""

from __future__ import annotations

from ..mutant import Mutant

_SUSPECTS = "job/monitor/poison_rows.py"
_GATE = "job/execution/replica/gate.py"
_TESTS = ("job/execution/replica/test_poison_rows.py",)

MUTANTS = (
    Mutant(
        "blamed-beside-others",
        _SUSPECTS,
        "        suspicion.alone and suspicion.tested and len(suspected) == 1 and",
        "        suspicion.tested and len(suspected) == 1 and",
        "A row is blamed for a death that it shared with rows of other chunks.",
        ("job/execution/replica/test_poison_rows.py::test_processes_of_the_same_number_are_told_apart",),
    ),
    Mutant(
        "blamed-at-its-first-death",
        _SUSPECTS,
        "        suspicion.alone and suspicion.tested and len(suspected) == 1 and",
        "        suspicion.alone and len(suspected) == 1 and",
        "A row that was in the engine by chance is blamed for the first death.",
        ("job/execution/replica/test_poison_rows.py::test_what_was_written_before_the_death_is_no_suspect",),
    ),
    Mutant(
        "blamed-for-kills-from-outside",
        _SUSPECTS,
        "return 0 < kills < _KILLS_OF_A_ROW",
        "return False",
        "Two kills from outside make a dead letter of an innocent row.",
        ("job/execution/replica/test_poison_rows.py::test_processes_that_end_without_a_word_are_no_proof",),
    ),
    Mutant(
        "never-blamed-for-kills-from-outside",
        _SUSPECTS,
        "return 0 < kills < _KILLS_OF_A_ROW",
        "return kills > 0",
        "A row that takes more memory than there is ends the job.",
        (
            "job/execution/replica/test_poison_rows.py::test_a_row_of_which_the_system_kills_the_engine_is_found_later",
        ),
    ),
    Mutant(
        "kills-of-others-add-up",
        _SUSPECTS,
        "return told.kills if record.alone and told.alone and told.asked == record.asked else 0",
        "return told.kills",
        "Kills from outside that hit a row beside others count against it.",
        (
            "job/execution/replica/test_poison_rows.py::test_who_waited_for_his_turn_when_another_died_alone_is_cleared",
        ),
    ),
    Mutant(
        "kills-do-not-add-up",
        _SUSPECTS,
        "return told.kills if record.alone and told.alone and told.asked == record.asked else 0",
        "return 0",
        "A row that takes more memory than there is ends the job.",
        (
            "job/execution/replica/test_poison_rows.py::test_a_row_of_which_the_system_kills_the_engine_is_found_later",
        ),
    ),
    Mutant(
        "abort-not-heard",
        _SUSPECTS,
        "        self._aborted.add(process)\n",
        "        pass\n",
        "A row that kills the engine takes three more restarts.",
        ("job/execution/replica/test_poison_rows.py::test_processes_that_end_without_a_word_are_no_proof",),
    ),
    Mutant(
        "alone-beside-others",
        _SUSPECTS,
        "            record.alone = len(asking) == 1\n",
        "            record.alone = True\n",
        "A row is blamed for a death that it shared with rows of other chunks.",
        (
            "job/execution/replica/test_poison_rows.py::test_who_waited_for_his_turn_when_another_died_alone_is_cleared",
        ),
    ),
    Mutant(
        "no-halving",
        _SUSPECTS,
        "left = (sum(len(record.asked) for _, record in asking) + 1) // 2",
        "left = sum(len(record.asked) for _, record in asking)",
        "The search for a row that kills never narrows, and the job fails.",
        ("job/execution/replica/test_poison_rows.py::test_the_halves_are_of_all_rows_that_were_in_flight",),
    ),
    Mutant(
        "halves-at-the-same-time",
        _SUSPECTS,
        "(suspicion.process, bool(first)), tested=True)",
        "suspicion.process, tested=True)",
        "Both halves are in the engine together: the search narrows to nothing.",
        ("job/execution/replica/test_poison_rows.py::test_the_halves_are_of_all_rows_that_were_in_flight",),
    ),
    Mutant(
        "passed-rows-stay-suspected",
        _SUSPECTS,
        "left = tuple(position for position in suspicion.asked if position not in done)",
        "left = suspicion.asked",
        "Rows that have passed are tried again.",
        ("job/execution/replica/test_poison_rows.py::test_the_halves_are_of_all_rows_that_were_in_flight",),
    ),
    Mutant(
        "half-that-is-left-counts-as-tested",
        _SUSPECTS,
        "return replace(suspicion, asked=left, tested=False, deaths=0)",
        "return replace(suspicion, asked=left, deaths=0)",
        "A row is blamed because the others passed, though a user had killed the engine.",
        ("job/execution/replica/test_poison_rows.py::test_a_row_that_only_others_point_at_is_not_to_blame",),
    ),
    Mutant(
        "passing-not-noted",
        _SUSPECTS,
        "            record.asked = ()\n",
        "",
        "Rows that have passed are suspected of the next death.",
        (
            "job/execution/replica/test_poison_rows.py::test_who_has_passed_and_waits_for_his_next_turn_is_cleared",
        ),
    ),
    Mutant(
        "waiting-suspects-not-narrowed",
        _SUSPECTS,
        "            self._told[item] = narrowed(self._told[item], record.asked)\n",
        "",
        "After another death, rows that have passed are suspects again.",
        (
            "job/execution/replica/test_replica_and_board.py::test_rows_that_have_passed_are_not_suspected_of_what_comes_after",
        ),
    ),
    Mutant(
        "explained-deaths-clear-nobody",
        _SUSPECTS,
        "            if told.process in self._explained:\n                told = Suspicion(True)\n",
        "",
        "Rows stay suspected of a death that another row is known to have caused: more restarts.",
        (
            "job/execution/replica/test_poison_rows.py::test_who_waited_for_his_turn_when_another_died_alone_is_cleared",
        ),
    ),
    Mutant(
        "repetition-not-told",
        _SUSPECTS,
        "told = Suspicion(item in self._ended)",
        "told = Suspicion()",
        "A chunk whose end never reached Ray is paid for and written twice.",
        (
            "job/execution/replica/test_replica.py::test_a_chunk_whose_end_never_reached_ray_is_not_paid_for_again",
        ),
    ),
    Mutant(
        "waiting-chunk-not-repeated",
        _SUSPECTS,
        "told = replace(self._told[item], repeated=True)",
        "told = self._told[item]",
        "A chunk that waited for its turn when its process died is paid for and written twice.",
        (
            "job/monitor/test_poison_rows.py::test_a_chunk_that_waits_for_its_turn_may_have_rows_that_are_written",
        ),
    ),
    Mutant(
        "the-dead-have-their-say",
        _SUSPECTS,
        "return record is not None and record.process == process and process not in self._known_dead",
        "return record is not None",
        "The last words of a process clear, or end, the chunk that another one has by then.",
        ("job/monitor/test_poison_rows.py",),
    ),
    Mutant(
        "deaths-never-end",
        _SUSPECTS,
        "return max(self._deaths[replica] - found - 1, found)",
        "return 0",
        "An engine that dies of everything is restarted for ever.",
        (
            "job/execution/replica/test_poison_rows.py::test_giving_up_takes_two_deaths_and_two_for_each_restart_at_most",
        ),
    ),
    Mutant(
        "deaths-are-not-forgiven",
        _SUSPECTS,
        "        self._deaths[replica] = self._found[replica] = 0\n",
        "        self._found[replica] = 0\n",
        "A long job fails after a few deaths over days.",
        ("job/execution/replica/test_poison_rows.py::test_processes_of_the_same_number_are_told_apart",),
    ),
    Mutant(
        "finished-rows-not-told",
        "job/execution/replica/replica.py",
        "            self._board.finished.remote(self._actor)\n",
        "            pass\n",
        "A long job fails after a few deaths over days.",
        (
            "job/execution/replica/test_replica_and_board.py::test_a_finished_row_makes_up_for_the_deaths_before_it",
        ),
    ),
    Mutant(
        "killers-that-were-found-count-as-deaths",
        _SUSPECTS,
        "self._found[replica] = self._found.get(replica, 0) + 1",
        "self._found[replica] = 0",
        "A job with several rows that kill fails before the search has found them.",
        ("job/execution/replica/test_poison_rows.py",),
    ),
    Mutant(
        "no-single-rows",
        _SUSPECTS,
        "    if suspicion.deaths >= _DEATHS_BEFORE_SINGLE_ROWS:\n",
        "    if suspicion.deaths < 0:\n",
        "Where only rows that kill are left, the search does not end.",
        ("job/execution/replica/test_poison_rows.py::test_after_two_deaths_in_a_row_a_single_row_is_tried",),
    ),
    Mutant(
        "suspects-before-others",
        _SUSPECTS,
        "((others or suspected)[-1],)",
        "((suspected or others)[-1],)",
        "To see whether an engine works at all, it is given the rows that have just killed it.",
        ("job/execution/replica/test_poison_rows.py::test_after_two_deaths_in_a_row_a_single_row_is_tried",),
    ),
    Mutant(
        "killer-beside-a-stranger",
        _GATE,
        "return not self._inside or self._group == name",
        "return True",
        "Innocent rows die with those that are tried.",
        ("job/execution/replica/test_gate.py::test_groups_never_overlap",),
    ),
    Mutant(
        "suspects-wait-for-ever",
        _GATE,
        "        if name is None and self._waiting:\n            return False\n",
        "",
        "Rows that were in a dead engine are never asked while other chunks come.",
        ("job/execution/replica/test_gate.py::test_normal_users_yield_to_groups",),
    ),
)
