# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of FLARE's FedAvgRecipe in ClusteredRecipe: the exported job, refusals, the series that are tracked."""

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import (
    add_cross_site_evaluation,
    add_experiment_tracking,
    add_final_global_evaluation,
    set_per_site_config,
)

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import Digits
from cfl_flare.data.sources import SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.job.recipe import NOT_HERE
from cfl_flare.flare.tracking import ServerRun, bounds, series, track
from cfl_flare.models import MLP
from tests.flare.test_egress import Encryptor

SCRIPT = {"data": None, "train_script": "client.py", "train_args": "--lr 0.1"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("client.py").write_text("")


def make_site_recipe(**settings) -> ClusteredRecipe:
    values = {"name": "job", "method": "wecfl:k=2", "model": MLP((1, 8, 8), 10), "data": SiteData("/data/all.npz")}
    return ClusteredRecipe(**{**values, "num_rounds": 3, "min_clients": 2, **settings})


def export_configs(job: ClusteredRecipe, app: str = "app") -> tuple[dict, dict]:
    """The server's and the sites' config."""
    job.export("jobs")
    files = {path.stem: json.loads(path.read_text()) for path in Path("jobs/job").glob("app*/config/*.json")}
    own = json.loads(Path(f"jobs/job/{app}/config/config_fed_client.json").read_text())
    return files["config_fed_server"], own


def get_executor_args(config: dict) -> dict:
    return config["executors"][0]["executor"]["args"]


def test_settings_reach_the_job(tmp_path):
    torch.save(MLP((1, 8, 8), 10).state_dict(), "start.pt")
    job = make_site_recipe(
        initial_ckpt="start.pt",
        key_metric="loss",
        key_metric_mode="min",
        stop_cond="accuracy >= 0.8",
        patience=4,
        exclude_vars="bias",
        cross_site_evaluation=True,
        server_memory_gc_rounds=2,
        client_memory_gc_rounds=3,
        cuda_empty_cache=True,
    )
    server, client = export_configs(job)
    controller = server["workflows"][0]["args"]
    wanted = {"key_metric": "loss", "key_metric_mode": "min", "stop_cond": "accuracy >= 0.8", "patience": 4}
    wanted |= {"cross_site_evaluation": True, "memory_gc_rounds": 2}
    assert wanted.items() <= controller.items()
    (aggregator,) = (c["args"] for c in server["components"] if c["id"] == "aggregator")
    assert aggregator["initial_ckpt"] == "start.pt"
    assert Path("jobs/job/app/custom/start.pt").is_file()
    assert (get_executor_args(client)["memory_gc_rounds"], get_executor_args(client)["cuda_empty_cache"]) == (3, True)
    leaving, _ = client["task_result_filters"]
    assert [chain["tasks"] for chain in client["task_result_filters"]] == [["check"], ["train"]]
    assert leaving["filters"][0]["path"].endswith(".ExcludeVars")
    names = leaving["filters"][0]["args"]["exclude_vars"]
    assert names and all("bias" in name for name in names)


def test_how_a_script_s_process_is_launched_is_flare_s():
    waiting = {"launch_once": False, "launch_timeout": 60.0, "shutdown_timeout": 5.0}
    _, client = export_configs(make_site_recipe(**SCRIPT, launch_external_process=True, **waiting))
    assert waiting.items() <= get_executor_args(client).items()


def test_what_flare_s_recipe_takes_is_there_or_refused_by_name():
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

    page = (Path(__file__).parents[2] / "docs" / "training-scripts.md").read_text()
    ours = {*inspect.signature(ClusteredRecipe).parameters}
    for name in inspect.signature(FedAvgRecipe).parameters:
        assert name == "self" or name in ours or name in NOT_HERE, name
        assert name == "self" or f"`{name}`" in page, name


def test_the_server_has_a_run_of_its_own_where_flare_opens_one_for_each_site():
    pytest.importorskip("mlflow", reason="FLARE's receiver imports it")
    job = make_site_recipe()
    add_experiment_tracking(job, "mlflow", {"tracking_uri": "http://localhost:5000"})
    for _ in range(2):  # as when a job is exported and then run
        server, _ = export_configs(job)
    receiver, own = [c for c in server["components"] if c["id"] in ("receiver", "server_run")]
    assert own["args"]["receiver"]["path"] == receiver["path"]
    assert own["args"]["receiver"]["args"] == {**receiver["args"], "events": ["analytix_log_stats"]}
    assert receiver["args"]["events"] == ["fed.analytix_log_stats"]
    assert len([c for c in server["components"] if c["path"] == own["path"]]) == 1


def test_a_filter_on_one_of_a_script_s_tasks_covers_the_other_and_one_on_no_named_task_covers_all():
    job = make_site_recipe(**SCRIPT)
    job.add_client_output_filter(PercentilePrivacy(), tasks=["train"])
    job.add_client_output_filter(SVTPrivacy())
    _, client = export_configs(job)
    chains = {chain["tasks"][0]: [f["path"].rpartition(".")[2] for f in chain["filters"]] for chain in filters(client)}
    assert chains == {
        "train": ["PercentilePrivacy", "SVTPrivacy"],
        "validate": ["ExcludeVars", "PercentilePrivacy", "SVTPrivacy"],
    }
    job = make_site_recipe()
    job.add_client_output_filter(PercentilePrivacy(), tasks=["train"])
    assert [chain["tasks"] for chain in filters(export_configs(job)[1])] == [["train"]]


def filters(client: dict) -> list[dict]:
    return client["task_result_filters"]


def test_a_checkpoint_at_the_server_is_not_carried():
    server, _ = export_configs(make_site_recipe(initial_ckpt="/at/the/server.safetensors"))
    (aggregator,) = (c["args"] for c in server["components"] if c["id"] == "aggregator")
    assert aggregator["initial_ckpt"] == "/at/the/server.safetensors"
    assert not Path("jobs/job/app/custom").exists()


def test_what_breaks_a_site_s_connection_is_said_at_the_export_and_refused_for_a_poc(caplog):
    model = MLP((1, 8, 8), 10, hidden=(2000, 600))
    torch.save(model.state_dict(), "start.pt")
    says = r"the job carries files of 5\.[34] MB, and start\.pt alone has 5\.[34] MB; FLARE's connections by http"
    export_configs(make_site_recipe(model=model, initial_ckpt="start.pt"))
    assert re.search(says, caplog.text)
    with pytest.raises(ConfigError, match="recipe: the job carries files of"):
        make_site_recipe(model=model, initial_ckpt="start.pt").process_env(PocEnv(num_clients=2))
    caplog.clear()
    job = make_site_recipe(model=model, initial_ckpt="start.pt")
    set_per_site_config(job, {"site-1": {}, "site-2": {}})
    export_configs(job, "app_site-1")  # the server alone has it
    assert Path("jobs/job/app_server/custom/start.pt").is_file()
    export_configs(make_site_recipe(byoc=True))
    assert "MB" not in caplog.text


def test_each_site_has_its_own_data_and_device():
    job = make_site_recipe()
    own = {"site-1": {"data_args": {"path": "/ward/1.npz"}, "device": "cuda:0"}, "site-2": {"data": Digits()}}
    set_per_site_config(job, own)
    first = get_executor_args(export_configs(job, "app_site-1")[1])
    second = get_executor_args(json.loads(Path("jobs/job/app_site-2/config/config_fed_client.json").read_text()))
    assert first["source"]["args"]["path"] == "/ward/1.npz" and first["device"] == "cuda:0"
    assert first["source"]["class_path"].endswith(".SiteData")
    assert second["source"]["class_path"].endswith(".Digits")
    assert "device" not in second or second["device"] == "cpu"
    assert job.configured_sites() == ["site-1", "site-2"]
    assert first["method"] == second["method"]


def test_sites_with_settings_of_their_own_are_named_to_the_simulator():
    job = make_site_recipe()
    set_per_site_config(job, {"site-1": {}, "site-2": {"torch_threads": 2}})
    with pytest.raises(ConfigError, match=r"name them: SimEnv\(clients=\['site-1', 'site-2'\]\)"):
        job.check_env(SimEnv(num_clients=2))
    job.check_env(SimEnv(clients=["site-1", "site-2"]))


def test_private_arrays_are_named_to_the_sites_before_any_other_filter():
    job = make_site_recipe(**SCRIPT, exclude_vars="bias", private="head", resume_from="earlier")
    client = export_configs(job)[1]
    for chains in (client["task_data_filters"], client["task_result_filters"]):
        assert {task for chain in chains for task in chain["tasks"]} == {"train", "validate"}
        for chain in chains:
            first = chain["filters"][0]
            assert first["path"] == "cfl_flare.flare.client_api.private.PrivateArrays"
            assert first["args"] == {
                "private": ["head.weight", "head.bias"],
                "run_name": "job",
                "resume_from": "earlier",
                "travels": ["body.1.bias", "body.1.weight"],
            }


def test_the_default_poc_of_two_sites_has_a_model(monkeypatch, caplog):
    """Real sites' defaults would end its job before the first round; an exported job keeps them, and says so."""
    monkeypatch.setattr(PocEnv, "deploy", lambda self, job: job.export_job("poc") or "id")
    make_site_recipe(**SCRIPT).run(PocEnv())
    assert "PocEnv: all sites are on this machine, so this run has min_sites_per_cluster = 1, " in caplog.text
    controller = json.loads(Path("poc/job/app/config/config_fed_server.json").read_text())["workflows"][0]["args"]
    trusting = {"min_sites_per_cluster": 1, "min_samples_per_cluster": 1, "max_weight_share": 1.0}
    assert trusting.items() <= controller.items() and "may start with" not in caplog.text
    make_site_recipe(**SCRIPT, max_weight_share=0.75).run(PocEnv())
    controller = json.loads(Path("poc/job/app/config/config_fed_server.json").read_text())["workflows"][0]["args"]
    assert controller["max_weight_share"] == 0.75
    with pytest.raises(ConfigError, match="num_clients = 2 is less than the job's min_sites_per_cluster = 3"):
        make_site_recipe(**SCRIPT, min_sites_per_cluster=3).run(PocEnv())
    server, _ = export_configs(make_site_recipe(**SCRIPT))
    assert not trusting.keys() & server["workflows"][0]["args"].keys()
    assert "job job may start with 2 sites (min_clients), and a model needs 3 at real sites" in caplog.text
    make_site_recipe(**SCRIPT).export("jobs", env=PocEnv())  # it may be submitted anywhere
    assert caplog.text.count("may start with 2 sites") == 2
    make_site_recipe(**SCRIPT, **trusting).export("jobs")
    make_site_recipe(**SCRIPT).export("jobs", env=SimEnv(num_clients=2))
    assert caplog.text.count("may start with 2 sites") == 2


def test_each_site_has_its_own_script_arguments():
    job = make_site_recipe(**SCRIPT, exclude_vars="bias", client_memory_gc_rounds=1)
    set_per_site_config(job, {"site-1": {"train_args": "--lr 0.5"}, "site-2": {}})
    first = export_configs(job, "app_site-1")[1]
    second = json.loads(Path("jobs/job/app_site-2/config/config_fed_client.json").read_text())
    assert "--lr 0.5" in json.dumps(first) and "--lr 0.1" in json.dumps(second)
    assert first["executors"][0]["tasks"] == second["executors"][0]["tasks"] == ["train", "validate"]
    assert get_executor_args(first)["memory_gc_rounds"] == 1
    assert first["task_result_filters"] == second["task_result_filters"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"stop_cond": "accuracy >= 80"}, r"accuracy is a share in 0\.\.1 here; write 0\.8 for 80 per cent"),
        ({"stop_cond": "much"}, "should be '<metric> <sign> <number>'"),
        ({"exclude_vars": "("}, "is not a regular expression"),
        ({"exclude_vars": "nothing"}, "matches none of "),
        ({"exclude_vars": "."}, "matches all parameters"),
        ({"exclude_vars": "head", "method": "wecfl:k=2,cluster_on=head"}, "matches all that method wecfl clusters on"),
        ({**SCRIPT, "private": "nothing"}, "private = 'nothing' matches none of "),
        ({**SCRIPT, "private": "head", "method": "wecfl:k=2,cluster_on=head"}, "private = 'head' matches all that"),
        ({"private": "nothing"}, "private = 'nothing': it matches nothing in the model; name arrays of "),
        (
            {"aggregation_weights": {"site-1": 2.0}},
            "aggregation_weights is not there: a method's weighting is 'samples'",
        ),
        ({"save_filename": "best.pt"}, "save_filename is not there: .*best/clusters/; leave it out"),
        ({**SCRIPT, "model": None}, "model = None: the server starts from a model"),
        ({"initial_ckpt": "none.pt"}, "is not a file, seen from this folder"),
        ({"initial_ckpt": "/none.pt", "method": "ifca:k=2"}, "begins with 2 different models"),
        ({"initial_ckpt": "/none.pt", "resume_from": "earlier"}, "both say where to start"),
    ],
)
def test_refusals(settings, says):
    with pytest.raises(ConfigError, match=says):
        make_site_recipe(**settings)


