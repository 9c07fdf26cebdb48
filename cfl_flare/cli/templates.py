# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare templates``, which writes FLARE's job templates: one for each line of the table below.

A template is the recipe's job for real sites with every setting written out, so that ``nvflare job create`` can change
each by ``key=value``.
"""

from __future__ import annotations

import inspect
import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cfl_flare.cli.options import SITE_DATA
from cfl_flare.cli.specs import build_named, read_source
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.models import FashionCNN

# Folder: the method, its penalties, and what it is in at most 60 characters, which is what FLARE's list shows.
TEMPLATES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "cfl_fedavg_pt": ("fedavg", (), "FedAvg: one global model, the baseline"),
    "cfl_ifca_pt": ("ifca:k=3", (), "IFCA: each site picks the best of K models"),
    "cfl_fesem_pt": ("fesem:k=3", (), "FeSEM: the server clusters the trained models"),
    "cfl_wecfl_pt": ("wecfl:k=3", (), "WeCFL: as FeSEM, sites weighted by their samples"),
    "cfl_con_cks_pt": (
        "wecfl:k=3",
        ("contrastive:scope=head", "knowledge_sharing:scope=backbone"),
        "WeCFL with the penalties CON and CKS",
    ),
    "cfl_cam_pt": ("ifca-cam:k=3,warmup=10", (), "Fed-CAM: a global model added to IFCA's clusters"),
    "cfl_fedac_pt": ("fedac:k=3", (), "FedAC: personal models, clusters whose number adapts"),
    "cfl_fedcuau_pt": ("fedcuau:k=2", (), "FedCUAU: clusters by how heterogeneous a site's data is"),
    "cfl_feddsmic_pt": ("feddsmic:k=3,indicator_file=indicator.npz", (), "FedDSMIC: clusters by what models predict"),
}
COMPONENTS = {
    f"{cls.__module__}.{cls.__name__}": cls
    for cls in (ClusteredController, ClusteringAggregator, ClusterModelPersistor, ClusteredExecutor)
}
# What key=value should not change: what FLARE links the parts by, and what a simulation alone has.
FIXED = {
    "config_type",
    "path",
    "class_path",
    "aggregator_id",
    "persistor_id",
    "method",
    "penalty",
    "penalties",
    "scope",
}
FIXED |= {"held", "judge", "participants", "partition", "indicator_samples", "finetune_epochs"}

SERVER, CLIENT = "config_fed_server.conf", "config_fed_client.conf"

INFO = """# {folder}

{summary}. From {paper}.

```sh
nvflare job create -w job_templates/{folder} -j $PWD/my-job -force \\
  -f meta.conf min_clients=3 \\
  -f config_fed_server.conf num_rounds=50 {k}lr=0.01 run_name=my-job \\
  -f config_fed_client.conf {k}lr=0.01 run_name=my-job
nvflare job submit -j my-job
```

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


def write_templates(folder: Path) -> None:
    """Writes all templates below a folder."""
    for name, (method, penalties, summary) in TEMPLATES.items():
        write(folder / name, method, penalties, summary)
    print(f"templates written to {folder}; for FLARE to list them: nvflare config -jt {shlex.quote(str(folder))}")


def write(folder: Path, method: str, penalties: tuple[str, ...], summary: str) -> None:
    """Writes one template."""
    built = build_named(method, penalties, here=False)
    recipe = ClusteredRecipe(
        name=folder.name,
        method=built,
        model=FashionCNN(input_shape=(1, 28, 28), num_classes=10),
        data=read_source(SITE_DATA, here=False),
        num_rounds=20,
        min_clients=2,
    )
    with tempfile.TemporaryDirectory() as exported:
        recipe.export(exported)
        job = Path(exported) / folder.name
        meta = json.loads((job / "meta.json").read_text())
        sides = [changeable(job / "app" / "config" / f"config_fed_{side}.json") for side in ("server", "client")]
    at_server, at_site = (dict(leaves(config)) for config in sides)
    rows = [f"| `min_clients={meta['min_clients']}` | `meta.conf` |"]
    for key, value in {**at_server, **at_site}.items():
        file = "both" if key in at_server and key in at_site else f"`{SERVER if key in at_server else CLIENT}`"
        rows.append(f"| `{key}={value if isinstance(value, str) else json.dumps(value)}` | {file} |")
    k = "k=4 " if "k" in at_server else ""
    listed = {"description": summary, "execution_api_type": "executor", "controller_type": "server"}
    files = {"info.conf": listed, "meta.conf": meta, SERVER: sides[0], CLIENT: sides[1]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    info = INFO.format(folder=folder.name, summary=summary, paper=built.paper, k=k, rows="\n".join(rows))
    (folder / "info.md").write_text(info)


def changeable(path: Path) -> dict[str, Any]:
    """A config of the recipe's job with the components' defaults written out, and class paths as variables on top.

    (``class_path=...`` would change all of them at once, as would ``path=...``.)
    """
    config = json.loads(path.read_text())
    variables: dict[str, Any] = {}
    for component in components(config):
        parameters = inspect.signature(COMPONENTS[component["path"]]).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        component["args"] = args = {**defaults, **component["args"]}
        for name, what in (("model", "model"), ("source", "data")):
            if name in args:
                variables[f"{what}_class"] = args[name]["class_path"]
                args[name]["class_path"] = f"{{{what}_class}}"
    return {**variables, **config}


def components(value: Any) -> Iterator[dict[str, Any]]:
    """The parts of a config that are cfl_flare's components."""
    if isinstance(value, dict) and value.get("path") in COMPONENTS:
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from components(part)


def leaves(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that ``key=value`` reaches: variables, and what is in the components, at any depth."""
    yield from ((key, value) for key, value in config.items() if key.endswith("_class"))
    waiting: list[dict[str, Any]] = [component["args"] for component in components(config)]
    while waiting:
        for key, value in waiting.pop(0).items():
            inner = value if isinstance(value, list) else [value]
            if inner and isinstance(inner[0], dict):
                waiting += [] if key == "made_by" else inner
            elif key not in FIXED:
                yield key, value
