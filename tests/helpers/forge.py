# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a hostile site may send in place of an honest answer: strategies over the whole schema, and an executor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal

from cfl_flare.flare import wire
from cfl_flare.flare.executor import ClusteredExecutor
from tests.helpers.bench import BINS, EVERYONE, HOSTILE, PEOPLE, samples_of

# Changes an honest answer in place, or gives another one.
Forgery = Callable[[Shareable], Shareable | None]

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.sampled_from(
    [
        "\x1b[2J\x1b]0;owned\x07",
        "[red]x[/red]",
        "a\nERROR - all is lost",
        "$\\frac{",
        "../../etc",
        "=cmd()",
        "x" * 10_000,
    ]
)
WHOLE = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 10**9, -(10**15), 2**63 - 1])
NUMBER = WHOLE | st.floats() | st.booleans()
ARRAY = st.sampled_from(
    [np.zeros(3, np.float32), np.array(7.0), np.array(["a"]), np.zeros((0, 2)), np.array([1j]), np.full(2, np.nan)]
)
LEAF = st.none() | NUMBER | TEXT | st.binary(max_size=20) | ARRAY
JUNK = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)
NAME = st.sampled_from([*EVERYONE, HOSTILE, "site-1", "", "p", "P2", "p2 ", "x" * 300]) | TEXT
METRIC = st.sampled_from(
    ["served_accuracy", "served_loss", "served_macro_f1", "trained_loss", "round", "trained", "failed", "accuracy"]
)


def _edit(change: Callable[[DXO, dict[str, Any]], None]) -> Forgery:
    """A change of the DXO and of its content."""

    def forge(answer: Shareable) -> Shareable:
        dxo = from_shareable(answer)
        content = dxo.meta[wire.META]
        change(dxo, content)
        return dxo.update_shareable(answer)

    return forge


FIELDS = ("name", "samples", "group", "tested")


@st.composite
def check_ins(draw: st.DrawFn) -> Forgery:
    """A check-in that is not true, or none at all."""
    own = draw(st.sampled_from([0, 1]))
    what = draw(st.sampled_from([*FIELDS, "label", "field", "fewer", "whole", "list", "more", "twice", "classes"]))
    junk = draw(
        {"name": NAME | JUNK, "samples": NUMBER | JUNK, "group": NUMBER | JUNK, "label": NAME | JUNK}.get(what, JUNK)
    )

    def change(dxo: DXO, content: dict[str, Any]) -> None:
        said = content["participants"]
        match what:
            case "name" | "samples" | "group" | "tested" | "label":
                said[own][what] = junk
            case "field":
                said[own]["more"] = junk
            case "fewer":
                del said[own]["samples"]
            case "whole":
                said[own] = junk
            case "list":
                content["participants"] = junk
            case "classes":
                content["classes"] = [junk]
            case "more":
                said.append({"name": "p0", "samples": 3, "group": None, "tested": True})
            case "twice":
                said.append(dict(said[own]))

    return _edit(change)


@st.composite
def forged_contents(draw: st.DrawFn) -> Forgery:
    """Results whose content is not what the schema allows."""
    own = draw(st.sampled_from(PEOPLE[HOSTILE]))
    fields = ["metrics", "error", "cross", "samples", "cluster", "carrier", "more"]
    what = draw(st.sampled_from([*fields, "metric", "whole", "results", "round", "schema", "unknown", "other", "many"]))
    junk = draw({"samples": NUMBER | JUNK, "carrier": NAME | JUNK, "round": NUMBER | JUNK}.get(what, JUNK))
    name, value = draw(METRIC | NAME), draw(NUMBER | JUNK)
    victim = draw(st.sampled_from(EVERYONE) | NAME)

    def change(dxo: DXO, content: dict[str, Any]) -> None:
        said = content["results"]
        match what:
            case "metric":
                said[own]["metrics"] = {name: value}
            case "whole":
                said[own] = junk
            case "results" | "round" | "schema":
                content[what] = junk
            case "unknown":
                content[victim] = junk
            case "other":
                said[victim] = said.pop(own)
            case "many":
                said.update({f"x{i}": said[own] for i in range(50)})
            case _:
                said[own][what] = junk

    return _edit(change)


