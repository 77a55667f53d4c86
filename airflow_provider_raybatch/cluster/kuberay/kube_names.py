# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' rules for names and labels."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError

LONGEST_RAYCLUSTER = 53
"""Characters in a RayCluster's name: KubeRay adds endings for its service and pods."""

_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL = 63
_LETTERS = "lower-case letters, digits and '-'"
_WORD_RULE = "letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def check_cluster_name(field: str, value: Any) -> None:
    """Refuse what can't be a RayCluster's name."""
    rule = f"{_LETTERS}, with a letter first and no '-' last"
    _check(field, value, _DNS_1035, LONGEST_RAYCLUSTER, rule)


def check_label_name(field: str, value: Any) -> None:
    """Refuse what can't name a namespace or queue."""
    _check(field, value, _DNS_1123, _LABEL, f"{_LETTERS}, with no '-' first or last")


def check_key(field: str, key: Any) -> None:
    """Refuse what can't be the key of a label or an annotation."""
    prefix, _, word = str(key).rpartition("/")
    if prefix:
        _check(field, prefix, _SUBDOMAIN, 253, f"before the '/', {_LETTERS} and '.'")
    _check(field, word, _WORD, _LABEL, _WORD_RULE)


def check_label(field: str, value: Any) -> None:
    """Refuse what can't be the value of a label."""
    if value != "":
        _check(field, value, _WORD, _LABEL, _WORD_RULE)


def _check(field: str, value: Any, pattern: re.Pattern[str], longest: int, rule: str) -> None:
    if not isinstance(value, str):
        raise SpecError(f"{field}: {shown(value)} is not text; give a name as text.")
    if len(value) > longest:
        raise SpecError(
            f"{field}: {shown(value)} is too long by {len(value) - longest}; shorten it, since Kubernetes "
            f"takes at most {longest} here."
        )
    if not pattern.fullmatch(value):
        raise SpecError(f"{field}: {shown(value)} is not a name that Kubernetes takes here; use {rule}.")