@pytest.mark.parametrize(
    ("settings", "config", "says"),
    [
        ({}, {"site-1": {}}, r"defines 1 site\(s\), but min_clients=2"),
        ({}, {"site-1": {}, "server": {}}, "reserved"),
        (
            {},
            {"site-1": {"lr": 1}, "site-2": {}},
            r"site-1: \['lr'\] cannot be set for a single site; .*data, data_args, device",
        ),
        ({}, {"site-1": {"device": "gpu!"}, "site-2": {}}, "device = 'gpu!'"),
        ({}, {"site-1": {"data_args": {"file": 1}}, "site-2": {}}, "unknown setting 'file'"),
        (SCRIPT, {"site-1": {"data": 1}, "site-2": {}}, r"site-1: \['data'\] cannot be set for a single site"),
        (SCRIPT, {"site-1": {"train_script": "none.py"}, "site-2": {}}, "train_script = 'none.py' is not a file"),
        (
            {"participants": 4, "partition": "iid", "data": Digits()},
            {"site-1": {"data_args": {}}, "site-2": {}},
            "where one source is dealt out to all",
        ),
    ],
)
def test_per_site_refusals(settings, config, says):
    job = make_site_recipe(**settings)
    with pytest.raises(ConfigError, match=says):
        set_per_site_config(job, config)