DTYPES = ["float16", "float64", "longdouble", "complex64", "S3", "U3", "M8[s]", "bool", "uint64", "int8", "V4"]


@st.composite
def forged_models(draw: st.DrawFn) -> Forgery:
    """Results whose arrays are not those of the model that was sent."""
    own = draw(st.sampled_from(PEOPLE[HOSTILE]))
    names = ["head.weight", "head.bias"]
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    what = draw(
        st.sampled_from(["array", "value", "shape", "name", "missing", "kind", "history", "key", "dxo", "meta"])
    )
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    bad = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3.4e38, 1e30, -1e12]))
    kind = draw(st.sampled_from([DataKind.WEIGHTS, DataKind.METRICS, DataKind.COLLECTION, "?"]))
    junk, text, which = draw(JUNK), draw(NAME), draw(st.sampled_from([0, 1]))

    def change(dxo: DXO, content: dict[str, Any]) -> None:
        key = next(key for key in dxo.data if key.startswith(own))
        part: DXO = dxo.data[key]
        name = sorted(part.data)[which % len(part.data)]
        assert name in names or part.data
        match what:
            case "array":
                part.data[name] = junk
            case "value":
                part.data[name] = np.full(part.data[name].shape, bad, np.float32)
            case "shape":
                part.data[name] = np.zeros((*shape, 3), dtype)
            case "name":
                part.data[text] = part.data.pop(name)
            case "missing":
                del part.data[name]
            case "kind":
                part.data_kind = kind
            case "history":
                part.data.pop(name)
                part.meta[MetaKey.FILTER_HISTORY] = None if isinstance(junk, list) else junk
            case "key":
                dxo.data[text] = dxo.data.pop(key)
            case "dxo":
                dxo.data[key] = junk
            case "meta":
                part.meta = {"NUM_STEPS_CURRENT_ROUND": junk}

    return _edit(change)


BAD = (np.nan, np.inf, -np.inf, 1e30, -1e12)
EXTREME = (-1e9, -1.0, 0.0, 0.5, 1e-30, 1.0, 1e9)


def arrays_of(dxo: DXO, own: str) -> Any:
    """The arrays beside models that a participant sends; one that none asked for, where it sends none."""
    return dxo.data.setdefault(
        f"{own}/{wire.ARRAYS}", DXO(DataKind.WEIGHT_DIFF, data={"loss": np.zeros(2, np.float32)})
    )


@st.composite
def forged_arrays(draw: st.DrawFn) -> Forgery:
    """Results whose losses or other arrays are not what was asked for, or are said to be another's."""
    own = draw(st.sampled_from(PEOPLE[HOSTILE]))
    what = draw(
        st.sampled_from(["value", "shape", "array", "missing", "repeated", "owner", "name", "kind", "dxo", "gone"])
    )
    bad, place = draw(st.sampled_from(BAD)), draw(st.integers(0, 10**6))
    shape, dtype = draw(st.lists(st.integers(0, 4), max_size=4).map(tuple)), draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from([DataKind.WEIGHTS, DataKind.METRICS, DataKind.COLLECTION, "?"]))
    junk, text = draw(JUNK), draw(NAME)

    def change(dxo: DXO, content: dict[str, Any]) -> None:
        part = arrays_of(dxo, own)
        name = min(part.data)
        match what:
            case "value":
                part.data[name] = part.data[name].astype(np.float64)
                part.data[name].reshape(-1)[place % part.data[name].size] = bad
            case "shape":
                part.data[name] = np.zeros((*shape, 7), dtype)
            case "array":
                part.data[name] = junk
            case "missing":
                del part.data[name]
            case "repeated":
                part.data["again"] = part.data[name]
            case "owner":
                dxo.data[f"p0/{wire.ARRAYS}"] = dxo.data.pop(f"{own}/{wire.ARRAYS}")
            case "name":
                part.data[f"{text}?"] = part.data.pop(name)
            case "kind":
                part.data_kind = kind
            case "dxo":
                dxo.data[f"{own}/{wire.ARRAYS}"] = junk
            case "gone":
                dxo.data = {key: part for key, part in dxo.data.items() if not key.startswith(f"{own}/")}

    return _edit(change)


