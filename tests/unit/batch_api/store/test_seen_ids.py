# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.batch_api.store.validation import SeenIds


@given(st.lists(st.text(st.sampled_from("aé\U0001f600"), max_size=3), max_size=60))
def test_each_repeated_id_has_its_first_line(ids: list[str]) -> None:
    seen = SeenIds()
    for line, one in enumerate(ids, 1):
        seen.add(one, line)
    wanted = [(line, ids.index(one) + 1) for line, one in enumerate(ids, 1) if ids.index(one) + 1 < line]
    assert sorted(seen.repeated()) == wanted


def test_texts_that_only_look_alike_differ() -> None:
    seen = SeenIds()
    for line, one in enumerate(["\u00e9", "e\u0301", "E", "e", " e", "e\0"], 1):
        seen.add(one, line)
    assert list(seen.repeated()) == []


def test_an_id_takes_few_bytes() -> None:
    tracemalloc.start()
    try:
        seen = SeenIds()
        for line in range(50_000):
            seen.add(f"request-{line}", line)
        held, _ = tracemalloc.get_traced_memory()
        assert list(seen.repeated()) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 26 * 50_000
    assert most < 30 * 50_000
