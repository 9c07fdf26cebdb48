# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is measured on draws of a test split: asked for at the end alone, kept back by a site's policy, and checked."""

from collections.abc import Callable
from typing import Any

import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from cfl_flare.core.errors import PayloadError
from cfl_flare.engine.observers import observers_of
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.task import Result, Task
from cfl_flare.flare import wire
from cfl_flare.flare.egress import EgressFilter
from cfl_flare.flare.schema import decode_results
from cfl_flare.methods import FedAvg, Participant
from cfl_flare.training.bootstrap import DRAWS, Replicates
from cfl_flare.training.tasks import Classification
from tests.tiny import LAYOUT, coin, initial, update

RANGES = Classification().ranges()
TIMES = 50
METRICS = {"served_accuracy": 0.5, "served_loss": 1.0}
VALUES = {"served_accuracy": (0.5, None, *[0.25] * 48), "served_loss": (1.5,) * 50}
DRAWN = {"draw": 9, "values": {name: list(own) for name, own in VALUES.items()}}
HONEST = Result("a", None, {"metrics": METRICS, "bootstrap": DRAWN})
Change = Callable[[dict[str, Any]], Any]


def at_the_end(ranges=RANGES) -> Server:
    """A server whose participants a and b were asked to measure the final models."""
    people = [Participant("a", "site-1", 1), Participant("b", "site-1", 3)]
    server = Server(
        FedAvg(),
        LAYOUT,
        people,
        ServerSettings(1),
        FedAvg().start(initial),
        Equipment(observers=observers_of(ServerSettings(1), ranges, bootstrap=TIMES)),
    )
    assert all(task.train and not task.questions for task in server.tasks().values())
    for name, samples in (("a", 1), ("b", 3)):
        server.accept(Result(name, update(name, samples, "global", 1, 1)), "site-1")
    server.finish_round()
    questions = {"bootstrap": {"times": TIMES, "measures": []}, "test_classes": {}}
    assert server.tasks() == {name: Task(("global",), False, True, questions=questions) for name in "ab"}
    return server


def arrived(answer: Result, change: Change = lambda said: None) -> Result:
    """An answer as the server reads it, once its draws were changed.

    Raises:
        PayloadError: they are refused.
    """
    model = FLModelUtils.from_shareable(wire.encode_results([answer], {"round": 0}))
    change(model.meta[wire.META]["results"]["a"]["bootstrap"])
    (result,) = decode_results(model, {}, 0, "a")
    if isinstance(result, tuple):
        raise result[1]
    return result


def test_a_task_and_its_draws_arrive_as_they_were_sent():
    order = {
        "a": Task(
            ("global",),
            False,
            True,
            questions={"bootstrap": {"times": TIMES, "measures": ["loss"]}, "test_classes": {}},
        ),
        "b": Task(("global",), False, True),
    }
    said = wire.encode_tasks(order)
    assert said["a"]["questions"]["bootstrap"]["times"] == TIMES and not said["b"]["questions"]
    data = wire.message(wire.encode_models({"global": coin(1, 2)}), {"tasks": said, "round": 0}, 0, 0)
    shareable = DXO(DataKind.COLLECTION, data=data.params, meta=data.meta).to_shareable()
    assert wire.decode_task(shareable, LAYOUT)[0] == order
    assert arrived(HONEST) == HONEST
    plain = wire.encode_results([Result("a", None, {"metrics": METRICS})], {"round": 0})
    assert "bootstrap" not in from_shareable(plain).meta[wire.META]["results"]["a"]


def test_draws_are_kept_with_the_result():
    server = at_the_end()
    server.accept(arrived(HONEST), "site-1")
    server.accept(Result("b", None, {"metrics": METRICS}), "site-1")  # a site may keep its draws
    assert server.finish_round().record["served_accuracy"] == 0.5
    assert server.results["a"].answers["bootstrap"] == Replicates(9, VALUES)


def values(**own: Any) -> Change:
    return lambda said: said["values"].update({f"served_{name}": value for name, value in own.items()})


