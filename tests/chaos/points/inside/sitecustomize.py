# SPDX-License-Identifier: Apache-2.0
"""Faults at the storage calls of a job. Python imports this module at its start, if it is on the path.

``RAYBATCH_AIMS`` has the faults of a run; without it, nothing happens. The calls are those of the folder
classes, on disk and in S3, and the real code makes them:

- ``put``: a file is written, created or replaced; ``before`` that, at its ``naming`` (its content is written
  and its name is not there: the rename or link on a disk, the request to S3), and ``after`` that.
- ``delete``: one file of several is deleted.
- ``list``: files below a prefix are listed.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

_STORAGE = "airflow_provider_raybatch.storage"


class _Faults:
    """All faults of a run, and how often this process has reached each of them."""

    def __init__(self, aims: dict[str, Any]) -> None:
        self._aims = aims
        self._seen = dict.fromkeys((fault["point"] for fault in aims["faults"]), 0)
        self._lock = threading.Lock()

    def come(self, call: str, at: str, path: str) -> None:
        from aimed_strike import DRIVER, strike

        for fault in self._aims["faults"]:
            if (fault["call"], fault["at"]) != (call, at) or not re.search(fault["path"], path):
                continue
            with self._lock:
                self._seen[fault["point"]] += 1
                if self._seen[fault["point"]] != fault["nth"]:
                    continue
            of_driver = int(Path(self._aims["struck"], DRIVER).read_text()) if fault["driver"] else None
            strike(self._aims, fault["point"], of_driver)


class _Calls:
    """Wraps the folder classes; a call inside another one belongs to it."""

    def __init__(self, faults: _Faults) -> None:
        self._faults = faults
        self._under_way = threading.local()

    def local(self, module: Any) -> None:
        self._folder(module.LocalFolder)
        name = module.LocalFolder._name

        def naming(*arguments: Any) -> None:
            self._naming()
            name(*arguments)

        module.LocalFolder._name = staticmethod(naming)

    def s3(self, module: Any) -> None:
        self._folder(module.S3Folder)

    def obstore(self, module: Any) -> None:
        put = module.S3Store.put

        @functools.wraps(put)
        def naming(*arguments: Any, **options: Any) -> Any:
            self._naming()
            return put(*arguments, **options)

        module.S3Store.put = naming

    def _naming(self) -> None:
        path = getattr(self._under_way, "path", None)
        if path is not None:
            self._faults.come("put", "naming", path)

    def _folder(self, kind: Any) -> None:
        for name in ("write", "create", "replace"):
            setattr(kind, name, self._put(getattr(kind, name)))
        kind.list = self._list(kind.list)
        kind.delete = self._delete(kind.delete)

    def _put(self, method: Any) -> Any:
        @functools.wraps(method)
        def put(folder: Any, path: str, *content: Any) -> None:
            if getattr(self._under_way, "path", None) is not None:
                method(folder, path, *content)
                return
            self._under_way.path = path
            try:
                self._faults.come("put", "before", path)
                method(folder, path, *content)
                self._faults.come("put", "after", path)
            finally:
                self._under_way.path = None

        return put

    def _list(self, method: Any) -> Any:
        @functools.wraps(method)
        def listed(folder: Any, prefix: str = "", *options: Any, **named: Any) -> Any:
            self._faults.come("list", "before", prefix)
            return method(folder, prefix, *options, **named)

        return listed

    def _delete(self, method: Any) -> Any:
        @functools.wraps(method)
        def delete(folder: Any, paths: Any) -> None:
            # One by one: S3 deletes many files by one request, and may delete only some of them.
            for path in paths:
                self._faults.come("delete", "before", path)
                method(folder, [path])

        return delete


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `wraps` with modules right after their import."""

    def __init__(self, wraps: dict[str, Any]) -> None:
        self._wraps = wraps

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._wraps:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute, wrap = spec.loader.exec_module, self._wraps[name]

            def exec_module(module: Any) -> None:
                execute(module)
                wrap(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install(aims: dict[str, Any]) -> None:
    if "airflow_provider_raybatch.job" in sys.orig_argv:
        Path(aims["struck"], "driver.pid").write_text(str(os.getpid()))
    calls = _Calls(_Faults(aims))
    ours = {f"{_STORAGE}.folder": calls.local, f"{_STORAGE}.s3_folder": calls.s3}
    wraps = {**ours, "obstore.store": calls.obstore}
    sys.meta_path.insert(0, _Finder(wraps))


if "RAYBATCH_AIMS" in os.environ:
    _install(json.loads(os.environ["RAYBATCH_AIMS"]))
