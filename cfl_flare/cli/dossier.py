# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``dossier``: the file that goes with each model that leaves a run, and the check of the run's lineage."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from cfl_flare.cli.options import Parser, say
from cfl_flare.cli.specs import check_out
from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ConfigError, FileError, UnfitError
from cfl_flare.core.files import atomic_write, below, file_sha256, make_folder, read_json, read_text
from cfl_flare.data.columns import Columns
from cfl_flare.report.dossier import dossier_page
from cfl_flare.report.dossier_view import CHANGES, Dossier
from cfl_flare.report.write import write
from cfl_flare.results import schema
from cfl_flare.results.bootstrap import read_draws
from cfl_flare.results.gate import check_gate
from cfl_flare.results.lineage import LINEAGE, later
from cfl_flare.results.lineage_check import check_lineage
from cfl_flare.results.pseudonyms import pseudonymised, pseudonyms, with_pseudonyms
from cfl_flare.results.run_dir import MODELS, SUMMARY, Run, load_run, the_run
from cfl_flare.results.sbom import bill_of_materials
from cfl_flare.results.served import columns_of
from cfl_flare.results.study import STUDY, load_study
from cfl_flare.results.withdrawal import read_withdrawal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Of what is wrong, so many lines are printed.
MOST = 100
FOLDER, PAGE, BILL = "dossier", "dossier.html", "sbom.json"
# What a file of --plan may say.
LARGEST = 2**16
TEXT = schema.described("text of at most 2000 characters", lambda value: isinstance(value, str) and len(value) <= 2000)
CHANGE = schema.described(
    "tables [[change]] with description, protocol, criterion and impact, each a text",
    schema.list_of(schema.dict_of(TEXT, lambda key: key in CHANGES), most=100),
)
PLAN: schema.Fields = {"purpose": TEXT, "licence": TEXT, "limits": schema.list_of(TEXT, most=100), "change": CHANGE}


def add_dossier_options(command: Parser) -> None:
    command.add_argument("run", help="folder of a run or a study, or one with runs below it")
    command.add_argument("--out", metavar="DIR", help="where it goes; default: dossier in the run's folder")
    command.add_argument("--model", metavar="NAME", help="one of the run's models, as cluster-0; default: each")
    plan = "what the run does not know: purpose, licence, limits, and [[change]] for each planned change"
    command.add_argument("--plan", metavar="TOML", help=plan)
    agreed = "the columns.json that the hospitals agreed on; default: what a simulation's folder has"
    command.add_argument("--columns", metavar="JSON", help=agreed)
    formats = "other formats of the model beside it: onnx, monai; see cfl-flare convert"
    command.add_argument("--formats", metavar="F,F", help=formats)
    names = "hospitals' own names and numbers of samples; default: hospital 1, 2, ... and rounded numbers"
    command.add_argument("--names", action="store_true", help=names)
    what = "write nothing; compare the folder's files with the run's lineage, and name what was changed"
    command.add_argument("--verify", action="store_true", help=what)
    root = "the project's rootCA.pem, from a startup kit of your own; the signature is checked against it"
    command.add_argument("--root", metavar="PEM", help=root)


def dossier(arguments: argparse.Namespace) -> None:
    root = Path(arguments.root) if arguments.root else None
    if arguments.verify:
        unused = [name for name in ("out", "model", "plan", "columns", "formats", "names") if getattr(arguments, name)]
        require(not unused, f"--verify writes nothing, so --{', --'.join(unused)} have no use; leave them out")
        return verify(arguments.run, root)
    plan = read_plan(arguments.plan)
    run, study = _run_of(Path(arguments.run))
    models = sorted(path.stem for path in (run.folder / MODELS).glob("*.safetensors"))
    chosen = [arguments.model] if arguments.model else models
    require(bool(models), f"{run.folder} holds no model: nothing leaves it")
    strange = f"--model = {arguments.model!r} is none of the run's; there are {', '.join(models)}"
    require({*chosen} <= {*models}, strange)
    check_gate(run.folder, run.summary, chosen)
    out = Path(arguments.out) if arguments.out else run.folder / FOLDER
    for slot in chosen:
        check_out(out / slot)
    formats = [name.strip() for name in arguments.formats.split(",")] if arguments.formats else []
    columns = Columns.read(Path(arguments.columns)) if arguments.columns else columns_of(run.folder)
    withdrawal, lines, names = read_withdrawal(run.folder), _lineage(run.folder, root), arguments.names
    for slot in chosen:
        of = Dossier(run, slot, study, plan=plan, columns=columns, withdrawal=withdrawal, lineage=lines, names=names)
        say(Console(), write_dossier(of, out / slot, formats))


