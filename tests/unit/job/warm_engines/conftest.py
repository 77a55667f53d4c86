# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.support.warm_actor import cluster, engine  # noqa: F401 - fixtures
