# SPDX-License-Identifier: Apache-2.0
"""Points between two steps are struck: nothing is lost, paid twice or published twice.

Each commit plays the run with most of them, `make test-all` plays a run for each point.
"""

from __future__ import annotations

import pytest

from tests.support.s3_server import serving

from .journeys import journeys
from .striking import together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PARALLEL = 6
FROZEN_TASK, FROZEN_DRIVER, FIRST, *OTHERS = journeys(0)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((FIRST,), id="each commit"),
        pytest.param(
            (FROZEN_TASK, FROZEN_DRIVER, *OTHERS),
            id="others",
            marks=pytest.mark.thorough("strikes at each point between two steps; seven run always"),
        ),
    ],
)
def outcomes(request, world, tmp_path_factory):
    with serving() as server:
        return together(world, request.param, PARALLEL, print, tmp_path_factory.mktemp("flawed"), server)


def test_runs_survive_their_strikes(outcomes):
    assert outcomes
    assert [str(one) for one in outcomes if one.flaws] == []
