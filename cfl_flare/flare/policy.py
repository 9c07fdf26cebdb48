# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a kit's operator allows jobs to do, in ``local/cfl.json``, where no job can change it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import check_settings, setting

POLICY = "cfl.json"


@dataclass(frozen=True)
class Policy:
    """An operator's limits. Without a file, the defaults hold."""

    data_roots: tuple[str, ...] = setting(
        (), help="folders in which a job's data source may read files; none: a job reads what $CFL_DATA names"
    )
    min_sites_per_cluster: int = setting(1, help="a site takes part in no job with a lower min_sites_per_cluster", ge=1)
    max_participants: int = setting(10_000, help="most participants that a server accepts from one site", ge=1)

    def __post_init__(self) -> None:
        check_settings(self, POLICY)
        roots = self.data_roots
        fits = isinstance(roots, (list, tuple)) and all(isinstance(root, str) for root in roots)
        require(fits, f"{POLICY}: data_roots = {roots!r} should be a list of folders")
        object.__setattr__(self, "data_roots", tuple(roots))

    @classmethod
    def of(cls, fl_ctx: FLContext) -> Policy:
        """The policy of the kit in which this process runs.

        Raises:
            ConfigError: the file is not JSON, or sets what does not exist.
        """
        return cls.read(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / POLICY)

    @classmethod
    def read(cls, file: Path) -> Policy:
        """The policy in a file; the defaults if there is none.

        Raises:
            ConfigError: the file is not JSON, or sets what does not exist.
        """
        if not file.exists():
            return cls()
        try:
            content = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: not readable as JSON ({error}); correct it, or remove it") from error
        require(isinstance(content, dict), f"{file}: should hold a JSON object with settings")
        return from_dict(cls, content, str(file))