@st.composite
def untrue(draw: st.DrawFn) -> Forgery:
    """Results that have all that was asked for, and numbers that are not true: extreme, or another participant's."""
    numbers = st.lists(st.sampled_from(EXTREME), min_size=1, max_size=6)
    rows = {name: draw(numbers) for name in PEOPLE[HOSTILE]}
    swapped = draw(st.booleans())

    def change(dxo: DXO, content: dict[str, Any]) -> None:
        parts = [dxo.data.get(f"{name}/{wire.ARRAYS}") for name in PEOPLE[HOSTILE]]
        if None in parts:
            return
        for part, row in zip(parts, rows.values()):
            for name, array in part.data.items():
                part.data[name] = np.resize(np.float32(row), array.shape)
        if swapped:
            parts[0].data, parts[1].data = parts[1].data, parts[0].data

    return _edit(change)


@st.composite
def histograms(draw: st.DrawFn) -> Forgery:
    """Results whose histograms of scores are not those of a test split, or were not asked for."""
    own = draw(st.sampled_from(PEOPLE[HOSTILE]))
    what = draw(st.sampled_from(["array", "value", "shape", "name", "kind", "dxo", "missing", "owner"]))
    shape, dtype = draw(st.lists(st.integers(0, 4), max_size=4).map(tuple)), draw(st.sampled_from(DTYPES))
    value = draw(st.sampled_from([-1, 10**9, 10**18, -(2**63), 2**63 - 1]))
    kind = draw(st.sampled_from([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS, "?"]))
    junk, text, place = draw(JUNK), draw(NAME), draw(st.integers(0, 4 * BINS + 3))

    def change(dxo: DXO, content: dict[str, Any]) -> None:
        key = f"{own}/#scores"
        counts = np.ones((2, 2, BINS + 1), np.int64)
        counts[..., BINS] = BINS // 2
        part = dxo.data[key] = DXO(DataKind.STATISTICS, data={wire.COUNTS: counts})
        match what:
            case "array":
                part.data[wire.COUNTS] = junk
            case "value":
                counts.reshape(-1)[place] = value
            case "shape":
                part.data[wire.COUNTS] = np.zeros((*shape, 3), dtype)
            case "name":
                part.data[text] = part.data.pop(wire.COUNTS)
            case "kind":
                part.data_kind = kind
            case "dxo":
                dxo.data[key] = junk
            case "missing":
                del dxo.data[key]
            case "owner":
                dxo.data[f"{text}/#scores"] = dxo.data.pop(key)

    return _edit(change)


@st.composite
def messages(draw: st.DrawFn) -> Forgery:
    """Another message in place of the answer."""
    kinds = ["empty", "code", "header", "body", "kind", "meta", "content", "check-in", "error", "results", "nothing"]
    what = draw(st.sampled_from(kinds))
    junk, text = draw(JUNK), draw(TEXT)
    code = draw(st.sampled_from([c for n, c in vars(ReturnCode).items() if n.isupper() and c != "OK"]) | TEXT | JUNK)
    kind = draw(st.sampled_from([DataKind.WEIGHTS, DataKind.METRICS, DataKind.WEIGHT_DIFF, DataKind.ANALYTIC, "?"]))

    def forge(answer: Shareable) -> Shareable | None:
        match what:
            case "nothing":
                return None
            case "empty":
                return Shareable()
            case "code":
                reply = make_reply(ReturnCode.ERROR)
                reply.set_header(ReservedHeaderKey.RC, code)
                return reply
            case "header":
                answer.set_header(ReservedHeaderKey.CONTENT_TYPE, junk)
            case "body":
                answer["DXO"] = junk
            case "kind":
                answer["DXO"]["kind"] = kind
                answer["DXO"]["data"] = {"x": np.ones(2)}
            case "meta":
                answer["DXO"]["meta"] = junk
            case "content":
                answer["DXO"]["meta"] = {wire.META: junk}
            case "error":
                return wire.to_shareable({}, {"error": text})
            case "results":
                return wire.to_shareable({}, {"results": {}, "round": 0, text: junk})
            case "check-in":
                hosted = [{"name": n, "samples": samples_of(n), "group": None, "tested": True} for n in PEOPLE[HOSTILE]]
                return wire.to_shareable({}, {"participants": hosted, "schema": junk})
        return answer

    return forge


