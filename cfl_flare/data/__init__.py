# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Where samples come from, and how a pooled set is dealt out to participants in a simulation. numpy only."""

from cfl_flare.data.federate import DataConfig, ParticipantData
from cfl_flare.data.partitions import PARTITIONS, Partition
from cfl_flare.data.sources import SOURCES, DataSource, Digits, Npz, Samples

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "DataConfig",
    "DataSource",
    "Digits",
    "Npz",
    "ParticipantData",
    "Partition",
    "Samples",
]
