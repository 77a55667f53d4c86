# SPDX-License-Identifier: Apache-2.0
"""Points between two steps are struck: nothing is lost, paid twice or published twice.

The run with most of them; `make kill-points` strikes each.
"""

from __future__ import annotations

import pytest

from tests.support.s3_server import serving

from .journeys import journeys
from .striking import together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PARALLEL = 6
_FROZEN_TASK, _FROZEN_DRIVER, FIRST, *_ = journeys(0)


def test_a_run_survives_its_strikes(world, tmp_path_factory):
    with serving() as server:
        outcomes = together(world, (FIRST,), PARALLEL, print, tmp_path_factory.mktemp("flawed"), server)
    assert outcomes
    assert [str(one) for one in outcomes if one.flaws] == []
