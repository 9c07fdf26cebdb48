# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are written and not run: ``cfl-flare export``, and ``cfl-flare templates`` for ``nvflare job create``."""

from __future__ import annotations

import argparse
import inspect
import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cfl_flare.cli import options
from cfl_flare.cli.options import (
    SITE_DATA,
    Parser,
    add_extension_settings,
    add_settings,
    given,
    split_method,
)
from cfl_flare.cli.specs import (
    build_named,
    check_out,
    given_training,
    model_of_job,
    read_source,
    site_names,
    write_job,
)
from cfl_flare.core.config import check_run_name, require
from cfl_flare.data import DataConfig
from cfl_flare.engine.plan import CONCERNS
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.job.environment import check_floors
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.methods import Method
from cfl_flare.models import FashionCNN
from cfl_flare.training.settings import TrainSettings

LR = 0.05

# Folder: the method with its penalties, and what it is in at most 60 characters, which is what FLARE's list shows.
TEMPLATES = {
    "cfl_fedavg_pt": ("fedavg", "FedAvg: one global model, the baseline"),
    "cfl_ifca_pt": ("ifca:k=3", "IFCA: each site picks the best of K models"),
    "cfl_fesem_pt": ("fesem:k=3", "FeSEM: the server clusters the trained models"),
    "cfl_wecfl_pt": ("wecfl:k=3", "WeCFL: as FeSEM, sites weighted by their samples"),
    "cfl_con_cks_pt": (
        "wecfl:k=3 + contrastive:scope=head + knowledge_sharing:scope=backbone",
        "WeCFL with the penalties CON and CKS",
    ),
    "cfl_cam_pt": (
        "ifca-cam:k=3,warmup=10",
        "Fed-CAM: a global model added to IFCA's clusters",
    ),
    "cfl_fedac_pt": (
        "fedac:k=3",
        "FedAC: personal models, clusters whose number adapts",
    ),
    "cfl_fedcuau_pt": (
        "fedcuau:k=2",
        "FedCUAU: clusters by how heterogeneous a site's data is",
    ),
    "cfl_feddsmic_pt": (
        "feddsmic:k=3,indicator_file=indicator.npz",
        "FedDSMIC: clusters by what models predict",
    ),
}
COMPONENTS = {
    f"{cls.__module__}.{cls.__name__}": cls
    for cls in (
        ClusteredController,
        ClusteringAggregator,
        ClusterModelPersistor,
        ClusteredExecutor,
    )
}
# What key=value should not change: what FLARE links the parts by, and what a simulation alone has.
FIXED = {
    *(
        "config_type",
        "path",
        "class_path",
        "aggregator_id",
        "persistor_id",
        "held",
        "judge",
        "method",
        "penalty",
    ),
    *(
        "penalties",
        "scope",
        "participants",
        "partition",
        "indicator_samples",
        "finetune_epochs",
        "without",
    ),
}

SERVER, CLIENT = "config_fed_server.conf", "config_fed_client.conf"

INFO = """# {folder}

{summary}. From {paper}.

```sh
nvflare job create -w job_templates/{folder} -j $PWD/my-job -force \\
  -f meta.conf min_clients={sites} \\
  -f config_fed_server.conf num_rounds=50 {k}lr=0.01 run_name=my-job{floor} \\
  -f config_fed_client.conf {k}lr=0.01 run_name=my-job
nvflare job submit -j my-job
```
{agreed}
| setting | file |
|---|---|
{rows}

- Set what is in both files in both: a site whose value is not the server's is left out, and says which it is.
- `model_class` is a `torch.nn.Module`; `data_class`, what a site reads, is a `cfl_flare.data.DataSource`: class paths,
  installed at the server and every site. Arguments of theirs that the table does not show, numbers and text, have long
  names:
  `executors[0].executor.args.source.args.NAME=...` and `executors[0].executor.args.model.args.NAME=...` in
  `config_fed_client.conf`, `components[2].args.model.args.NAME=...` in `config_fed_server.conf`.
- `nvflare job create` passes over `key=0`: write `key=0e0`. A key that a file does not have is added to it and changes
  nothing.
- It passes over `meta.conf` where `-j` is not an absolute path.
- It makes an empty `app/custom` folder, which FLARE takes for code of the job's own: the sites must permit that. Delete
  the folder where the operators of the sites have run `cfl-flare site prepare` instead.
- Server and sites keep what outlives the job under `run_name`: two jobs at the same time need two names.
"""

# Of a method whose models cannot be held back until enough sites have trained them.
LOWERED = " min_sites_per_cluster=1 min_samples_per_cluster=1 max_weight_share=1.0"
AGREED = """
At real sites a model needs three sites, and this method cannot hold one of fewer back. So the command lowers that floor
to 1: others may then see models of a single hospital. The hospitals have to agree, and each site's operator has to run
`cfl-flare site prepare KIT --min-sites-per-cluster 1`; else the sites refuse the job.
"""

DESCRIPTION = """Writes a FLARE job. By default each site is one participant with its own data.
With --partition and --participants the job simulates them from one data set."""


