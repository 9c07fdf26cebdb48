# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A script's process: what the launcher reports of it, and FLARE's Client API and Lightning patch under its loop."""

import ast
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import nvflare.client.api as flare
import pytest
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client import api
from nvflare.client.api_spec import CLIENT_API_KEY
from nvflare.client.config import ConfigKey
from nvflare.client.in_process.api import TOPIC_GLOBAL_RESULT, TOPIC_LOCAL_RESULT, TOPIC_STOP, InProcessClientAPI
from nvflare.fuel.data_event.data_bus import DataBus
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout
from cfl_flare.engine.plan import AssignSettings
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.client_api import cfl_launcher
from cfl_flare.flare.client_api.controller import EVALUATE, TRAIN, Scripts
from cfl_flare.flare.client_api.results import LONGEST_TYPE, check_failure, not_measured
from cfl_flare.methods import IFCA, Participant
from cfl_flare.models import MLP
from tests.helpers.play import exchanged
from tests.helpers.tiny import Coin, coin

LAUNCHER = Path(cfl_launcher.__file__)


@pytest.mark.parametrize(
    "name, said",
    [
        ("ValueError", "ValueError in its script"),
        ("SystemExit", "its script ended before the job"),
        ("E" * LONGEST_TYPE, "E" * LONGEST_TYPE + " in its script"),
        ("E" * (LONGEST_TYPE + 1), "an error in its script"),
        ("no patient 17", "an error in its script"),
        ("Err\x1b[2J", "an error in its script"),
        ("Fehler\N{LATIN SMALL LETTER U WITH DIAERESIS}", "an error in its script"),
        (["ValueError"], "an error in its script"),
        (None, "an error in its script"),
    ],
)
def test_an_error_is_named_by_an_identifier_alone(name, said):
    with pytest.raises(PayloadError) as caught:
        check_failure(FLModel(metrics={}, meta={cfl_launcher.FAILED: name}))
    assert (caught.value.code, str(caught.value)) == ("site_failed", said)


