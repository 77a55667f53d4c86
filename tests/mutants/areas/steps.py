# SPDX-License-Identifier: Apache-2.0
"""Which completions a step asks about, and in which order they end up."""

from __future__ import annotations

from ..mutant import by_file

_FAN_OUT = "job/steps/test_fan_out.py::"

MUTANTS = by_file({
    "job/tasks/completions.py": {
        "bad-completions-are-asked-about": (
            "return good or list(range(len(found)))",
            "return list(range(len(found)))",
            "A judge is paid for drafts that are not what was asked for.",
            f"{_FAN_OUT}test_good_completions_come_first_and_are_asked_about",
        ),
        "rows-keep-their-first-completion": (
            "columns[_of_row(name)] = column.take(own)",
            "pass",
            "The response is the first draft, and the list of drafts says that it is the best.",
            f"{_FAN_OUT}test_the_best_completion_is_the_rows_response",
        ),
    },
    "job/steps/each.py": {
        "all-are-asked-about-the-first": (
            "base({**row, **_at(place, row)})",
            "base({**_at(place, row), **row})",
            "Each answer is about the first completion, so the ranking says nothing.",
            f"{_FAN_OUT}test_the_best_completion_is_the_rows_response",
        ),
        "a-repair-stands-beside-the-first-draft": (
            "for name, one in step.family.items()}",
            "for name, one in [*step.family.items()][-1:]}",
            "A judge compares each repair with the first draft.",
            f"{_FAN_OUT}test_steps_between_keep_their_completions_beside_the_others",
        ),
    },
    "job/steps/ranking.py": {
        "other-steps-keep-their-order": (
            "for one in step.family.values()]",
            "for one in [*step.family.values()][-1:]]",
            "The best repair stands beside another draft than the one that it repairs.",
            f"{_FAN_OUT}test_steps_between_keep_their_completions_beside_the_others",
        ),
    },
    "job/steps/reusing.py": {
        "stored-answers-rank-nothing": (
            "return ranking.by_outputs([(one.rows, one.place) for one in stand], outputs)",
            "return [(one.rows, one.place) for one in stand]",
            "Where a judgement is found in the store, it stands beside the first draft.",
            f"{_FAN_OUT}test_answers_are_found_with_their_order",
        ),
    },
    "job/tasks/step_check.py": {
        "the-worst-comes-first": (
            "good.sort(key=lambda one: -one[0])",
            "good.sort(key=lambda one: one[0])",
            "The dataset has the worst draft of each row.",
            f"{_FAN_OUT}test_the_best_completion_is_the_rows_response",
        ),
        "one-bad-completion-fails-its-row": (
            "if not good and not step.goes_on_rejected:",
            "if failures and not step.goes_on_rejected:",
            "A row with three good drafts of four is a dead letter.",
            f"{_FAN_OUT}test_good_completions_come_first_and_are_asked_about",
        ),
    },
    "job/request/keys.py": {
        "groups-have-the-key-of-their-first": (
            'b"".join(map(self.key, request.each))',
            "self.key(request.each[0])",
            "Rows that share their first draft share the judgement of all drafts.",
            "job/request/test_keys.py::test_the_key_of_a_group_is_over_all_its_requests",
        ),
    },
})
