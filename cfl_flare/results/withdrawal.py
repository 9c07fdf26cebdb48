# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What participants that withdraw have touched of a run: models, files, later runs; and who has to train again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import below, file_sha256, read_json
from cfl_flare.methods import Method, build_method
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.results import schema
from cfl_flare.results.remarks import listed
from cfl_flare.results.run_dir import ASSIGNMENTS, MODELS, SERVED, SUMMARY, Run
from cfl_flare.results.served import PREPARATIONS
from cfl_flare.results.store import Store

WITHDRAWAL = "withdrawal.json"
# In a summary: the digest of the file from which a run started.
STARTED_FROM = "started_from"
# What a line of assignments may hold besides what every reader needs.
LINE: schema.Fields = {
    "trained": schema.flag,
}

# What the file must hold for a reader.
NAMES = schema.list_of(schema.text)
FIELDS: schema.Fields = {
    **dict.fromkeys(("withdrawn", "untouched", "checkpoints", "later_runs", "again", "why_all", "not_zero"), NAMES),
    "first_round": schema.maybe(schema.count),
    "models": schema.dict_of(schema.count),
    "files": schema.dict_of(schema.text),
}


@dataclass(frozen=True)
class Withdrawal:
    """What participants that withdraw have touched.

    Attributes:
        withdrawn: their names.
        first_round: the first round in which one of them trained; None if none did.
        models: of each model that they touched, the first round in which they did.
        untouched: the models that they did not touch.
        files: the touched files of the run, by their paths in its folder, with SHA-256.
        checkpoints: the touched checkpoints.
        resume: the last checkpoint before they took part; None for the start.
        later_runs: folders of runs that started from a touched file.
        again: the participants that have to train again.
        why_all: why clusters without them have to train again, too; empty if they have not.
        not_zero: what of them a run that leaves them out still has.
    """

    withdrawn: Sequence[str]
    first_round: int | None
    models: Mapping[str, int]
    untouched: Sequence[str]
    files: Mapping[str, str]
    checkpoints: Sequence[str]
    resume: str | None
    later_runs: Sequence[str]
    again: Sequence[str]
    why_all: Sequence[str]
    not_zero: Sequence[str]


def leaving(run: Run, sites: Sequence[str], participants: Sequence[str]) -> list[str]:
    """The names of a run's participants that withdraw: those of these sites, and these."""
    people = {str(person["name"]): str(person.get("site")) for person in run.summary["participants"]}
    wanted = {"--site": (sites, sorted({*people.values()})), "--participant": (participants, [*people])}
    for option, (names, there) in wanted.items():
        strange = [name for name in names if name not in there]
        require(not strange, f"withdraw: {option} {listed(strange)} is not in {run.folder}; there are {listed(there)}")
    return [name for name, site in people.items() if name in participants or site in sites]


def withdrawal(run: Run, names: Sequence[str], beside: Path, store: Path | None = None) -> Withdrawal:
    """What some of a run's participants, by name, have touched; a FileError if a file is damaged.

    Args:
        beside: the folder whose runs may have started from the run's models.
        store: of the run's checkpoints, below a server's state root; None where it is not here.
    """
    for line in run.assignments:
        schema.checked(line, str(run.folder / ASSIGNMENTS), {}, LINE)
    everyone = [str(person["name"]) for person in run.summary["participants"]]
    lines = [line for line in run.assignments if line["participant"] in names and line.get("trained", True)]
    slots = sorted(path.stem for path in (run.folder / MODELS).glob("*.safetensors"))
    why_all = couplings(run, bool(slots))
    firsts: dict[str, int] = {}
    for line in lines:
        for slot in slots if why_all else _slots(line):
            firsts[slot] = min(line["round"], firsts.get(slot, line["round"]))
    models = {slot: firsts[slot] for slot in slots if slot in firsts}
    again = [name for name in everyone if name not in names] if lines else []
    if not why_all:
        last = {line["participant"]: line for line in run.assignments}
        again = [name for name in again if name in last and any(slot in models for slot in _slots(last[name]))]
    first = min((line["round"] for line in lines), default=None)
    paths = {str(path.relative_to(run.folder)): path for path in below(run.folder)}
    untouched = {f"{MODELS}/{slot}.safetensors" for slot in slots if slot not in models} | {WITHDRAWAL}
    untouched |= {f"{SERVED}/{name}.safetensors" for name in everyone if name not in (*names, *again)}
    if first is None:  # there are figures of theirs, and no model
        untouched |= {name for name in paths if name.endswith(".safetensors")}
    files = {name: file_sha256(path) for name, path in paths.items() if name not in untouched}
    versions = {} if store is None else {n: store / f"round-{n:06d}.safetensors" for n in Store(store).versions()}
    before = max((number for number in versions if first is None or number <= first), default=None)
    return Withdrawal(
        withdrawn=names,
        first_round=first,
        models=models,
        untouched=[slot for slot in slots if slot not in models],
        files=files,
        checkpoints=[str(path) for number, path in versions.items() if first is not None and number > first],
        resume=None if before is None else str(versions[before]),
        later_runs=_started_from(beside, {*files.values()}),
        again=again,
        why_all=why_all,
        not_zero=_remains(run),
    )


