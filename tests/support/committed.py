# SPDX-License-Identifier: Apache-2.0
"""The last line of a driver that published a dataset."""

from __future__ import annotations

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.run_numbers import Tokens

KEY = "ab" * 32
SUMMARY = Summary(uri="/o", manifest_uri="/m", format="parquet", rows=3, errors=1, tokens=Tokens(output=7))
COMMITTED = events.line(events.Committed(summary=SUMMARY), KEY, 90)
