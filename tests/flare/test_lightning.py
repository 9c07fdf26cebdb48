# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's own Client API and Lightning patch under a server's rounds, in this process, for one site."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import nvflare.client.api as flare
import pytest
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client.api_spec import CLIENT_API_KEY
from nvflare.client.config import ConfigKey
from nvflare.client.in_process.api import TOPIC_GLOBAL_RESULT, TOPIC_LOCAL_RESULT, InProcessClientAPI
from nvflare.fuel.data_event.data_bus import DataBus
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.engine.job_settings import AssignSettings
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.flare.client_api.controller import EVALUATE, TRAIN, Scripts
from cfl_flare.methods import IFCA, Participant
from tests.tiny import Coin, coin

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


class Site:
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
def site() -> Iterator[Callable[[Callable[[Module], None]], Site]]:
    """Sites that are taken down after the test."""
    made: list[Site] = []

    def start(script: Callable[[Module], None]) -> Site:
        made.append(Site(script))
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


def plain(module: Module) -> None:
    """No Lightning, and no metrics where it trains."""
    flare.init()
    while flare.is_running():
        received = flare.receive()
        if flare.is_evaluate():
            flare.send(FLModel(metrics={"loss": 1.0}))
            continue
        flare.send(FLModel(params=received.params, meta={"NUM_STEPS_CURRENT_ROUND": STEPS}))


def scripts(site: Site, said: list[str]) -> tuple[Server, Scripts]:
    method = IFCA(k=2)
    state = method.start(lambda index: coin(index, -index))
    server = Server(method, Layout.of(Coin()), [Participant(SITE, SITE, 1)], ServerSettings(2), state)
    return server, Scripts(server, AssignSettings(), site.exchange, said.append)


def test_the_documented_loop_trains_on_what_follows_an_evaluation_and_is_refused(site):
    one = site(documented)
    _, rounds = scripts(one, [])
    assert rounds.probe()
    with pytest.raises(ConfigError, match=r"trains on them in between.*\n.*only_evaluate = nvflare.client.is_evaluate"):
        rounds.round()
    assert one.asked == [EVALUATE, EVALUATE, EVALUATE, TRAIN, TRAIN]
    assert len(one.module.fits) == 4
    assert [1, -1] in one.module.fits  # a model that was only to be evaluated, and was not chosen


def test_the_advised_loop_trains_only_what_it_is_sent_to_train(site):
    one, said = site(advised), list[str]()
    server, rounds = scripts(one, said)
    assert rounds.probe() and rounds.round()
    server.finish_round()
    assert rounds.round()
    assert one.asked == [EVALUATE, *[EVALUATE, EVALUATE, TRAIN] * 2]
    assert len(one.module.fits) == 2
    assert said == ["participants choose by their script's 'loss': measure it on training data"]


def test_a_script_that_reports_no_metrics_with_its_training_passes(site):
    one = site(plain)
    _, rounds = scripts(one, [])
    assert rounds.probe() and rounds.round()
    assert one.asked == [EVALUATE, EVALUATE, EVALUATE, TRAIN, TRAIN]


def test_no_answer_to_the_probe_ends_the_job(site):
    def fails(module: Module) -> None:
        flare.init()

    _, rounds = scripts(site(fails), [])
    with pytest.raises(ConfigError, match="no site sent a result; the sites"):
        rounds.probe()