def read_withdrawal(folder: Path) -> dict[str, Any] | None:
    """What `cfl-flare withdraw` wrote into a run's folder; None if nobody withdrew. A ConfigError if it is damaged."""
    return schema.read(folder / WITHDRAWAL, FIELDS) if (folder / WITHDRAWAL).is_file() else None


def couplings(run: Run, averages: bool = True) -> list[str]:
    """Why a participant's part in one cluster reaches the others; none if groups were given and share nothing.

    ``averages`` says whether the run has models of several participants.
    """
    method: Method | None = None
    try:
        method = build_method(run.summary["method"], _refuse)
    except PermissionError:  # a class of the user's, which is not imported because a file names it
        pass
    except ConfigError as error:
        raise ConfigError(f"{run.folder} holds a damaged run: {error}; copy it again from where it ran") from error
    of = _settings(run)
    if method is None or not of:
        return ["the run does not say its settings, or its method is a class of your own"]
    stops = of.get("patience") is not None or of.get("stop_cond") is not None
    of_groups = f"{method.label}: who is in which cluster, or what is averaged, depends on all participants"
    reasons = {
        of_groups: not method.traits.given_groups,
        f"{method.label}: its penalties compare clusters": any(penalty.of_clusters for penalty in method.penalties),
        "sample: who trains in a round is drawn among all": of.get("sample") != 1.0,
        "clip_norm: an update is compared with the median of all": averages and of.get("clip_norm") is not None,
        "reject_outliers: a model is compared with all others": of.get("reject_outliers") is not False,
        "patience or stop_cond: the figures of all end the run": stops,
        "min_sites_per_cluster: a small cluster is filled up from others": of.get("merge_small_clusters") is not False,
        "the table's common means and deviations are of all rows": (run.folder / PREPARATIONS).is_file(),
    }
    return [reason for reason, holds in reasons.items() if holds]


def at_real_sites(run: Run) -> bool:
    """Whether a run's participants were sites of their own, and not simulated."""
    return _settings(run).get("participants") is None


def _settings(run: Run) -> dict[str, Any]:
    """The settings of a run's server and data, as its summary has them."""
    server, data = run.summary.get("run"), run.summary.get("data")
    return {**server, **data} if isinstance(server, dict) and isinstance(data, dict) else {}


def _remains(run: Run) -> list[str]:
    """What of a participant is still in a run that leaves it out."""
    of, owners = _settings(run), "indicator samples were drawn of all rows, those of the withdrawn among them"
    reasons = {
        "the run started from a given model, which may have been trained with them": STARTED_FROM in run.summary,
        owners: bool(of.get("indicator_samples")) and bool(of.get("owners")),
        "categories and ranges of the table's columns were read from all rows": (run.folder / PREPARATIONS).is_file(),
        "a new job at real sites has other random streams, as it has another seed": at_real_sites(run),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _slots(line: Mapping[str, Any]) -> list[str]:
    """The clusters' models in whose means a participant was, by its line of assignments."""
    cluster = line.get("cluster")
    return [] if cluster is None else [cluster_slot(cluster)]


def _started_from(folder: Path, digests: set[str]) -> list[str]:
    """The folders of the runs in a folder, or below it, that started from a file with one of these digests."""
    folders = []
    for path in below(folder) if digests else ():
        with suppress(FileError):  # another run's, damaged or not
            content = read_json(path) if path.name == SUMMARY else None
            if isinstance(content, dict) and content.get(STARTED_FROM) in digests:
                folders.append(str(path.parent))
    return folders


def _refuse(class_path: str) -> None:
    raise PermissionError(class_path)