def _run_of(folder: Path) -> tuple[Run, dict[str, Any] | None]:
    """The run, and the study that it is of; a study's run is that of what was chosen."""
    if (folder / STUDY).is_file():
        study = load_study(folder)
        require(study["verdict"] is not None, f"{folder} holds a study without a verdict; let it end first")
        name = study["verdict"]["chosen"]["name"]
        require(Path(name).name == name and name not in ("", "..", "."), f"{folder}: {name!r} is no candidate's folder")
        return load_run(folder / name), study
    place = the_run(folder)
    return load_run(place), load_study(place.parent) if (place.parent / STUDY).is_file() else None


def read_plan(path: str | None) -> dict[str, Any]:
    """What people say of a model that its run does not know."""
    if path is None:
        return {}
    try:
        content = schema.checked(tomllib.loads(read_text(Path(path), LARGEST)), path, {}, PLAN)
    except (ValueError, FileError) as error:
        raise ConfigError(f"--plan: {one_line(error)}") from error
    unknown = sorted(content.keys() - PLAN.keys())
    require(not unknown, f"{path}: unknown {', '.join(map(repr, unknown))}; a plan has {', '.join(PLAN)}")
    return content


def _lineage(folder: Path, root: Path | None) -> list[str]:
    """What a check of the run's lineage says, for those who read the dossier: no name of a file or a hospital."""
    from cfl_flare.flare.signature import check_signature

    if not (folder / LINEAGE).is_file():
        return []
    lineage = check_lineage(folder)
    problems, _ = check_signature(folder, lineage, root)
    count = len(lineage.problems) + len(problems)
    said = "nothing of the run was changed" if not count else f"{count} things were changed since; do not rely on it"
    who = "unsigned" if lineage.signer is None else "signed; its certificate was not checked against a root"
    if lineage.signer is not None and root is not None and not problems:
        who = "signed with a certificate of the project, which was checked against the project's root"
    return [
        f"The run chains digests of its settings, its data summaries, and of {lineage.extent}.",
        f"Checked when this file was written: {said}. The chain is {who}.",
        f"The chain's head: {lineage.head}.",
    ]


def write_dossier(of: Dossier, out: Path, formats: Sequence[str]) -> Path:
    """Writes a model's folder: its file, also in other formats, the bill of materials, and the page, which it returns.

    ``of`` has the names of the run, and lacks what is said of the files that are written here.
    """
    make_folder(out)
    model = of.run.folder / MODELS / f"{of.slot}.safetensors"
    if formats:
        from cfl_flare.cli.predict import portable_of
        from cfl_flare.training.formats import write_formats

        write_formats(out, of.slot, portable_of(model), formats)
        of = replace(of, formats=read_json(out / f"{of.slot}.json"))
    shutil.copyfile(model, out / model.name)
    bill = bill_of_materials()
    atomic_write(out / BILL, json.dumps(bill, indent=1))
    software = {part["name"]: part["version"] for part in bill["components"]}
    with TemporaryDirectory() as folder:
        of = of if of.names else _under_pseudonyms(of, Path(folder))
        paths = [path for path in below(out) if path.name != PAGE]
        files = {str(path.relative_to(out)): (path.stat().st_size, file_sha256(path)) for path in paths}
        html = dossier_page(replace(of, files=files, software=software, draws=read_draws(of.run.folder)))
    return write(html, out / PAGE)


def _under_pseudonyms(of: Dossier, folder: Path) -> Dossier:
    """The same with pseudonyms for hospitals; copies of the run's files go into the folder."""
    names, study, withdrawal = pseudonyms(of.run), of.study, of.withdrawal
    if study is not None:  # a site may be called as a candidate is
        study = with_pseudonyms(study, {name: new for name, new in names.items() if name not in study["titles"]})
    if withdrawal is not None:
        withdrawal = {**withdrawal, "withdrawn": [names.get(name, "?") for name in withdrawal["withdrawn"]]}
    return replace(of, run=pseudonymised(of.run, folder), study=study, withdrawal=withdrawal)


def verify(folder: str, root: Path | None) -> None:
    """Prints what is wrong in each run of a folder, and what the chain covers; an UnfitError if something is."""
    from cfl_flare.flare.signature import check_signature

    console, count = Console(), 0
    folders = sorted({path.parent for path in below(Path(folder)) if path.name in (SUMMARY, LINEAGE)})
    require(bool(folders), f"{folder} holds no finished run: no {SUMMARY} in it or below it")
    for place in folders:
        lineage = check_lineage(place)
        problems, signed = check_signature(place, lineage, root)
        problems = [*lineage.problems, *problems]
        count += len(problems)
        left_out = f"; {len(problems) - MOST} more" if len(problems) > MOST else ""
        say(console, f"{place}: {len(problems) or 'no'} change{'s' * (len(problems) != 1)}{left_out}")
        say(console, *(f"- {problem}" for problem in problems[:MOST]), style="red")
        say(console, f"  {lineage.extent} are covered; head {lineage.head}; {signed}")
        if others := later(place):
            say(console, f"  not covered, as they were made of the others: {', '.join(others)}")
    if count:
        raise UnfitError(f"{folder}: {count} changes; they are named above")
