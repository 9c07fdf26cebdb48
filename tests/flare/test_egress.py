# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site's policy keeps back of the numbers beside its models."""

import pytest
from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply

from cfl_flare.errors import ConfigError
from cfl_flare.flare import wire
from cfl_flare.flare.egress import EgressFilter
from cfl_flare.site import Answer
from tests.tiny import update

METRICS = {"served_accuracy": 0.8734, "served_macro_f1": 0.5, "served_loss": 1.7, "trained_loss": 0.1}


def filtered(**settings):
    answers = [Answer("a", update("a", 137, "global", 1, 2), METRICS), Answer("b", update("b", 3, "global", 3, 4), {})]
    sent = EgressFilter(**settings).process(wire.encode_answers(answers, {"round": 4}), FLContext())
    return from_shareable(sent)


def test_by_default_all_passes():
    found = filtered()
    said = wire.content_of(found.meta)["answers"]
    assert said["a"]["metrics"] == METRICS
    assert said["a"]["samples"] == 137


def test_metrics_are_withheld_or_rounded_and_counts_are_coarse_wherever_they_stand():
    found = filtered(withhold=["loss"], round_to=0.05, samples_step=50)
    content = wire.content_of(found.meta)
    assert content["round"] == 4
    assert content["answers"]["a"]["metrics"] == {"served_accuracy": 0.85, "served_macro_f1": 0.5}
    assert {name: said["samples"] for name, said in content["answers"].items()} == {"a": 150, "b": 50}
    steps = {key: dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND) for key, dxo in found.data.items()}
    assert steps == {"a/global": 150, "b/global": 50}
    assert found.data["a/global"].data["head.weight"].tolist() == [[1], [2]]


def test_the_answer_to_the_first_task_is_coarse_too():
    hosted = {"participants": [{"name": "a", "samples": 137, "group": None}]}
    found = EgressFilter(samples_step=100).process(wire.to_shareable({}, hosted), FLContext())
    assert wire.content_of(from_shareable(found).meta)["participants"][0]["samples"] == 100


def test_what_is_no_answer_passes():
    reply = make_reply(ReturnCode.TASK_ABORTED)
    assert EgressFilter(samples_step=9).process(reply, FLContext()) is reply


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"withhold": ["recall"]}, r"withhold = \['recall'\] should be among accuracy, macro_f1, loss"),
        ({"round_to": 0}, "round_to = 0 should be in"),
        ({"samples_step": 0}, "samples_step = 0 should be a whole number >= 1"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        EgressFilter(**settings)
