# SPDX-License-Identifier: Apache-2.0
"""All mutants, by area."""

from __future__ import annotations

from .areas import (
    attempts,
    clusters,
    commit,
    following,
    gpu_shares,
    images,
    ledger,
    left_clusters,
    money,
    poison_rows,
    replica,
    response_store,
    reuse,
    sources,
    steps,
    storage,
    submission,
    uploads,
    warm_engines,
)

AREAS = {
    "Commit": commit.MUTANTS,
    "Storage": storage.MUTANTS,
    "Sources": sources.MUTANTS,
    "Images": images.MUTANTS,
    "Ledger": ledger.MUTANTS,
    "Poison rows": poison_rows.MUTANTS,
    "Replica": replica.MUTANTS,
    "Warm engines": warm_engines.MUTANTS,
    "Shares of GPUs": gpu_shares.MUTANTS,
    "Reuse": reuse.MUTANTS,
    "Response store": response_store.MUTANTS,
    "Steps": steps.MUTANTS,
    "Submission": submission.MUTANTS,
    "Following": following.MUTANTS,
    "Attempts": attempts.MUTANTS,
    "Clusters": clusters.MUTANTS,
    "Left clusters": left_clusters.MUTANTS,
    "Money": money.MUTANTS,
    "Uploads": uploads.MUTANTS,
}
MUTANTS = [mutant for mutants in AREAS.values() for mutant in mutants]