WHERE, MODE = "site-2", "CFL_TEST_HOSTILE"


def _each(change: Callable[[dict[str, Any]], Any]) -> Callable[[DXO, dict[str, Any]], Any]:
    """A change of each participant's result."""
    return lambda dxo, content: [change(said) for said in content["results"].values()]


def _parts(change: Callable[[DXO, str], Any]) -> Callable[[DXO, dict[str, Any]], Any]:
    """A change of one array of each model that is sent."""
    return lambda dxo, content: [change(part, sorted(part.data)[0]) for part in dxo.data.values()]


# In each round another: (what changes, what the server's reason begins with).
FORGED: list[tuple[Callable[[DXO, dict[str, Any]], Any], str]] = [
    (_each(lambda said: said.update(samples=10**9)), "samples: "),
    (_each(lambda said: said["metrics"].update(round=1.0)), "metric: "),
    (_each(lambda said: said["metrics"].update(served_accuracy=1e6)), "metric: "),
    (_each(lambda said: said["metrics"].update(served_loss=float("nan"))), "diverged: "),
    (_each(lambda said: said.update(error="\x1b[2Jward 3\n[red]")), "malformed: "),
    (_each(lambda said: said.update(cross=[{"deep": [[[[]]]]}])), "malformed: "),
    (lambda dxo, content: content.update(round="0"), "round: "),
    (lambda dxo, content: content.update(results={f"x{i}": {} for i in range(3_000)}), "malformed: "),
    (lambda dxo, content: dxo.data.update({"p0/global": next(iter(dxo.data.values()))}), "unknown_participant: "),
    (_parts(lambda part, name: part.data.update({name: np.array(["x"])})), "dtype: "),
    (_parts(lambda part, name: part.data.update({name: part.data[name][..., None]})), "shape: "),
    (_parts(lambda part, name: part.data.update({name: np.full_like(part.data[name], np.inf)})), "non_finite: "),
    (_parts(lambda part, name: part.data.update({"x" * 10_000: part.data.pop(name)})), "extra_parameter: "),
    (_parts(lambda part, name: setattr(part, "data_kind", DataKind.WEIGHTS)), "kind: "),
    (_parts(lambda part, name: part.meta.update({MetaKey.FILTER_HISTORY: 7}) or part.data.pop(name)), "missing_"),
]


class Hostile(ClusteredExecutor):
    """Trains as any other site; at one of them, what it sends is forged, or says that all failed."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Carries out a task, then changes its result."""
        answer = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if task_name != wire.TRAIN_TASK or fl_ctx.get_identity_name() != WHERE:
            return answer
        number = wire.content_of(from_shareable(shareable).meta)["round"]
        dxo = from_shareable(answer)
        content = dxo.meta[wire.META]
        if os.environ[MODE] == "fails" or number == len(FORGED):  # the last exchange measures only
            failed = {name: {"metrics": {}, "error": "training"} for name in content["results"]}
            return wire.to_shareable({}, {"round": number, "results": failed})
        FORGED[number][0](dxo, content)
        return dxo.update_shareable(answer) if number % 2 else dxo.to_shareable()