def test_other_results_pass():
    check_failure(FLModel(metrics={"accuracy": 1.0}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
    check_failure(FLModel(metrics={"accuracy": 1.0}))


def test_the_launcher_needs_nothing_but_flare():
    tree = ast.walk(ast.parse(LAUNCHER.read_text()))
    imports = [n for n in tree if isinstance(n, (ast.Import, ast.ImportFrom))]
    found = {a.name if isinstance(n, ast.Import) else n.module for n in imports for a in n.names}
    found = {name.partition(".")[0] for name in found if name}
    assert found - sys.stdlib_module_names == {"nvflare", "numpy", "torch"}
    script = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import cfl_launcher; print('torch' in sys.modules)"
    words = [sys.executable, "-c", script, str(LAUNCHER.parent)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "False"


class Tasks:
    """The Client API of a job with so many tasks left."""

    def __init__(self, left: int):
        self.left, self.sent = left, []

    def get_config(self) -> dict[str, Any]:
        return {}

    def is_running(self) -> bool:
        return self.left > 0

    def receive(self, timeout: float | None = None) -> None:
        return None

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        self.left -= 1
        self.sent.append((model.params, model.metrics, model.meta))


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs a script under the launcher, in its place of the job's folder."""

    def run(text: str, name: str, *arguments: str, at: str = "", left: int = 2, context: Any = False) -> Tasks:
        script = tmp_path / (at or name.partition(":")[0])
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        tasks = Tasks(left)
        monkeypatch.setattr(cfl_launcher, "__file__", str(tmp_path / LAUNCHER.name))
        monkeypatch.setattr(api, "default_context", SimpleNamespace(api=tasks) if context is False else context)
        monkeypatch.setattr(sys, "argv", [LAUNCHER.name, name.replace(" ", "%20"), *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        cfl_launcher.main()
        return tasks

    return run


def test_each_task_that_is_left_is_answered_with_the_type(launch, caplog, capsys):
    tasks = launch("raise ValueError('of ward 7')", "client.py")
    assert tasks.sent == [(None, {}, {cfl_launcher.FAILED: "ValueError"})] * 2
    assert "ValueError: of ward 7" in capsys.readouterr().out  # for the site's log
    assert not caplog.records  # lines of level error may leave the site


@pytest.mark.parametrize("text", ["import sys; sys.exit('no data')", "pass"])
def test_a_script_that_ends_too_early_says_so(launch, text):
    assert launch(text, "client.py", left=1).sent == [(None, {}, {cfl_launcher.FAILED: "SystemExit"})]


def test_a_script_that_ends_with_the_job_says_nothing(launch):
    assert launch("pass", "client.py", left=0).sent == []


@pytest.mark.parametrize("name, at", [("a/my client.py", ""), ("client.py", "deep/client.py")])
def test_the_script_sees_its_command_line_and_its_neighbours(launch, tmp_path, name, at):
    folder = (tmp_path / (at or name)).parent
    folder.mkdir()
    (folder / f"neighbour_{folder.name}.py").write_text("")
    text = (
        f"import json, sys, neighbour_{folder.name}\nopen({str(tmp_path / 'argv')!r}, 'w').write(json.dumps(sys.argv))"
    )
    launch(text, name, "--lr", "0.1", at=at, left=0)
    assert json.loads((tmp_path / "argv").read_text()) == [str(tmp_path / (at or name)), "--lr", "0.1"]


SENDS = """
import numpy as np
import nvflare.client as flare
import torch
flare.init()
received = flare.receive().params
assert all(isinstance(value, torch.Tensor) for value in received.values())
model = flare.FLModel(params={
    "tensor": received["tensor"] + 1,
    "array": received["array"].numpy().astype(">f8")[::-1] + 1,
    "scalar": np.array(2.0),
    "count": np.int64(2),
    "number": 2.0,
})
flare.send(model, clear_cache=CLEAR)
assert CLEAR or isinstance(model.params["array"], np.ndarray)
"""


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("transfer", ["FULL", "DIFF"])
def test_a_script_of_pytorch_may_send_arrays_too(launch, monkeypatch, transfer, clear):
    """FLARE's own client leaves out what is no tensor, and gives it back to the script as if the server had sent it."""
    exchange = {"exchange_format": "pytorch", "server_expected_format": "numpy", "transfer_type": transfer}
    meta = {"TASK_EXCHANGE": exchange, "site_name": "site-1", "job_id": "j"}
    job = InProcessClientAPI(meta, result_check_interval=0.01)
    job.init(rank="0")
    sent: list[FLModel] = []

    def take(topic: str, result: Any, bus: Any) -> None:
        sent.append(FLModelUtils.from_shareable(result))
        job.data_bus.publish([TOPIC_STOP], "the end")

    monkeypatch.setattr(api, "context_dict", {})
    job.data_bus.put_data(CLIENT_API_KEY, job)
    job.data_bus.subscribe([TOPIC_LOCAL_RESULT], take)
    ones = {name: np.ones((2,) if name in ("tensor", "array") else ()) for name in ("tensor", "array", "scalar")}
    model = FLModel(params={**ones, "count": np.array(1), "number": np.array(1.0)})
    job.data_bus.publish([TOPIC_GLOBAL_RESULT], FLModelUtils.to_shareable(model))
    try:
        launch(SENDS.replace("CLEAR", str(clear)), "client.py", context=None)
    finally:
        job.data_bus.unsubscribe(TOPIC_LOCAL_RESULT, take)
        job.data_bus.put_data(CLIENT_API_KEY, None)
        job.close()
    (result,) = sent
    assert {name: np.shape(value) for name, value in result.params.items()} == {
        name: np.shape(value) for name, value in model.params.items()
    }
    assert all((value == (1 if transfer == "DIFF" else 2)).all() for value in result.params.values())


def test_other_processes_than_the_first_end_with_their_error(launch, monkeypatch):
    """Then whoever started them ends the first one too."""
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="here"):
        launch("raise ValueError('here')", "client.py")


class MixedJob(Tasks):
    """One that asks to train a model, then to evaluate two."""

    def __init__(self) -> None:
        super().__init__(3)
        self.model: FLModel | None = None

    def is_evaluate(self) -> bool:
        return self.left < 3

    def receive(self, timeout: float | None = None) -> FLModel | None:
        self.model = self.model or (FLModel(params={"w": [float(self.left)]}) if self.left else None)
        return self.model

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        super().send(model)
        self.model = None


TRAINS = """
import nvflare.client as flare
{0}
flare.init()
while flare.is_running():
    received = flare.receive()
    assert received.params["w"] == [3.0]
    flare.send(flare.FLModel(params={{"w": [4.0]}}, metrics={{"own": 1.0}}, meta={{"steps": 7}}))
"""
TRAINED = {"w": [4.0]}


@pytest.fixture
def measure(launch, monkeypatch):
    """What a job gets whose script only trains, and that names a function."""

    def run(text: str, name: str = "client.py:client.measure") -> list[tuple]:
        job = MixedJob()
        made = lambda **settings: SimpleNamespace(api=job, rank=settings["rank"])  # noqa: E731
        monkeypatch.setattr(api, "APIContext", made)
        monkeypatch.setattr(api, "context_dict", {})
        launch(TRAINS.format(text), name, context=None)
        assert api.APIContext is made
        return job.sent

    return run


def test_a_function_measures_each_model_that_a_script_is_sent(measure):
    """The script itself is never shown a model to evaluate; the metric's value tells which one was measured."""
    sent = measure("import numpy as np\ndef measure(r): return {'dice': np.float32(r.params['w'][0] / 4)}")
    assert sent == [(TRAINED, {"dice": 0.75}, {"steps": 7}), (None, {"dice": 0.5}, {}), (None, {"dice": 0.25}, {})]


@pytest.mark.parametrize(
    "text, kind",
    [
        ("def measure(r): raise KeyError('ward 7')", "KeyError"),
        ("def measure(r): raise SystemExit", "SystemExit"),
        ("measure = 3", "TypeError"),
        ("measure = None", "TypeError"),
        ("", "AttributeError"),
        ("def measure(r): pass", "TypeError"),
        ("def measure(r): return 0.5", "TypeError"),
        ("def measure(r): return {}", "TypeError"),
        ("def measure(r): return {'a': 'ward 7'}", "TypeError"),
        ("def measure(r): return {'a': float('nan')}", "TypeError"),
        ("def measure(r): return {3: 0.5}", "TypeError"),
    ],
)
def test_a_function_that_fails_stops_no_training_and_says_its_type_alone(measure, capsys, text, kind):
    meta = {cfl_launcher.NOT_MEASURED: kind}
    assert measure(text) == [(TRAINED, {}, {"steps": 7, **meta}), (None, {}, meta), (None, {}, meta)]
    assert f"{kind}" in capsys.readouterr().out
    assert not_measured(FLModel(metrics={}, meta=meta)) == f"{kind} in its evaluate function"


def test_no_function_of_an_installed_module_is_called(measure, tmp_path):
    meta = {cfl_launcher.NOT_MEASURED: "ImportError"}
    assert measure("", "client.py:shutil.rmtree")[0] == (TRAINED, {}, {"steps": 7, **meta})
    assert (
        not_measured(FLModel(metrics={}, meta={cfl_launcher.NOT_MEASURED: "x y"}))
        == "an error in its evaluate function"
    )


def test_the_job_s_own_module_is_taken_and_not_one_of_that_name_in_the_working_folder(measure, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "measures.py").write_text("def dice(received): return {'dice': 0.0}")
    (tmp_path / "measures.py").write_text("def dice(received): return {'dice': 1.0}")
    monkeypatch.syspath_prepend(elsewhere)
    assert [metrics for _, metrics, _ in measure("", "client.py:measures.dice")] == [{"dice": 1.0}] * 3


def test_after_a_script_has_failed_nothing_is_measured(measure):
    sent = measure("def measure(r): return {'a': 1.0}\nflare.init()\nraise ValueError")
    assert [meta.get(cfl_launcher.FAILED) for _, _, meta in sent] == ["ValueError"] * 3


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_job_carries_the_launcher_and_the_script(tmp_path, monkeypatch, external, absolute):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("")
    (tmp_path / "measures.py").write_text("def dice(received): pass")
    recipe = ClusteredRecipe(
        name="x",
        method="fedavg",
        model=MLP((1, 2, 2), 2),
        num_rounds=1,
        min_clients=1,
        train_script=str(tmp_path / "client.py") if absolute else "client.py",
        train_args="--lr 0.1",
        evaluate="measures.dice",
        launch_external_process=external,
    )
    recipe.export(str(tmp_path / "jobs"))
    app = tmp_path / "jobs" / "x" / "app"
    names = {path.name for path in (app / "custom").iterdir()}
    assert {"client.py", "model.py", "measures.py", LAUNCHER.name} <= names
    (executor,) = json.loads((app / "config" / "config_fed_client.json").read_text())["executors"]
    given = executor["executor"]["args"]
    if external:
        assert given["command"][-4:] == [f"custom/{LAUNCHER.name}", "client.py:measures.dice", "--lr", "0.1"]
    else:
        assert (given["task_script_path"], given["task_script_args"]) == (
            LAUNCHER.name,
            "client.py:measures.dice --lr 0.1",
        )


pl = pytest.importorskip("pytorch_lightning")
SITE = "site-1"
STEPS = 5


class Module(pl.LightningModule):
    """The Coin, and a note of the weights with which each fit() began."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(1, 2, bias=False)
        self.fits: list[list[float]] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        if batch_idx == 0:
            self.fits.append(self.head.weight.detach().flatten().tolist())
        return cross_entropy(self.head(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("loss", cross_entropy(self.head(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.ones(STEPS, 1), torch.ones(STEPS, dtype=torch.long)))

    val_dataloader = train_dataloader


class ScriptSite:
    """A site's Client API, to which tasks are given one after the other, and a script in a thread of its own."""

    def __init__(self, script: Callable[[Module], None]):
        exchange = {
            ConfigKey.TRAIN_TASK_NAME: TRAIN,
            ConfigKey.EVAL_TASK_NAME: EVALUATE,
            ConfigKey.EXCHANGE_FORMAT: "pytorch",
            ConfigKey.SERVER_EXPECTED_FORMAT: "numpy",
            ConfigKey.TRANSFER_TYPE: "FULL",
        }
        self._meta: dict[str, Any] = {FLMetaKey.SITE_NAME: SITE, FLMetaKey.JOB_ID: "job"}
        self._meta[ConfigKey.TASK_EXCHANGE] = exchange
        self._answers: list[Shareable] = []
        self.api = InProcessClientAPI(self._meta, result_check_interval=0.01)
        self.api.init()
        DataBus().put_data(CLIENT_API_KEY, self.api)
        DataBus().subscribe([TOPIC_LOCAL_RESULT], self._take)
        flare.context_dict.clear()
        self.module, self.asked = Module(), list[str]()
        self._thread = threading.Thread(target=script, args=[self.module], daemon=True)
        self._thread.start()

    def _take(self, topic: str, answer: Shareable, bus: DataBus) -> None:
        self._answers.append(answer)

    def exchange(self, task: str, data: Mapping[str, FLModel], on_answer: Callable[[FLModel], bool]) -> bool:
        self._until(lambda: self.api.fl_model is None)  # the patch forgets its task a moment after it has answered it
        self.asked.append(task)
        self._answers.clear()
        self.api.set_meta({**self._meta, ConfigKey.TASK_NAME: task})
        DataBus().publish([TOPIC_GLOBAL_RESULT], FLModelUtils.to_shareable(data[SITE]))
        self._until(lambda: bool(self._answers))
        for shareable in self._answers[:1]:
            answer = FLModelUtils.from_shareable(shareable)
            answer.meta["client_name"] = SITE
            on_answer(answer)
        return True

    def _until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not done() and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)

    def close(self) -> None:
        self.api.stop = True
        self._thread.join(30)
        self.api.close()
        DataBus().unsubscribe(TOPIC_LOCAL_RESULT, self._take)
        DataBus().put_data(CLIENT_API_KEY, None)
        flare.context_dict.clear()


@pytest.fixture
def start_script_site() -> Iterator[Callable[[Callable[[Module], None]], ScriptSite]]:
    """Sites that are taken down after the test."""
    made: list[ScriptSite] = []

    def start(script: Callable[[Module], None]) -> ScriptSite:
        made.append(ScriptSite(script))
        return made[-1]

    yield start
    for one in made:
        one.close()


def patched() -> Any:
    from nvflare.client.lightning import patch

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    patch(trainer)
    return trainer


def documented(module: Module) -> None:
    """The loop of FLARE's documents."""
    trainer = patched()
    while flare.is_running():
        trainer.validate(module, datamodule=Data(), verbose=False)
        trainer.fit(module, datamodule=Data())


def advised(module: Module) -> None:
    """The loop that our refusal and our example show."""
    trainer = patched()
    while flare.is_running():
        only_evaluate = flare.is_evaluate()
        trainer.validate(module, datamodule=Data(), verbose=False)
        if not only_evaluate:
            trainer.fit(module, datamodule=Data())


def run_plain_script(module: Module) -> None:
    """No Lightning, and no metrics where it trains."""
    flare.init()
    while flare.is_running():
        received = flare.receive()
        if flare.is_evaluate():
            flare.send(FLModel(metrics={"loss": 1.0}))
            continue
        flare.send(FLModel(params=received.params, meta={"NUM_STEPS_CURRENT_ROUND": STEPS}))


def scripts(site: ScriptSite, said: list[str]) -> tuple[Server, Scripts]:
    method = IFCA(k=2)
    state = method.start(lambda index: coin(index, -index))
    server = Server(method, Layout.of(Coin()), [Participant(SITE, SITE, 1)], ServerSettings(2), state)
    return server, Scripts(server, AssignSettings(), site.exchange, said.append, {})


def test_the_documented_loop_trains_on_what_follows_an_evaluation_and_is_refused(start_script_site):
    one = start_script_site(documented)
    server, rounds = scripts(one, [])
    assert rounds.probe()
    with pytest.raises(ConfigError, match=r"trains on them in between.*\n.*only_evaluate = nvflare.client.is_evaluate"):
        exchanged(rounds, server)
    assert one.asked == [EVALUATE, EVALUATE, EVALUATE, TRAIN, TRAIN]
    assert len(one.module.fits) == 4
    assert [1, -1] in one.module.fits  # a model that was only to be evaluated, and was not chosen


def test_the_advised_loop_trains_only_what_it_is_sent_to_train(start_script_site):
    one, said = start_script_site(advised), list[str]()
    server, rounds = scripts(one, said)
    assert rounds.probe() and exchanged(rounds, server)
    server.finish_round()
    assert exchanged(rounds, server)
    assert one.asked == [EVALUATE, *[EVALUATE, EVALUATE, TRAIN] * 2]
    assert len(one.module.fits) == 2
    assert said == ["participants choose by their script's 'loss': measure it on training data"]


def test_a_script_that_reports_no_metrics_with_its_training_passes(start_script_site):
    one = start_script_site(run_plain_script)
    server, rounds = scripts(one, [])
    assert rounds.probe() and exchanged(rounds, server)
    assert one.asked == [EVALUATE, EVALUATE, EVALUATE, TRAIN, TRAIN]


def test_no_answer_to_the_probe_ends_the_job(start_script_site):
    def fails(module: Module) -> None:
        flare.init()

    _, rounds = scripts(start_script_site(fails), [])
    with pytest.raises(ConfigError, match="no site sent a result; the sites"):
        rounds.probe()
