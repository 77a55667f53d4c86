# SPDX-License-Identifier: Apache-2.0
"""The shared store of responses: the order of its writes and deletions."""

from __future__ import annotations

from ..mutant import by_file

_ADDING = "job/reuse/store/test_adding.py"
_COMPACTING = "job/reuse/store/test_compaction.py"
_SWEEPING = "job/reuse/store/test_sweeping.py"
_EXPIRY = "job/reuse/store/test_expiry.py"

MUTANTS = by_file({
    "job/reuse/store/store.py": {
        "mark-before-the-index": (
            """\
            entries = by_key(self._entries(written, at))
            for number""",
            """\
            entries = by_key(self._entries(written, at))
            self.folder.write(f"{STORE_DATA}/{driver}/{STORE_WHOLE}", b"{}")
            for number""",
            "A driver that is killed in between has stored nothing, and no other one stores it.",
            _ADDING,
        ),
        "mark-before-the-data": (
            "            written = data.write(self.folder, driver, tables, at)\n",
            '            self.folder.write(f"{STORE_DATA}/{driver}/{STORE_WHOLE}", b"{}")\n'
            "            written = data.write(self.folder, driver, tables, at)\n",
            "A driver that is killed in between has stored nothing, nor has one whose store fails.",
            _ADDING,
        ),
        "stored-once-more": (
            "        if self.holds(driver):\n            return 0\n",
            "",
            "Each retry stores its rows again as new ones, which never expire.",
            _ADDING,
        ),
    },
    "job/reuse/store/compaction.py": {
        "merged-segments-deleted-first": (
            """\
    borders = [2**64 * share // shares for share in range(shares + 1)]
    try:
""",
            """\
    borders = [2**64 * share // shares for share in range(shares + 1)]
    for entry, one in chosen:
        one.load_for(2**30)
    folder.delete([entry.path for entry, _ in chosen])
    try:
""",
            "A merge that is killed loses all answers of its segments.",
            "model/test_store.py::test_every_single_crash",
        ),
        "slower-merge-leaves-its-doubles": (
            "        folder.delete(made)\n",
            "        pass\n",
            "Two merges at once leave duplicate segments.",
            _COMPACTING,
        ),
        "slower-merge-deletes-all-the-same": (
            "    except UnusableError:\n        folder.delete(made)\n        return 0, 0\n",
            "    except UnusableError:\n        pass\n",
            "Of two merges at once, the slower deletes segments that it could not read to the end.",
            _COMPACTING,
        ),
        "index-read-before-data-is-listed": (
            """\
    files = [entry.path for entry in folder.list(STORE_DATA)]
    before = len(unusable)
    named = {name for names in visit(folder, lambda one: one.files, unusable) for name in names}
""",
            """\
    before = len(unusable)
    named = {name for names in visit(folder, lambda one: one.files, unusable) for name in names}
    files = [entry.path for entry in folder.list(STORE_DATA)]
""",
            "Data that came between the two, with an old date, is deleted and still named.",
            f"{_SWEEPING}::test_add_by_a_late_clock_before_each_listing_of_a_sweep",
        ),
        "data-of-unreadable-segments-deleted": (
            "    if len(unusable) > before:\n",
            "    if len(unusable) < before:\n",
            "One damaged segment of the index costs all data that it names.",
            _COMPACTING,
        ),
        "no-grace-for-an-add": (
            "stored_at(path) < now - grace",
            "stored_at(path) < now + 1",
            "Data that an add is about to name is deleted.",
            _COMPACTING,
        ),
        "no-grace-for-a-reader": (
            "entries = by_key(entries.take(entries.until > now - grace))",
            "entries = by_key(entries.take(entries.until > now))",
            "Hits that expire between look-up and reading are paid for again.",
            _COMPACTING,
        ),
        "younger-answer-that-expires-sooner-wins": (
            "~first & (entries.until <= entries.until[newest]) & (",
            "~first & (",
            "An answer that was meant to be kept is dropped for one that expires sooner.",
            _COMPACTING,
            _EXPIRY,
        ),
        "superseded-at-once": (
            " & (entries.at[newest] < now - grace)",
            "",
            "After a look-up, the file of an answer is gone.",
            _COMPACTING,
            _SWEEPING,
        ),
    },
    "job/reuse/store/index.py": {
        "index-listed-once": (
            "        if not fresh:\n            return\n",
            "        if not fresh or seen:\n            return\n",
            "A look-up beside a merge misses answers and pays for them again.",
            "model/test_store.py::test_frozen_at_every_step_while_another_acts",
        ),
        "oldest-answer-wins": (
            "newer = entries.at > at[position]",
            "newer = (entries.at < at[position]) | (at[position] < 0)",
            "A look-up prefers the old answer to the regenerated one.",
            "job/reuse/store/test_look_up.py",
        ),
        "expired-answers-are-hits": (
            "alive = (entries.until[index] > now) & (entries.at[index] >= since)",
            "alive = entries.at[index] >= since",
            "An answer that has expired is given out.",
            _EXPIRY,
        ),
        "too-old-answers-are-hits": (
            "alive = (entries.until[index] > now) & (entries.at[index] >= since)",
            "alive = entries.until[index] > now",
            "`max_age` is ignored.",
            _EXPIRY,
        ),
    },
    "job/reuse/store/data.py": {
        "another-requests-response": (
            "        return pa.table(columns).filter(pa.array(right))\n",
            "        return pa.table(columns)\n",
            "With a wrong or outdated index, a row gets the answer of another request.",
            "job/reuse/store/test_damage.py",
        ),
    },
})
