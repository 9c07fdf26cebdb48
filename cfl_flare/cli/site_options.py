# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The options of the operators' commands."""

from __future__ import annotations

import argparse
from typing import Any

from cfl_flare.cli.setting_options import add_settings
from cfl_flare.data import DataConfig
from cfl_flare.data.columns import FEWEST_ROWS
from cfl_flare.engine.settings import SiteSettings

DATA = "an .npz file in MedMNIST's layout, a folder of images by class, or a source as for 'cfl-flare run'"


def add_site(commands: Any) -> None:
    """``cfl-flare site`` and what it can do."""
    site = commands.add_parser("site", help="for the operator of a site: prepare its kit, check its data")
    what = site.add_subparsers(dest="what", required=True)
    prepare = what.add_parser("prepare", help="let jobs at a startup kit use the installed cfl_flare")
    kits = "startup kits of sites or of the server, or a simulator's workspace"
    prepare.add_argument("kits", nargs="+", metavar="KIT", help=kits)
    prepare.add_argument("--dry-run", action="store_true", help="show the change and write nothing")
    prepare.add_argument(
        "--keep-logs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="forbid that jobs stream a site's logs to the server, and that the admin console shows them",
    )
    prepare.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="CLASS",
        help="also allow a class of your own: my_package.nets.WardNet; never a package: jobs could call its functions",
    )
    prepare.add_argument(
        "--data-root", action="append", default=[], metavar="DIR", help="also let jobs name files in this folder"
    )
    least = "take part in no job with a lower min_sites_per_cluster (3); 1: others may see this site's own model"
    prepare.add_argument("--min-sites-per-cluster", type=int, metavar="N", help=least)
    least = "nor with a lower min_samples_per_cluster (30)"
    prepare.add_argument("--min-samples-per-cluster", type=int, metavar="N", help=least)
    most = "nor with a higher max_weight_share (0.5)"
    prepare.add_argument("--max-weight-share", type=float, metavar="SHARE", help=most)
    prepare.add_argument(
        "--max-participants", type=int, metavar="N", help="a server's kit: most participants that a site may bring"
    )
    unprepare = what.add_parser("unprepare", help="take back what 'prepare' changed; local/cfl.json stays")
    clean = what.add_parser("clean", help="delete what ended jobs left in a kit: FLARE deletes none of it")
    for command in (unprepare, clean):
        command.add_argument("kits", nargs="+", metavar="KIT", help=kits)
        command.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    days = "a job stays for so many days after its end (%(default)g)"
    clean.add_argument("--days", type=float, default=30.0, metavar="N", help=days)
    runs = what.add_parser("runs", help="the jobs in which this site took part, and those that it refused")
    runs.add_argument("--json", action="store_true", help="a line of JSON for each")
    allow = what.add_parser(
        "allow", help="let a job run that this site refused, as its sites differ from earlier ones'"
    )
    allow.add_argument("job", metavar="JOB", help="its id, or how that begins, as its log and 'site runs' show it")
    for command in (runs, allow):
        command.add_argument("--kit", help="of this startup kit; default: $CFL_STATE_ROOT says where, else the folder")
    check = what.add_parser("check", help="report what would prevent this site from taking part in a job")
    check.add_argument("--data", metavar="D", help=f"{DATA}; default: what a job finds, by $CFL_DATA")
    check.add_argument("--model", metavar="NET", help="the job's model, as for 'cfl-flare run'; default: one that fits")
    add_settings(check, DataConfig, SiteSettings, only=("min_samples", "device"))
    columns = what.add_parser(
        "columns", help="write what the columns of this site's table are, for all sites to agree on"
    )
    columns.add_argument("--data", metavar="D", help="a table, or table:path=...; default: $CFL_DATA")
    least = "name no category of fewer rows, and no mean of fewer (%(default)s)"
    columns.add_argument("--min-rows", type=int, default=FEWEST_ROWS, metavar="N", help=least)
    scale = "say the mean and deviation of each number, too; scaling=federation needs them"
    columns.add_argument("--scale", action="store_true", help=scale)
    columns.add_argument("--out", required=True, metavar="JSON", help="where it goes")
    check.add_argument("--kit", help="check this startup kit as well; default: the current folder, if it is one")


def add_columns(commands: Any) -> None:
    """``cfl-flare columns``."""
    columns = commands.add_parser("columns", help="put together what all sites' tables have, for a job")
    columns.add_argument("files", nargs="+", metavar="JSON", help="what 'cfl-flare site columns' wrote at each site")
    columns.add_argument("--out", required=True, metavar="JSON", help="where it goes: --data site:columns=JSON")


def add_predict(commands: Any) -> None:
    """``cfl-flare predict``."""
    predict = commands.add_parser("predict", help="predict with a run's model, at a site or at the server")
    predict.add_argument("run", help="a .safetensors model, or a folder with one: a run's, or a site's state folder")
    which = "which of a run's models, if it has several: cluster-0, ...; default: the participant's"
    predict.add_argument("--slot", metavar="NAME", help=which)
    predict.add_argument("--data", required=True, metavar="D", help="a folder of images, an .npz file, or a table")
    whose = "who predicts, as at the end of the run; with --slot, whose filling up and scaling of a table is used"
    predict.add_argument("--participant", metavar="NAME", help=whose)
    predict.add_argument("--id", metavar="COLUMN", help="the table's column that names its rows in the predictions")
    predict.add_argument("--array", metavar="NAME", help="the array of an .npz file; default: images, or test_images")
    predict.add_argument("--model", metavar="CLASS", help="the model's class, if it is one of your own: package.Class")
    predict.add_argument("--out", required=True, metavar="CSV", help="where the predictions go")
