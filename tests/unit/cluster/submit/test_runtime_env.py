# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import copy
import io
import zipfile
from datetime import date  # noqa: F401 - messages.txt uses it

import pytest

from airflow_provider_raybatch.cluster.submit.runtime_env import (
    KNOWN,
    KNOWN_OF_CONFIG,
    upload_runtime_env,
    with_packages,
)
from airflow_provider_raybatch.contract.failures import SpecError
from tests.support.approved import AssertSentences


def stored(ray, uri):
    return zipfile.ZipFile(io.BytesIO(ray.packages[uri.removeprefix("gcs://")])).namelist()


async def test_local_folders_become_packages(ray, client, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/main.py").write_text("1")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").write_text("2")
    (tmp_path / "single.py").write_text("3")
    given = {
        "working_dir": str(tmp_path / "work"),
        "py_modules": [tmp_path / "lib", str(tmp_path / "single.py"), "s3://bucket/x.zip"],
        "env_vars": {"A": "1"},
        "pip": ["emoji"],
    }
    before = copy.deepcopy(given)
    made = await upload_runtime_env(client, given)
    assert given == before
    assert stored(ray, made["working_dir"]) == ["main.py"]
    assert [stored(ray, uri) for uri in made["py_modules"][:2]] == [["lib/__init__.py"], ["single.py"]]
    assert made["py_modules"][2] == "s3://bucket/x.zip"
    assert (made["env_vars"], made["pip"]) == ({"A": "1"}, ["emoji"])


async def test_only_what_the_cluster_lacks_is_uploaded(ray, client, tmp_path):
    given = {"working_dir": "https://host/work.zip", "py_modules": ["gcs://_ray_pkg_a.zip"]}
    assert await upload_runtime_env(client, given) == given
    assert await upload_runtime_env(client, None) == {}
    assert ray.requests == []
    (tmp_path / "main.py").write_text("1")
    for _ in range(2):
        await upload_runtime_env(client, {"working_dir": str(tmp_path)})
    assert ray.count("PUT") == 1


def test_a_users_working_dir_is_refused():
    with pytest.raises(SpecError, match=r"^runtime_env\.working_dir: .*'s3://w\.zip' can't be used"):
        with_packages({"working_dir": "s3://w.zip"}, working_dir="gcs://w.zip", py_modules=[])


async def test_a_plugin_s_key_is_taken_with_a_warning(client, caplog):
    """A cluster may have plugins, whose keys only it knows."""
    plugins = ["team_cache", "conda_pack", "my_pip", "container_mounts", "hf_config"]
    given = {**dict.fromkeys(plugins, "/x"), "env_vars": {}, "config": {"setup_timeout_seconds": 900}}
    assert await upload_runtime_env(client, given) == given
    assert sorted(caplog.messages) == [
        f"runtime_env.{name}: Ray ignores this key, unless the cluster has a plugin of that name."
        for name in sorted(plugins)
    ]


def test_the_keys_of_this_ray_are_known():
    runtime_env = pytest.importorskip("ray.runtime_env")
    known = set(runtime_env.RuntimeEnv.known_fields)
    assert known <= KNOWN
    assert set(runtime_env.RuntimeEnvConfig.known_fields) <= KNOWN_OF_CONFIG


def test_wrong_entries_are_one_sentence(assert_sentences: AssertSentences) -> None:
    def refused(runtime_env):
        asyncio.run(upload_runtime_env(None, runtime_env))

    assert_sentences(refused, SpecError)
