# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources, and the partitions that deal a pooled data set out to simulated participants. No torch here."""

from cfl_flare.data.deal import Deal, Partition, Pool, dealt
from cfl_flare.data.federate import DataConfig
from cfl_flare.data.partitions import PARTITIONS, build_partition
from cfl_flare.data.sources import SOURCES, DataSource, Digits, Npz, Samples, SiteData
from cfl_flare.data.summary import ParticipantData, PartitionReport, report_of

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "DataConfig",
    "DataSource",
    "Deal",
    "Digits",
    "Npz",
    "ParticipantData",
    "Partition",
    "PartitionReport",
    "Pool",
    "Samples",
    "SiteData",
    "build_partition",
    "dealt",
    "report_of",
]
