# SPDX-License-Identifier: Apache-2.0
"""Which runs of a task are older than one that has claimed."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.submission import new_run_token
from airflow_provider_raybatch.job.output.journal import is_overtaken

ONE, TWO, THREE = (new_run_token(number) for number in (1, 2, 3))
AGAIN_ONE, AGAIN_TWO = new_run_token(1), new_run_token(2)


@pytest.mark.parametrize(
    ("claimed", "token", "overtaken"),
    [
        pytest.param([], ONE, False, id="the first"),
        pytest.param([ONE], ONE, False, id="its retry"),
        pytest.param([ONE], TWO, False, id="its clear"),
        pytest.param([ONE, TWO], ONE, True, id="the cleared one, which had claimed"),
        pytest.param([TWO], ONE, True, id="the cleared one, which had not"),
        pytest.param([ONE, THREE], TWO, True, id="the one in between"),
        pytest.param([ONE, TWO, TWO], TWO, False, id="the newest again"),
        pytest.param([new_run_token(9)], new_run_token(10), False, id="counted, not spelled"),
        pytest.param([ONE, TWO], AGAIN_ONE, False, id="DAG run deleted and made again"),
        pytest.param([ONE, TWO, AGAIN_ONE], AGAIN_ONE, False, id="its retry there"),
        pytest.param([ONE, TWO, AGAIN_ONE], AGAIN_TWO, False, id="its clear there"),
        pytest.param([ONE, TWO, AGAIN_ONE], TWO, True, id="the deleted one"),
        pytest.param([ONE, TWO, AGAIN_ONE], ONE, True, id="the first of the deleted one"),
        pytest.param([ONE, TWO, AGAIN_ONE, AGAIN_TWO], AGAIN_ONE, True, id="the cleared one there"),
        pytest.param([ONE, TWO, AGAIN_ONE, AGAIN_TWO], TWO, True, id="the deleted one after that"),
    ],
)
def test_older_run_is_distinguished_from_a_newer_one(claimed: list[str], token: str, overtaken: bool) -> None:
    assert is_overtaken(token, claimed) is overtaken
