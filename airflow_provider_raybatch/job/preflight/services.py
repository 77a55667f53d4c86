# SPDX-License-Identifier: Apache-2.0
"""What all phases of a job use while it runs: objects with a lifetime of their own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.record import Recorder
from airflow_provider_raybatch.job.output.run_reports import RunReports
from airflow_provider_raybatch.job.preflight.engine_check import Emit
from airflow_provider_raybatch.job.run.launch import Launch


@dataclass(frozen=True)
class Services:
    """The live objects of one job, made once. Each changes by its own methods alone.

    :param emit: writes an event to the driver's log.
    :param secrets: credentials that travelled with the job.
    :param batch: the batch of the Batch API that the job answers, if any.
    :param nodes: the request for nodes, until replicas hold them.
    :param recorder: notes how the job goes, once the destination is claimed.
    """

    emit: Emit
    secrets: Secrets
    journal: Journal
    money: Money
    batch: BatchWatch = field(default_factory=BatchWatch)
    start_up: StartUp = field(default_factory=StartUp)
    launch: Launch = field(default_factory=Launch)
    nodes: ExitStack = field(default_factory=ExitStack)
    recorder: Recorder = field(default_factory=Recorder)
    reports: RunReports = field(default_factory=RunReports)
