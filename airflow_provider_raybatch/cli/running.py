# SPDX-License-Identifier: Apache-2.0
"""Run one verb: its errors are one sentence, its output is clean."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib import import_module

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.text import clean, write_utf8

_FAILED = 1
_INTERRUPTED = 130


def run_verb(function: str, options: Namespace) -> None:
    """Call ``module:name`` below this package with the options of its verb.

    :raises SystemExit: with 1 for an error, whose sentence is written to stderr; with 130 for Ctrl-C.
    """
    write_utf8()
    module, _, name = function.partition(":")
    try:
        getattr(import_module(f"{__package__}.{module}"), name)(options)
        sys.stdout.flush()
    except RaybatchError as error:
        print(" ".join(_masked(str(error)).split()), file=sys.stderr)
        sys.exit(_FAILED)
    except ModuleNotFoundError as error:
        print(f"{error.name}: it is not installed here; install it with pip.", file=sys.stderr)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader, such as `head`, has enough. Python flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.filename is None:
            raise
        # Of a file that an option names: no right to read it, a name that is too long, a disk that is full.
        print(clean(f"{error.filename}: it can't be used ({error.strerror})."), file=sys.stderr)
        sys.exit(_FAILED)


def _masked(text: str) -> str:
    if "airflow" not in sys.modules:  # so no secret is known, and importing it takes seconds
        return clean(text)
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    return clean(str(redact(text)))
