# SPDX-License-Identifier: Apache-2.0
"""Finished datasets, response stores and warm engines on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.filesize import decimal

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.fake_ray import FakeRay, Script
from tests.support.publishing import failure, part, publish, response
from tests.support.responses import Shop, table
from tests.support.s3_server import serving

ESCAPES = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egnp.exe \r\n end"


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", "100")

    def shown(*words: str) -> str:
        main(["show", *words])
        return capsys.readouterr().out

    return shown


def committed(path: Path, rows: list[dict[str, Any]], failed: int = 0, **arguments: Any) -> str:
    """A destination with a dataset; its last rows failed."""
    folder = LocalFolder(str(path))
    results = [response(f"r{n}") for n in range(len(rows) - failed)] + [failure(reason=ESCAPES)] * failed
    publish(folder, [part(folder, rows, results)], len(rows), **arguments)
    return str(path)


def test_table(tmp_path: Path, show: Callable[..., str]) -> None:
    place = committed(tmp_path, [{"name": f"row {n}", "number": n} for n in range(30)])
    lines = show(place, "--limit", "3").splitlines()
    assert lines[0].split()[:3] == ["name", "number", "response"]
    assert [line.split()[:4] for line in lines[2:5]] == [["row", str(n), str(n), f"r{n}"] for n in range(3)]
    assert lines[-1].startswith("3 of 30 rows of ")
    assert show(place).splitlines()[-1].startswith("20 of 30 rows")
    assert show(place, "--limit", "0").splitlines()[-1].startswith("30 of 30 rows")
    size = next((tmp_path / "data").glob("*/*.parquet")).stat().st_size
    assert lines[-1].endswith(f": 1 file, {decimal(size)}; 30 of 30 rows ok, 0 failed")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_jsonl_has_whole_values(tmp_path: Path, show: Callable[..., str], kind: str) -> None:
    text = f"{ESCAPES}{'long ' * 1000}"
    place = committed(tmp_path, [{"name": text, "number": 7}], destination_format=kind)
    shown = show(place, "--format", "jsonl")
    assert json.loads(shown)["name"] == text
    assert not set(shown) & set("\x1b\x9b\u202e\x07\r")


def test_nothing_steers_the_terminal(tmp_path: Path, show: Callable[..., str]) -> None:
    place = committed(tmp_path, [{f"na{ESCAPES}me": ESCAPES}, {"name": "x"}], failed=1)
    for words in ((), ("--failed",)):
        shown = show(place, *words)
        assert "end" in shown
        assert not set(shown) & set("\x1b\x9b\u202e\x07\r")


def test_failed_rows(tmp_path: Path, show: Callable[..., str]) -> None:
    place = committed(tmp_path, [{"name": "a"}, {"name": "b"}, {"name": "c"}], failed=2)
    lines = show(place, "--failed", "--format", "jsonl").splitlines()
    assert [json.loads(line)["row"] for line in lines] == [{"name": "b"}, {"name": "c"}]
    assert {json.loads(line)["step"] for line in lines} == {"engine"}
    assert "2 of 2 failed rows" in show(place, "--failed")


def test_without_failed_rows(tmp_path: Path, show: Callable[..., str]) -> None:
    place = committed(tmp_path, [{"name": "a"}])
    assert show(place, "--failed").startswith("0 of 0 failed rows")
    assert show(place, "--failed", "--format", "jsonl") == ""


def test_of_a_folder_of_runs_the_last_is_shown(
    tmp_path: Path, show: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("20260101T000000", "20260102T000000"):
        committed(tmp_path / name, [{"name": name}])
    (tmp_path / "20260103T000000").mkdir()  # not done, or failed
    assert f"1 of 1 row of {tmp_path}/20260102T000000" in show(f"{tmp_path}/")
    with pytest.raises(SystemExit):
        show(str(tmp_path / "20260103T000000"))
    assert (
        f"no finished dataset is at {tmp_path}/20260103T000000, nor in a folder in it"
        in capsys.readouterr().err
    )


def test_wide_values_are_cut(tmp_path: Path, show: Callable[..., str]) -> None:
    place = committed(tmp_path, [{"name": "wide " * 500}])
    assert max(map(len, show(place).splitlines()[:-1])) <= 100


def test_wide_values_leave_room_for_others(tmp_path: Path, show: Callable[..., str]) -> None:
    rows = [{"id": "T-1", "city": "東京", "message": "wide " * 50, "note": "VIP", "rating": 5}]
    head, _, row = show(committed(tmp_path, rows)).splitlines()[:3]
    assert head.split()[:6] == ["id", "city", "message", "note", "rating", "response"]
    assert row.split()[:3] == ["T-1", "東京", "wide"]
    assert "VIP" in row


def test_the_response_is_shown_among_many_columns(tmp_path: Path, show: Callable[..., str]) -> None:
    place = committed(tmp_path, [{f"column_{n}": n for n in range(300)}])
    shown = show(place)
    assert "response" in shown.splitlines()[0]
    assert "r0" in shown
    assert "Not shown: column_5" in shown
    assert len(shown) < 2000


def test_airflow_logs_nothing_between_rows(
    tmp_path: Path, show: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stdout, it logs where a connection's credentials come from: a line of the file that is written."""
    committed(tmp_path / "out", [{"name": "a"}])
    with serving() as server:
        bucket = server.new_bucket()
        for file in sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()):
            key = str(file.relative_to(tmp_path))
            server.client().put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **server.connection()}))
        shown = show(f"s3://{bucket}/", "--aws-conn-id", "lake", "--format", "jsonl")
    assert json.loads(shown)["name"] == "a"


def test_a_damaged_file_is_one_sentence(
    tmp_path: Path, show: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = committed(tmp_path, [{"name": "a"}])
    (file,) = (tmp_path / "data").glob("*/*.parquet")
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(content)
    with pytest.raises(SystemExit):
        show(place)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_response_store(tmp_path: Path, show: Callable[..., str]) -> None:
    shop = Shop(LocalFolder(str(tmp_path)))
    shop.store().prepare()
    shop.store().add("s", [table(range(3))])
    assert show(str(tmp_path)).startswith("3 responses (0 expired) of 1 submission, stored 2025-06-15 to ")
    assert show(str(tmp_path), "--compact").splitlines()[-1].startswith("3 responses")


@pytest.mark.parametrize("words", [(), ("out", "--engines")])
def test_a_place_or_engines(
    words: tuple[str, ...], show: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        show(*words)
    assert capsys.readouterr().err == "place: give either a place or --engines.\n"


@pytest.mark.parametrize(
    ("host", "said"), [("local", "'local' names no cluster"), ("127.0.0.1", "127.0.0.1:1")]
)
def test_clusters_that_do_not_answer(
    host: str,
    said: str,
    show: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connection = {"conn_type": "ray", "host": host, "port": 1, "extra": {"connect_timeout": 0.1}}
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(connection))
    with pytest.raises(SystemExit) as caught:
        show("--engines", "--conn-id", "gpus")
    assert caught.value.code == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_warm_engines(ray: FakeRay, show: Callable[..., str]) -> None:
    entry = "Running entrypoint for job j: python -m airflow_provider_raybatch.job.warm_engines"
    ray.script = lambda _ray, _body: Script([entry, "no warm engine"])
    assert show("--engines") == "no warm engine\n"
    (job,) = ray.jobs.values()
    assert job.body["entrypoint"] == "python -m airflow_provider_raybatch.job.warm_engines"
    show("--engines", "--conn-id", "ray_default", "--end")
    assert [one.body["entrypoint"].endswith(" --end") for one in ray.jobs.values()] == [False, True]
