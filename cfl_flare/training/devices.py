# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Where a site computes on a machine that it may share with other sites."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Place:
    """A device for one site's process.

    Attributes:
        device: such as ``cpu`` or ``cuda:1``.
        memory: the share of a GPU's memory that the process may take; None for all of it.
    """

    device: str
    memory: float | None = None

    @classmethod
    def of(cls, device: str, memory: float | None = None, index: int = 0, together: int | None = None) -> Place:
        """The place of one of a job's sites: those that ask for ``cuda`` are spread over the machine's GPUs in turn.

        Args:
            device: as requested; one with a number is taken as it is.
            memory: the requested share; None is an even one, where the sites that compete for a GPU are known.
            index: the site's, among those of the job.
            together: how many sites share this machine; None if that is not known, and each may have its own.
        """
        devices = torch.cuda.device_count() if device == "cuda" else 0
        if not devices:
            return cls(device, memory)
        number = index % devices
        if memory is None and together is not None:
            rivals = len(range(number, together, devices))
            memory = 1 / rivals if rivals > 1 else None
        return cls(f"cuda:{number}", memory)

    def limit(self) -> None:
        """Makes torch's allocator keep to the share of memory; beyond it, this process is out of memory."""
        if self.memory is not None and torch.device(self.device).type == "cuda":
            torch.cuda.set_per_process_memory_fraction(self.memory, torch.device(self.device))

    def __str__(self) -> str:
        if torch.device(self.device).type != "cuda":
            return self.device
        share = "" if self.memory is None else f", at most {self.memory:.0%} of its memory"
        return f"{self.device} ({torch.cuda.get_device_name(self.device)}{share})"