FORGED: dict[str, tuple[Change, str]] = {
    "one too many": (values(loss=[1.0] * 51), "a sent 51 draws of served_loss, not 50, as the job asks with bootstrap"),
    "one too few": (values(loss=[1.0] * 49), "a sent 49 draws of served_loss, not 50"),
    "none": (values(loss=[]), "a sent 0 draws of served_loss"),
    "a million": (values(loss=[1.0] * 10**6), "should be a list of at most 2000, not 1000000 values"),
    "no list": (values(loss={"0": 1.0}), "should be a list of at most 2000, not {"),
    "NaN": (values(loss=[float("nan")] * 50), r"a draw of served_loss is nan, and should be a number in \[0, 1e\+09\]"),
    "infinity": (values(loss=[float("inf")] * 50), "is inf, and should be"),
    "out of range": (
        values(accuracy=[1.5] * 50),
        r"a draw of served_accuracy is 1\.5, and should be a number in \[0, 1\]",
    ),
    "text": (values(accuracy=["\x1b[2J"] * 50), "a draw of served_accuracy is"),
    "True": (values(accuracy=[True] * 50), "a draw of served_accuracy is True"),
    "lists": (values(accuracy=[[[[]]]] * 50), "a draw of served_accuracy is"),
    "nobody's measure": (values(wealth=[1.0] * 50), "'served_wealth' should be one of served_accuracy"),
    "a measure without its value": (values(macro_f1=[1.0] * 50), "a has draws of 'served_macro_f1', which it does not"),
    "of training": (lambda said: said["values"].update(trained_loss=[1.0] * 50), "'trained_loss' should be one of"),
    "a number as name": (lambda said: said["values"].update({7: [1.0] * 50}), "7 should be one of"),
    "no values": (lambda said: said.pop("values"), "should be its draw, and values by measure"),
    "values in a list": (lambda said: said.update(values=[1.0] * 50), "should be its draw, and values by measure"),
    "one more field": (lambda said: said.update(rows=[0] * 50), "should be its draw, and values by measure"),
    "a large draw": (lambda said: said.update(draw=DRAWS), f"draw = {DRAWS} should be a whole number below"),
    "a negative draw": (lambda said: said.update(draw=-1), "draw = -1 should be"),
    "a draw that is none": (lambda said: said.update(draw=None), "draw = None should be"),
}


@pytest.mark.parametrize("case", FORGED)
def test_draws_that_were_not_asked_for_cost_that_participant_its_result(case):
    change, reason = FORGED[case]
    server = at_the_end()
    with pytest.raises(PayloadError, match=reason) as refused:
        server.accept(arrived(HONEST, change), "site-1")
    assert refused.value.code == "metric"
    server.accept(Result("b", None, {"metrics": METRICS}), "site-1")
    assert "a" not in server.results and "b" in server.results


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        (
            {"draw": 9, "values": {"served_loss": (float("nan"),) * 50}},
            "a draw of served_loss is neither a finite number",
        ),
        ({"draw": -1, "values": VALUES}, "draw = -1 should be"),
        (
            {"draw": 9, "values": {"trained_loss": (1.0,) * 50}},
            "a has draws of 'trained_loss', which it does not report",
        ),
    ],
)
def test_what_another_way_than_flare_brings_is_checked_as_well(drawn, reason):
    with pytest.raises(PayloadError, match=reason):
        at_the_end(None).accept(Result("a", None, {"metrics": METRICS, "bootstrap": drawn}), "site-1")


def test_draws_in_a_round_that_did_not_ask_for_them():
    people = [Participant("a", "site-1", 1)]
    server = Server(
        FedAvg(),
        LAYOUT,
        people,
        ServerSettings(1),
        FedAvg().start(initial),
        Equipment(observers=observers_of(ServerSettings(1), bootstrap=TIMES)),
    )
    server.tasks()
    early = Result("a", update("a", 1, "global", 1, 1), {"bootstrap": {"draw": 9, "values": {}}})
    with pytest.raises(PayloadError, match="a was not asked to measure draws of its test split"):
        server.accept(early, "site-1")


def filtered(**policy: Any) -> dict[str, Any]:
    """What a site's policy lets out of an honest answer."""
    sent = EgressFilter(**policy).process(wire.encode_results([HONEST], {"round": 0}), FLContext())
    return wire.content_of(from_shareable(sent).meta)["results"]["a"]


def test_a_filter_treats_draws_as_what_they_are_of():
    assert filtered()["bootstrap"] == {"draw": 9, "values": {name: list(own) for name, own in VALUES.items()}}
    assert filtered(withhold=["loss"])["bootstrap"]["values"].keys() == {"served_accuracy"}
    assert "bootstrap" not in filtered(round_to=0.4)  # their mean would be finer than a step
    for nothing in (["*"], ["accuracy", "loss"]):
        assert filtered(withhold=nothing) == {"metrics": {}, "error": None}


def test_a_filter_keeps_the_draws_alone():
    assert filtered(withhold=["bootstrap"]) == {"metrics": METRICS, "error": None}


def test_what_a_filter_lets_out_is_taken():
    for policy in ({"withhold": ["loss"]}, {"round_to": 0.3}, {"withhold": ["bootstrap"]}):
        sent = EgressFilter(**policy).process(wire.encode_results([HONEST], {"round": 0}), FLContext())
        (result,) = decode_results(FLModelUtils.from_shareable(sent), {}, 0, "a")
        at_the_end().accept(result, "site-1")