def add_export_options(command: Parser) -> None:
    options.explain(command, DESCRIPTION)
    what = command.add_argument_group("what is run")
    options.add_method(what, "one (wecfl:k=3)", default=("wecfl:k=3",))
    options.add_data(what, SITE_DATA, of_whom="what each site reads: ")
    add_settings(what, DataConfig, without=("seed", "indicator_samples"))
    execution = command.add_argument_group("how it is run")
    execution.add_argument(
        "--out",
        default="jobs",
        metavar="DIR",
        help="where the job's folder goes (jobs)",
    )
    sites = "the sites that take part, by their names at the server; default: all that are connected"
    execution.add_argument("--sites", metavar="A,B", help=sites)
    add_settings(
        execution,
        *(CONCERNS[name] for name in options.OF_JOB),
        num_rounds=20,
        min_clients=2,
    )
    training = command.add_argument_group("local training")
    add_settings(training, TrainSettings, lr=LR)
    add_extension_settings(training)
    script = command.add_argument_group(
        "a training script of FLARE's Client API, for --data and local training"
    )
    add_settings(script, CONCERNS["script"], CONCERNS["assign"])


def export(arguments: argparse.Namespace) -> None:
    often = len(arguments.method)
    require(
        often == 1,
        f"--method is given {often} times; a job has one, export another job for another",
    )
    (text, penalties), simulated = (
        arguments.method[0],
        (arguments.partition, arguments.participants) != (None, None),
    )
    method = build_named(text, penalties, here=simulated)
    check_run_name(arguments.name, "--name")
    folder = Path(arguments.out).absolute() / arguments.name
    check_out(folder)
    source, training = (
        read_source(arguments.data, here=simulated),
        TrainSettings(**given_training(arguments)),
    )
    settings: dict[str, Any] = {
        "data": source,
        "training": given_training(arguments),
    }
    if (
        arguments.train_script is not None
    ):  # it reads its data and trains: settings of both are refused
        settings["data"] = None if arguments.data == SITE_DATA else source
        settings["training"] = (
            None if training == TrainSettings(lr=LR) else settings["training"]
        )
    model = model_of_job(arguments.model, source, arguments.data, training)
    recipe = ClusteredRecipe(
        method=method, model=model, **given(arguments, *CONCERNS.values()), **settings
    )
    sites = site_names(arguments.sites)
    if sites:
        recipe.set_per_site_config({site: {} for site in sites})
    if not simulated:
        check_floors(recipe.plan, sites)
    write_job(recipe, folder, arguments)


def add_templates_options(command: Parser) -> None:
    command.add_argument(
        "out",
        metavar="DIR",
        type=Path,
        help="where their folders go; older ones are replaced",
    )


def templates(arguments: argparse.Namespace) -> None:
    folder = arguments.out.absolute()
    for name, (method, summary) in TEMPLATES.items():
        write_template(
            folder / name, build_named(*split_method(method), here=False), summary
        )
    print(
        f"templates written to {folder}; for FLARE to list them: nvflare config -jt {shlex.quote(str(folder))}"
    )


def write_template(folder: Path, method: Method, summary: str) -> None:
    recipe = ClusteredRecipe(
        name=folder.name,
        method=method,
        model=FashionCNN(input_shape=(1, 28, 28), num_classes=10),
        data=read_source(SITE_DATA, here=False),
        num_rounds=20,
        min_clients=3,
    )
    with tempfile.TemporaryDirectory() as exported:
        recipe.export(exported)
        job = Path(exported) / folder.name
        meta = json.loads((job / "meta.json").read_text())
        sides = [
            changeable(job / "app" / "config" / f"config_fed_{side}.json")
            for side in ("server", "client")
        ]
    at_server, at_site = (dict(leaves(config)) for config in sides)
    rows = [f"| `min_clients={meta['min_clients']}` | `meta.conf` |"]
    for key, value in {**at_server, **at_site}.items():
        file = (
            "both"
            if key in at_server and key in at_site
            else f"`{SERVER if key in at_server else CLIENT}`"
        )
        rows.append(
            f"| `{key}={value if isinstance(value, str) else json.dumps(value)}` | {file} |"
        )
    clustered, held = (
        "k" in at_server,
        method.traits.mergeable or method.traits.averages_only,
    )
    listed = {
        "description": summary,
        "execution_api_type": "executor",
        "controller_type": "server",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {
        "info.conf": listed,
        "meta.conf": meta,
        SERVER: sides[0],
        CLIENT: sides[1],
    }.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    info = INFO.format(
        folder=folder.name,
        summary=summary,
        paper=method.paper,
        sites=6 if clustered else 3,  # three for each of two clusters
        k="k=2 " if clustered else "",
        floor="" if held else LOWERED,
        agreed="" if held else AGREED,
        rows="\n".join(rows),
    )
    (folder / "info.md").write_text(info)


def changeable(path: Path) -> dict[str, Any]:
    """A config of the recipe's job with the components' defaults written out, and class paths as variables on top.

    (``class_path=...`` would change all of them at once, as would ``path=...``.)
    """
    config = json.loads(path.read_text())
    variables: dict[str, Any] = {}
    for component in components(config):
        parameters = inspect.signature(
            COMPONENTS[component["path"]]
        ).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        component["args"] = args = {**defaults, **component["args"]}
        for name, what in (("model", "model"), ("source", "data")):
            if name in args:
                variables[f"{what}_class"] = args[name]["class_path"]
                args[name]["class_path"] = f"{{{what}_class}}"
    return {**variables, **config}


def components(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and value.get("path") in COMPONENTS:
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from components(part)


def leaves(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that ``key=value`` reaches: variables, and what is in the components, at any depth."""
    yield from ((key, value) for key, value in config.items() if key.endswith("_class"))
    waiting: list[dict[str, Any]] = [
        component["args"] for component in components(config)
    ]
    while waiting:
        for key, value in waiting.pop(0).items():
            inner = value if isinstance(value, list) else [value]
            if inner and isinstance(inner[0], dict):
                waiting += [] if key == "made_by" else inner
            elif key not in FIXED:
                yield key, value