def test_a_script_s_accuracy_may_be_in_per_cent():
    make_site_recipe(**SCRIPT, stop_cond="accuracy >= 80")


def test_series_are_named_by_what_they_are():
    assert series("served_accuracy") == "served/accuracy"
    assert series("cluster-10/served_loss") == "cluster-10/served/loss"
    assert series("ari") == "clustering/ari" and series("trained_accuracy") == "trained/accuracy"


def test_a_tied_weight_is_excluded_under_both_of_its_names():
    tied = {"class_path": "tests.core.test_params.Tied"}
    _, client = export_configs(make_site_recipe(**SCRIPT, model=tied, method="fedavg", exclude_vars="embed"))
    (pattern, *_) = (c["filters"][0]["args"]["exclude_vars"] for c in client["task_result_filters"])
    leaves = [name for name in ("embed.weight", "out.weight", "norm.weight") if not re.search(pattern, name)]
    assert leaves == ["norm.weight"]


def test_excluded_arrays_of_a_script_leave_under_no_other_name():
    """Wrappers add prefixes: ``module.`` of DDP, ``_orig_mod.`` of torch.compile."""
    _, client = export_configs(make_site_recipe(**SCRIPT, method="fedavg", exclude_vars="head"))
    (leaving, *_) = client["task_result_filters"][0]["filters"]
    names = ["body.1.weight", "head.weight", "module.head.weight", "_orig_mod.head.bias", "module.body.1.weight"]
    assert [n for n in names if not re.search(leaving["args"]["exclude_vars"], n)] == ["body.1.weight"]


