# SPDX-License-Identifier: Apache-2.0
"""The hook: an Airflow connection as a way to a Ray cluster."""
