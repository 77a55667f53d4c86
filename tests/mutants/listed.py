# SPDX-License-Identifier: Apache-2.0
"""All mutants, by area."""

from __future__ import annotations

from .areas import (
    attempts,
    commit,
    following,
    ledger,
    replica,
    response_store,
    savings,
    storage,
    submission,
    suspects,
)

AREAS = {
    "Commit": commit.MUTANTS,
    "Storage": storage.MUTANTS,
    "Ledger": ledger.MUTANTS,
    "Suspects": suspects.MUTANTS,
    "Replica": replica.MUTANTS,
    "Savings": savings.MUTANTS,
    "Response store": response_store.MUTANTS,
    "Submission": submission.MUTANTS,
    "Following": following.MUTANTS,
    "Attempts": attempts.MUTANTS,
}
MUTANTS = [mutant for mutants in AREAS.values() for mutant in mutants]
