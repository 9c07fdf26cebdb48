# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The series of experiment tracking: TensorBoard and MLflow have the same, and nothing a site names breaks them."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContext, FLContextManager

from cfl_flare.flare.tracking import ServerRun, bounds, series, track

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
