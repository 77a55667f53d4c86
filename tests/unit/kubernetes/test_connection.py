# SPDX-License-Identifier: Apache-2.0
"""Which API server a connection means, and with whose credentials."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import redact

from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException, RayConnectionError
from airflow_provider_raybatch.kubernetes.api import kubeconfig
from airflow_provider_raybatch.kubernetes.api.errors import KubernetesLoginError
from airflow_provider_raybatch.kubernetes.api.kubeconfig import Kubeconfig, kubeconfig_server
from airflow_provider_raybatch.kubernetes.api.server import ApiServer
from airflow_provider_raybatch.kubernetes.connection import KubernetesServerHook
from tests.support.approved import AssertSentences

pytest.importorskip("kubernetes_asyncio")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No pod, and no kubeconfig."""
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "AIRFLOW_CONN_KUBERNETES_DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process runs in a pod; the folder of its service account."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, text in {"token": "pod-token\n", "ca.crt": "pem", "namespace": "airflow"}.items():
        (folder / name).write_text(text)
    monkeypatch.setattr("airflow_provider_raybatch.kubernetes.api.server.FOLDER", folder)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the connection ``kubernetes_default`` with these fields."""

    def make(conn_type: str = "kubernetes", **extra: Any) -> None:
        text = json.dumps({"conn_type": conn_type, "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)

    return make


def config(user: dict[str, Any], server: str = "http://api:8001", **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}},
        ],
    }


def header(server: ApiServer) -> str | None:
    return asyncio.run(server.access.login.header())


def both(conn_id: str | None = "kubernetes_default") -> ApiServer:
    """What blocking and asynchronous code find, which is the same."""
    hook = KubernetesServerHook(conn_id)
    found = hook.server()
    again = asyncio.run(hook.aserver())
    assert (found.url, found.namespace, found.verify) == (again.url, again.namespace, again.verify)
    return again


@pytest.mark.usefixtures("pod")
def test_a_pod_has_credentials_without_any_connection() -> None:
    for conn_id in ("kubernetes_default", None):
        found = both(conn_id)
        assert (found.url, found.namespace, found.inside) == ("https://[fd00::1]:443", "airflow", True)
        assert str(found.verify).endswith("ca.crt")
        assert header(found) == "Bearer pod-token"


async def test_a_pods_token_is_read_again(pod: Path) -> None:
    login = KubernetesServerHook().server().access.login
    assert await login.header() == "Bearer pod-token"
    (pod / "token").write_text("next")
    login.refused("Bearer pod-token")
    assert await login.header() == "Bearer next"
    (pod / "token").unlink()
    with pytest.raises(KubernetesLoginError, match="automountServiceAccountToken"):
        await login.header()


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("form", [dict, json.dumps])
def test_a_kubeconfig_in_the_connection_wins(connection: Callable[..., None], form: Any) -> None:
    connection(kube_config=form(config({"token": "mine"})), namespace="named")
    found = both()
    assert (found.url, found.namespace, found.inside) == ("http://api:8001", "named", False)
    assert header(found) == "Bearer mine"


def test_secrets_of_a_kubeconfig_are_masked(connection: Callable[..., None]) -> None:
    """Also those of its exec plugin's environment; names of files and regions stay readable."""
    environment = [
        {"name": "AWS_SECRET_ACCESS_KEY", "value": "hidden-1"},
        {"name": "REGION", "value": "shown-1"},
    ]
    user = {"token": "hidden-2", "client-key-data": "hidden-3", "tokenFile": "shown-2", "x": environment}
    user |= {"password": "hidden-4", "username": "shown-3"}
    connection(kube_config=json.dumps(config({k: v for k, v in user.items() if k != "tokenFile"})))
    both()
    told = redact("hidden-1 hidden-2 hidden-3 hidden-4 shown-1 shown-2 shown-3")
    assert told == "*** *** *** *** shown-1 shown-2 shown-3"


@pytest.mark.usefixtures("pod")
def test_a_context_is_one_of_a_kubeconfig(
    connection: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(config({"token": "mine"})))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert both().inside
    connection(cluster_context="two")
    assert (both().url, both().namespace) == ("http://api:8001", "default")
    connection(in_cluster="false")
    assert both().namespace == "team"
    connection(in_cluster=True, disable_verify_ssl=True)
    assert (both().inside, both().verify) == (True, False)


def test_a_kubeconfigs_tls_is_kept(connection: Callable[..., None], tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name)
    files = {"client-certificate": str(tmp_path / "cert"), "client-key": str(tmp_path / "key")}
    more = {"certificate-authority": str(tmp_path / "ca"), "tls-server-name": "n", "proxy-url": "http://p:1"}
    connection(kube_config=config(files, "https://api", **more))
    found = both()
    certificate = found.access.certificate
    assert certificate is not None
    assert (certificate.certificate, certificate.key) == (str(tmp_path / "cert"), str(tmp_path / "key"))
    assert (found.verify, found.access.server_name) == (str(tmp_path / "ca"), "n")
    assert (found.access.proxy, header(found)) == ("http://p:1", None)
    connection(kube_config=config(files, "https://api", **{"insecure-skip-tls-verify": True}))
    assert both().verify is False


def plugin(tmp_path: Path, script: str) -> dict[str, Any]:
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{script}\n")
    path.chmod(0o700)
    return {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "args": ["a b", "$c"]}
    }


def credential(**status: str) -> str:
    return json.dumps({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status,
    })  # fmt: skip


def runs(tmp_path: Path) -> int:
    return (tmp_path / "runs").read_text().count("run")


