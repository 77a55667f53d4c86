# SPDX-License-Identifier: Apache-2.0
"""The run key in Airflow's task state store, which users read and write by REST.

The connection's seal key seals it, if there is one. The connection's token does not: it may be short enough
to guess, and the next attempt may have another one.
"""

from __future__ import annotations

import re

_SEALED = "sealed:"
_STORED = re.compile(rf"{_SEALED}[\w=-]*|(?:[0-9a-f]{{2}})+", re.ASCII)


def is_stored_key(value: object) -> bool:
    """Whether `value` looks as :func:`seal_run_key` makes it."""
    return isinstance(value, str) and _STORED.fullmatch(value) is not None


def seal_run_key(run_key: str, seal_key: str | None) -> str:
    """The run key as it is stored; readable without a seal key.

    :raises SpecError: the seal key is not a Fernet key.
    """
    if seal_key is None:
        return run_key
    from airflow_provider_raybatch.contract.secrets import fernet

    return _SEALED + str(fernet(seal_key).encrypt(run_key.encode()).decode())


def open_run_key(stored: str, seal_key: str | None) -> str | None:
    """The run key; ``None`` if `seal_key` did not seal it.

    :raises SpecError: the seal key is not a Fernet key.
    """
    if seal_key is None:
        return None if stored.startswith(_SEALED) else stored
    from cryptography.fernet import InvalidToken

    from airflow_provider_raybatch.contract.secrets import fernet

    try:
        return str(fernet(seal_key).decrypt(stored.removeprefix(_SEALED).encode()).decode())
    except InvalidToken:
        return None
