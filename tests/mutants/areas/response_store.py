# SPDX-License-Identifier: Apache-2.0
"""The shared store of responses: the order of its writes and deletions."""

from __future__ import annotations

from ..mutant import Mutant

_STORE = "job/reuse/store/store.py"
_COMPACTION = "job/reuse/store/compaction.py"
_DATA = "job/reuse/store/data.py"
_INDEX = "job/reuse/store/index.py"
_ADDING = "job/reuse/store/test_adding.py"
_COMPACTING = "job/reuse/store/test_compaction.py"
_SWEEPING = "job/reuse/store/test_sweeping.py"
_LOOK_UP = "job/reuse/store/test_look_up.py"
_EXPIRY = "job/reuse/store/test_expiry.py"
_DAMAGE = "job/reuse/store/test_damage.py"
_CRASH = "model/test_store.py::test_every_single_crash"
_FROZEN = "model/test_store.py::test_frozen_at_every_step_while_another_acts"

MUTANTS = (
    Mutant(
        "mark-before-the-index",
        _STORE,
        """\
            entries = by_key(self._entries(written, at))
            for number""",
        """\
            entries = by_key(self._entries(written, at))
            self.folder.write(f"{STORE_DATA}/{driver}/{STORE_WHOLE}", b"{}")
            for number""",
        "A driver that is killed in between has stored nothing, and no other one stores it.",
        (_ADDING,),
    ),
    Mutant(
        "mark-before-the-data",
        _STORE,
        "            written = data.write(self.folder, driver, tables, at)\n",
        '            self.folder.write(f"{STORE_DATA}/{driver}/{STORE_WHOLE}", b"{}")\n'
        "            written = data.write(self.folder, driver, tables, at)\n",
        "A driver that is killed in between has stored nothing, nor has one whose store fails.",
        (_ADDING,),
    ),
    Mutant(
        "stored-once-more",
        _STORE,
        "        if self.holds(driver):\n            return 0\n",
        "",
        "Each retry stores its rows again as new ones, which never expire.",
        (_ADDING,),
    ),
    Mutant(
        "merged-segments-deleted-first",
        _COMPACTION,
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
        (_CRASH,),
    ),
    Mutant(
        "slower-merge-leaves-its-doubles",
        _COMPACTION,
        "        folder.delete(made)\n",
        "        pass\n",
        "Two merges at once leave duplicate segments.",
        (_COMPACTING,),
    ),
    Mutant(
        "slower-merge-deletes-all-the-same",
        _COMPACTION,
        "    except UnusableError:\n        folder.delete(made)\n        return 0, 0\n",
        "    except UnusableError:\n        pass\n",
        "Of two merges at once, the slower deletes segments that it could not read to the end.",
        (_COMPACTING,),
    ),
    Mutant(
        "index-read-before-data-is-listed",
        _COMPACTION,
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
        ("job/reuse/store/test_sweeping.py::test_add_by_a_late_clock_before_each_listing_of_a_sweep",),
    ),
    Mutant(
        "data-of-unreadable-segments-deleted",
        _COMPACTION,
        "    if len(unusable) > before:\n",
        "    if len(unusable) < before:\n",
        "One damaged segment of the index costs all data that it names.",
        (_COMPACTING,),
    ),
    Mutant(
        "no-grace-for-an-add",
        _COMPACTION,
        "stored_at(path) < now - grace",
        "stored_at(path) < now + 1",
        "Data that an add is about to name is deleted.",
        (_COMPACTING,),
    ),
    Mutant(
        "no-grace-for-a-reader",
        _COMPACTION,
        "entries = by_key(entries.take(entries.until > now - grace))",
        "entries = by_key(entries.take(entries.until > now))",
        "Hits that expire between look-up and reading are paid for again.",
        (_COMPACTING,),
    ),
    Mutant(
        "younger-answer-that-expires-sooner-wins",
        _COMPACTION,
        "~first & (entries.until <= entries.until[newest]) & (",
        "~first & (",
        "An answer that was meant to be kept is dropped for one that expires sooner.",
        (_COMPACTING, _EXPIRY),
    ),
    Mutant(
        "superseded-at-once",
        _COMPACTION,
        " & (entries.at[newest] < now - grace)",
        "",
        "After a look-up, the file of an answer is gone.",
        (_COMPACTING, _SWEEPING),
    ),
    Mutant(
        "index-listed-once",
        _INDEX,
        "        if not fresh:\n            return\n",
        "        if not fresh or seen:\n            return\n",
        "A look-up beside a merge misses answers and pays for them again.",
        (_FROZEN,),
    ),
    Mutant(
        "oldest-answer-wins",
        _INDEX,
        "newer = entries.at > at[position]",
        "newer = (entries.at < at[position]) | (at[position] < 0)",
        "A look-up prefers the old answer to the regenerated one.",
        (_LOOK_UP,),
    ),
    Mutant(
        "expired-answers-are-hits",
        _INDEX,
        "alive = (entries.until[index] > now) & (entries.at[index] >= since)",
        "alive = entries.at[index] >= since",
        "An answer that has expired is given out.",
        (_EXPIRY,),
    ),
    Mutant(
        "too-old-answers-are-hits",
        _INDEX,
        "alive = (entries.until[index] > now) & (entries.at[index] >= since)",
        "alive = entries.until[index] > now",
        "`max_age` is ignored.",
        (_EXPIRY,),
    ),
    Mutant(
        "another-requests-response",
        _DATA,
        "        return pa.table(columns).filter(pa.array(right))\n",
        "        return pa.table(columns)\n",
        "With a wrong or outdated index, a row gets the answer of another request.",
        (_DAMAGE,),
    ),
)
