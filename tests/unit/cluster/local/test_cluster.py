# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import importlib.util
import os
import tempfile

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import EmbeddedClusterError
from airflow_provider_raybatch.cluster.local.head import _turn, embedded_cluster


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"airflow-provider-raybatch-{os.getuid()}.lock"


def test_a_lock_that_is_not_ours(lock, monkeypatch):
    elsewhere = lock.with_name("elsewhere")
    lock.symlink_to(elsewhere)
    with pytest.raises(EmbeddedClusterError, match=f"The lock file {lock} "):
        embedded_cluster(print).__enter__()
    assert not elsewhere.exists()
    lock.unlink()
    found = os.fstat
    monkeypatch.setattr(os, "fstat", lambda number: os.stat_result((*found(number)[:4], 12345, *[0] * 5)))
    with pytest.raises(EmbeddedClusterError, match=f"The lock file {lock} .*another user"):
        embedded_cluster(print).__enter__()


def test_takes_its_turn(lock):
    other = os.open(lock, os.O_CREAT | os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    said = []

    def log(line):
        said.append(line)
        os.close(other)

    for _ in range(2):
        with _turn(log):
            pass
    assert said == ["Another task of this host runs its private Ray; waiting for it to end."]


def test_without_ray_the_sentence_names_the_extra(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(EmbeddedClusterError, match=r"airflow-provider-raybatch\[embedded-cpu\]") as raised:
        embedded_cluster(print).__enter__()
    assert not raised.value.failure_class.retryable