def test_the_format_of_what_travels_reaches_server_and_sites():
    server, client = export_configs(make_site_recipe(**SCRIPT, server_expected_format="pytorch"))
    assert get_executor_args(client)["server_expected_format"] == "pytorch"
    assert server["workflows"][0]["args"]["judge"]["tensors"] is True
    with pytest.raises(
        ConfigError, match="server_expected_format = 'pytorch' sends tensors, which framework = 'numpy'"
    ):
        make_site_recipe(**SCRIPT, method="fedavg", model=[1.0], server_expected_format="pytorch")


def test_cfl_flare_s_own_training_needs_all_parameters():
    with pytest.raises(ConfigError, match="leaves out 2 of its 3 parameters"):
        make_site_recipe(model={"class_path": "tests.core.test_params.Adapted"}, method="fedavg")


def test_all_parameters_are_compared_where_there_is_no_fully_connected_layer(caplog):
    make_site_recipe(**SCRIPT, model=torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)), method="wecfl:k=2")
    assert "the model has no fully connected layer: cluster_on is 'all'" in caplog.text
    with pytest.raises(ConfigError, match="cluster_on = 'head' does not fit the model"):
        make_site_recipe(
            **SCRIPT, model=torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)), method="wecfl:k=2,cluster_on=head"
        )


