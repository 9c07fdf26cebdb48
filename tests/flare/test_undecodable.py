# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that FLARE cannot decode: the reason that is noted for their site."""

import re
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys

from cfl_flare.flare.controller import ClusteredController


@pytest.mark.parametrize(
    "said, reason",
    [
        ("Type 'tenseal.tensors.ckksvector.CKKSVector' is not allowed", ": a filter there encrypts models, .*"),
        ("Type 'torch.Tensor' is not allowed", ""),
    ],
)
def test_an_answer_that_cannot_be_decoded_fails_its_site_alone(said, reason, monkeypatch):
    def decode(message, *args, **kwargs):
        raise ValueError(said)

    monkeypatch.setattr(cell, "decode_payload", decode)
    controller, given_up = ClusteredController(num_rounds=1), []
    clients = {"token": SimpleNamespace(name="site-2")}
    controller.engine = SimpleNamespace(client_manager=SimpleNamespace(clients=clients))
    monkeypatch.setattr(controller, "_give_up", lambda *given: given_up.append(given))
    controller._survive_undecodable_answers()
    answer = {StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE, CellMessageHeaderKeys.TOKEN: "token"}
    cell.decode_payload(Message(answer, b"?"))
    ((site, why),) = given_up
    assert site == "site-2" and re.fullmatch(f"undecodable: ValueError{reason}", why)
    with pytest.raises(ValueError, match="not allowed"):  # what is no answer is FLARE's to handle
        cell.decode_payload(Message({}, b"?"))