async def test_an_exec_plugin_runs_when_its_token_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten requests at once have it run once. It can't read this process's standard input."""
    reader, writer = os.pipe()
    os.write(writer, b"for the supervisor")
    monkeypatch.setattr(kubeconfig, "_LOAD_AGAIN", 0.0)

    def given(seconds: float) -> dict[str, Any]:
        until = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = credential(token="t", expirationTimestamp=until)
        return plugin(tmp_path, f"cat\n[ \"$1$2\" = 'a b$c' ] || exit 1\ncat <<'END'\n{answer}\nEND")

    kept = os.dup(0)
    os.dup2(reader, 0)
    try:
        found = kubeconfig_server(Kubeconfig(config(given(30))))
        assert runs(tmp_path) == 1
        given(3600)
        await asyncio.gather(*(found.access.login.header() for _ in range(10)))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert runs(tmp_path) == 2
    os.close(writer)
    assert os.read(reader, 100) == b"for the supervisor"
    os.close(reader)


async def test_a_token_outlives_a_plugin_that_fails(tmp_path: Path) -> None:
    """A moment without network must not fail a task whose token still holds."""
    soon = (datetime.now(UTC) + timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = credential(token="t", expirationTimestamp=soon)
    user = plugin(tmp_path, f"cat <<'END'\n{answer}\nEND")
    login = kubeconfig_server(Kubeconfig(config(user))).access.login
    plugin(tmp_path, "exit 1")
    assert isinstance(login, kubeconfig.KubeconfigLogin)
    expire(login)
    assert [await login.header(), await login.header()] == ["Bearer t", "Bearer t"]
    assert runs(tmp_path) == 2
    login.refused("Bearer t")
    with pytest.raises(KubernetesLoginError, match="exec plugin fails"):
        await login.header()


def expire(login: kubeconfig.KubeconfigLogin) -> None:
    assert login._loaded is not None
    login._loaded = replace(login._loaded, load_again=0.0)


async def test_an_exec_plugin_runs_when_its_token_is_refused(tmp_path: Path) -> None:
    script = f"cat <<'END'\n{credential(token='t')}\nEND"
    login = kubeconfig_server(Kubeconfig(config(plugin(tmp_path, script)))).access.login
    assert [await login.header(), await login.header()] == ["Bearer t", "Bearer t"]
    assert runs(tmp_path) == 1
    login.refused("Bearer another")
    await login.header()
    assert runs(tmp_path) == 1
    login.refused("Bearer t")
    await login.header()
    assert runs(tmp_path) == 2


def test_an_exec_plugin_that_fails_says_why(tmp_path: Path, connection: Callable[..., None]) -> None:
    connection(kube_config=config(plugin(tmp_path, "echo 'Your session\nhas expired' >&2; exit 3")))
    with pytest.raises(
        RayBatchFailException,
        match=r"exec plugin fails \(exec: process returned 3\. Your session has expired\)",
    ):
        KubernetesServerHook().server()


@pytest.mark.usefixtures("pod")
def test_a_pod_that_may_not_use_its_account_is_told(connection: Callable[..., None]) -> None:
    """Forms have stored an unchecked box as false."""
    connection(in_cluster=False)
    with pytest.raises(RayConnectionError, match="nor a pod's service account that field in_cluster allows"):
        KubernetesServerHook().server()


def test_an_exec_plugin_that_is_missing_says_so() -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}
    sentence = r"exec plugin fails \(exec: no-such-plugin can't be started: No such file or directory\)"
    with pytest.raises(KubernetesLoginError, match=sentence):
        kubeconfig_server(Kubeconfig(config(user)))


def test_an_exec_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try would leave a process behind: one a minute in a triggerer without network."""
    pid = tmp_path / "pid"
    pid.touch()
    user = plugin(tmp_path, f"echo $$ > {pid}\nexec sleep 600")
    for seconds in (0.5, 5, 50):  # a busy machine may start it late
        monkeypatch.setattr(kubeconfig, "_LOAD_SECONDS", seconds)
        with pytest.raises(KubernetesLoginError, match="gave no credentials within"):
            kubeconfig_server(Kubeconfig(config(user)))
        if pid.read_text():
            break
    status = Path(f"/proc/{pid.read_text().strip()}/status")
    while status.exists() and "zombie" not in status.read_text():  # within the test's own timeout
        time.sleep(0.01)


async def test_a_token_in_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    login = kubeconfig_server(Kubeconfig(config({"tokenFile": str(path)}))).access.login
    path.write_text("two")
    assert await login.header() == "Bearer one"
    login.refused("Bearer one")
    assert await login.header() == "Bearer two"


def test_each_bad_field_is_one_sentence(
    connection: Callable[..., None], assert_sentences: AssertSentences
) -> None:
    def found(**extra: Any) -> None:
        connection(**extra)
        with pytest.raises(RayBatchFailException) as caught:
            asyncio.run(KubernetesServerHook().aserver())
        assert "hush" not in str(caught.value)
        with pytest.raises(RayBatchFailException, match=re.escape(str(caught.value))):
            KubernetesServerHook().server()
        raise caught.value

    assert_sentences(found, RayBatchFailException)


def test_a_missing_or_other_connection_is_named(connection: Callable[..., None]) -> None:
    with pytest.raises(RayBatchException, match="Connection 'nowhere' was not found"):
        KubernetesServerHook("nowhere").server()
    connection(conn_type="http")
    with pytest.raises(RayConnectionError, match="its type is 'http'"):
        KubernetesServerHook().server()