@pytest.mark.parametrize("add", [add_cross_site_evaluation, add_final_global_evaluation])
@pytest.mark.parametrize("kind", [SCRIPT, {}])
def test_flare_s_evaluation_of_one_model_is_refused_with_the_setting_for_several(add, kind):
    with pytest.raises(ConfigError, match="this job has several; set cross_site_evaluation = True"):
        add(make_site_recipe(**kind))


@pytest.mark.parametrize("given", [{"device": "cuda"}, {"torch_threads": 2}, {"evaluate_trained": True}])
def test_what_the_script_decides_is_refused_beside_it(given):
    with pytest.raises(ConfigError, match=f"recipe: {next(iter(given))}: belongs to the script .* in train_args"):
        make_site_recipe(**SCRIPT, **given)
    make_site_recipe(**given)


@pytest.mark.parametrize("kind", [SCRIPT, {}])
def test_more_clusters_than_sites_are_refused_before_the_job(kind, tmp_path):
    job = make_site_recipe(method="ifca:k=4", **kind)
    with pytest.raises(ConfigError, match=r"SimEnv: num_clients = 3 is less than method ifca's k = 4, .*; lower k"):
        job.execute(SimEnv(num_clients=3, workspace_root=str(tmp_path / "work")))
    assert not (tmp_path / "work").exists()
    job.check_env(SimEnv(num_clients=4, workspace_root=str(tmp_path / "work")))


@pytest.mark.parametrize("kind", [SCRIPT, {}])
def test_a_filter_that_encrypts_is_refused_before_the_job(kind):
    job = make_site_recipe(**kind)
    job.add_client_output_filter(Encryptor([], []), tasks=["train"])
    with pytest.raises(ConfigError, match=r"filter \['HEModelEncryptor'\] encrypts models .*; remove it"):
        job.export("jobs")
    assert not Path("jobs").exists()


