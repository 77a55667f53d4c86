# SPDX-License-Identifier: Apache-2.0
"""The Batch API as OpenAI's clients speak it, on Airflow's API server."""