def test_a_model_of_arrays_travels_as_the_checkpoint_that_the_job_starts_from():
    server, client = export_configs(
        make_site_recipe(**SCRIPT, method="fedavg", model={"a.b": [1.0, 2.0], "path": np.ones((1, 3))})
    )
    aggregator = next(c["args"] for c in server["components"] if c["id"] == "aggregator")
    (carried,) = Path("jobs/job").rglob(aggregator["initial_ckpt"])
    arrays, _ = load_arrays(carried)
    np.testing.assert_array_equal(arrays["a.b"], [1, 2])
    assert arrays["path"].shape == (1, 3)
    assert get_executor_args(client)["params_exchange_format"] == "numpy"


def test_a_checkpoint_or_an_earlier_run_comes_before_the_arrays():
    for more, says in (({"initial_ckpt": "/at/the/server.npy"}, "/at/the/server.npy"), ({"resume_from": "a"}, None)):
        server, _ = export_configs(
            make_site_recipe(**SCRIPT, method="fedavg", model=[1.0], framework=FrameworkType.NUMPY, **more)
        )
        aggregator = next(c["args"] for c in server["components"] if c["id"] == "aggregator")
        assert aggregator.get("initial_ckpt") == says


def test_a_script_s_framework(tmp_path):
    for framework, form in ((None, "pytorch"), ("pytorch", "pytorch"), ("numpy", "numpy")):
        _, client = export_configs(make_site_recipe(**SCRIPT, framework=framework))
        assert get_executor_args(client)["params_exchange_format"] == form


SCALARS = {
    "served_accuracy": 0.5,
    "served_val/dice": 0.25,
    "cluster-0/served_accuracy": 0.75,
    "cluster-1/size": 3.0,
    "pooled_auroc": 0.875,
    "ari": 1.0,
    "seconds": 2.0,
}
NAMES = ("served/accuracy", "served/val.dice", "cluster-0/served/accuracy", "cluster-1/size", "served/pooled_auroc")
NAMES += ("clustering/ari", "round/seconds")


@pytest.mark.parametrize("name", ["a/../b", "a//b", "a/", "../../x", "a/./b"])
def test_a_site_s_name_is_no_path(name):
    assert series(f"cluster-2/served_{name}") == "cluster-2/served/" + name.replace("/", ".")


def test_tensorboard_and_mlflow_have_equal_series(tmp_path):
    pytest.importorskip("tensorboard", reason="its files are read back")
    mlflow = pytest.importorskip("mlflow", reason="its store is looked at")
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver
    from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    receivers = [TBAnalyticsReceiver(), ServerRun(MLflowReceiver(store, {"experiment_name": "job"}))]
    workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path), get_result_root=lambda job: str(tmp_path))
    manager = FLContextManager(
        engine=None, identity_name="server", job_id="job", public_stickers={}, private_stickers={}
    )
    engine = SimpleNamespace(get_workspace=lambda: workspace, new_context=manager.new_context)
    manager.engine = engine

    class Sender(FLComponent):
        def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
            fl_ctx.set_prop(ReservedKey.WORKSPACE_OBJECT, workspace, private=True, sticky=False)
            fl_ctx.set_prop(FLContextKey.PROCESS_TYPE, ProcessType.SERVER_JOB, private=True, sticky=False)
            for receiver in receivers:
                receiver.handle_event(event_type, fl_ctx)

    sender = Sender()
    sender.engine = engine
    with engine.new_context() as context:
        sender.fire_event(EventType.START_RUN, context)
    for number in range(2):
        track(sender, {name: value + number for name, value in SCALARS.items()}, number)
    track(sender, bounds({"served_accuracy": (0.25, 0.625)}), 1)
    with engine.new_context() as context:
        sender.fire_event(EventType.END_RUN, context)

    expected = {name: {0: value, 1: value + 1} for name, value in zip(NAMES, SCALARS.values())}
    expected |= {"served/accuracy_low": {1: 0.25}, "served/accuracy_high": {1: 0.625}}
    events = EventAccumulator(str(tmp_path / "tb_events" / "server")).Reload()
    found = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    assert found == expected
    client = mlflow.tracking.MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("job").experiment_id])
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    assert {name: {p.step: p.value for p in points} for name, points in history.items()} == expected
