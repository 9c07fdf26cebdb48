# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Objects from their configuration, and settings, each of which is stated once."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cfl_flare.core.config import (
    MARK,
    build,
    check_run_name,
    describe,
    from_dict,
    marked,
    parse_spec,
    require,
    unmarked,
)
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import (
    SHARE_OR_COUNT,
    changed,
    check_known,
    check_settings,
    check_types,
    from_attributes,
    keep,
    pick,
    setting,
    settings_of,
    shows,
)
from cfl_flare.models import MLP

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda k: k not in MARK), inner),
    max_leaves=10,
)


@dataclass(frozen=True)
class Settings:
    size: int
    rate: float = 0.1
    name: str | None = None
    on: bool = False
    way: Literal["up", "down"] = "up"
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self, "settings")


class Keeps:
    def __init__(self, a: int, b: Any = 2, *, c: str = "x"):
        self.a, self.b, self.c = a, b, c


class Loses:
    def __init__(self, a: int):
        self.twice = 2 * a


class LosesDefault:
    def __init__(self, a: int, b: int = 3):
        self.a = a


class Open:
    def __init__(self, a: int = 0, **rest: Any):
        self.a, self.rest = a, rest


class Outer:
    class Inner:
        pass


@given(JSON)
def test_marks_come_off_again(value: Any) -> None:
    assert unmarked(marked(value)) == value
    assert unmarked(value) == value
    assert marked(marked(value)) == marked(value)


def test_every_dictionary_is_marked() -> None:
    value = marked({"path": "x", "args": ({"name": "y"}, [{"z": 1}])})
    assert value == {"path": "x", "args": [{"name": "y"} | MARK, [{"z": 1} | MARK]]} | MARK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fedavg", ("fedavg", {})),
        ("fedavg:", ("fedavg", {})),
        ("wecfl:k=3,cluster_on=fc", ("wecfl", {"k": 3, "cluster_on": "fc"})),
        ("x:a=0.5,b=True,c=None,d=-1,e=1e-3", ("x", {"a": 0.5, "b": True, "c": None, "d": -1, "e": 0.001})),
        ("x:hidden=[10, 20],b=(1,2)", ("x", {"hidden": [10, 20], "b": (1, 2)})),
        ("x:a=[[1,2],[3]],b=4", ("x", {"a": [[1, 2], [3]], "b": 4})),
        ("x:url=a=b,c='3'", ("x", {"url": "a=b", "c": "3"})),
        (" x : a=1, b = two", ("x", {"a": 1, "b": " two"})),
        ("x:a=", ("x", {"a": ""})),
        ("npz:path=/tmp/a b.npz", ("npz", {"path": "/tmp/a b.npz"})),
    ],
)
def test_parse_spec(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert parse_spec(text) == expected


@pytest.mark.parametrize("text", ["x:3", "x:a=1,b", "x:=1", "x:a=1,", "x: =1"])
def test_parse_spec_refuses_what_is_not_key_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match="is not key=value"):
        parse_spec(text)


def test_parse_spec_takes_what_is_no_literal_for_text() -> None:
    assert parse_spec("x:a={[]}") == ("x", {"a": "{[]}"})


def test_from_dict_builds() -> None:
    assert from_dict(Settings, {"size": 3, "rate": 2, "parts": ["a"]}, "here") == Settings(3, 2, parts=["a"])
    assert from_dict(Open, {"a": 1, "b": 2}, "here").rest == {"b": 2}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 3, "sise": 4}, "here: unknown setting 'sise'; it has: size, rate, name"),
        ({}, "here: setting 'size' is missing"),
        ({"size": "3"}, "size = '3' should be int, not str"),
        ({"size": 3.0}, "size = 3.0 should be int, not float"),
        ({"size": True}, "size = True should be int, not bool"),
        ({"size": 3, "rate": False}, "rate = False should be float, not bool"),
        ({"size": 3, "rate": None}, "rate = None should be float"),
        ({"size": 3, "on": 1}, "on = 1 should be bool"),
        ({"size": 3, "name": 4}, "name = 4 should be str | None"),
        ({"size": 3, "way": "left"}, "way = 'left' should be"),
    ],
)
def test_from_dict_names_what_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Settings, values, "here")
    assert message in str(caught.value)


class Raises:
    def __init__(self, a: Any):
        len(a)
        int(a)


@pytest.mark.parametrize(
    "value, error", [(28, "TypeError: object of type 'int'"), ("x", "ValueError: invalid literal")]
)
def test_from_dict_turns_a_constructors_error_into_one_of_settings(value: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"^thing: {error}.*given: {{'a': {value!r}}}"):
        from_dict(Raises, {"a": value}, "thing")


def test_require() -> None:
    require(True, "unused")
    with pytest.raises(ConfigError, match=r"^why$"):
        require(False, "why")


def test_describe_reads_the_attributes() -> None:
    described = describe(Keeps(1, (2, [3.5, {4: None}]), c="y"), "thing")
    assert described == {
        "class_path": f"{__name__}.Keeps",
        "args": {"a": 1, "b": [2, [3.5, {"4": None}]], "c": "y"},
    }
    assert json.loads(json.dumps(described)) == described


def test_describe_leaves_defaults_out() -> None:
    assert describe(Keeps(1), "thing")["args"] == {"a": 1}
    assert describe(Open(5, b=6), "thing")["args"] == {"a": 5}


def test_describe_takes_a_dictionary() -> None:
    assert describe({"class_path": "a.B"}, "model") == {"class_path": "a.B", "args": {}}
    given_marked = marked({"class_path": "a.B", "args": {"c": {"d": 1}}})
    assert describe(given_marked, "model") == {"class_path": "a.B", "args": {"c": {"d": 1}}}


@pytest.mark.parametrize("spec", [{}, {"args": {}}, {"class_path": "a.B", "arg": {}}, {"path": "a.B"}])
def test_describe_refuses_other_dictionaries(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model: .*should be \{'class_path'"):
        describe(spec, "model")


def test_describe_refuses_a_class_that_no_site_can_import() -> None:
    class Local:
        pass

    with pytest.raises(ConfigError, match=r"Local is defined in the script itself"):
        describe(Local(), "model")


def test_describe_refuses_a_class_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeps, "__module__", "__main__")
    with pytest.raises(ConfigError, match="Keeps is defined in the script itself"):
        describe(Keeps(1), "model")


def test_describe_refuses_an_argument_that_is_not_kept() -> None:
    with pytest.raises(ConfigError, match="Loses does not keep its argument 'a'"):
        describe(Loses(1), "model")
    with pytest.raises(ConfigError, match="LosesDefault does not keep its argument 'b'"):
        describe(LosesDefault(1, b=4), "model")  # a site would build it with b = 3


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", Keeps(1)])
def test_describe_refuses_what_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"Keeps\.b = .* cannot be written to a job file"):
        describe(Keeps(1, value), "model")


def test_a_class_inside_a_class_is_built_again_or_refused() -> None:
    try:
        spec = describe(Outer.Inner(), "model")
    except ConfigError:
        return
    assert isinstance(build(spec, object, "model"), Outer.Inner)


def test_build_makes_what_describe_described() -> None:
    spec = describe(MLP((2, 2), 3, hidden=(4,)), "model")
    for form in (spec, marked(spec)):
        module = build(form, MLP, "model")
        assert (module.input_shape, module.num_classes, module.hidden) == ((2, 2), 3, (4,))
    assert build({"class_path": f"{__name__}.Keeps", "args": {"a": 1, "b": 9}}, Keeps, "thing").b == 9


def test_build_asks_before_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "side_effect_module.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    asked = []

    def refuse(path: str) -> None:
        asked.append(path)
        raise PermissionError(path)

    with pytest.raises(PermissionError):
        build({"class_path": "side_effect_module.Thing"}, object, "model", refuse)
    assert asked == ["side_effect_module.Thing"]
    assert "side_effect_module" not in sys.modules
    try:
        assert (
            type(build({"class_path": "side_effect_module.Thing"}, object, "model", asked.append)).__name__ == "Thing"
        )
    finally:
        sys.modules.pop("side_effect_module", None)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "class_path = None should be 'package.module.Class'"),
        ("Thing", "class_path = 'Thing' should be"),
        (3, "class_path = 3 should be"),
        ("no_such_package.Thing", "'no_such_package.Thing' cannot be imported here"),
        ("cfl_flare.models.NoSuchModel", "'cfl_flare.models.NoSuchModel' cannot be imported here"),
        ("cfl_flare.core.config.parse_spec", "is not a cfl_flare.models.MLP"),
        ("cfl_flare.models.FashionCNN", "is not a cfl_flare.models.MLP"),
        ("cfl_flare.models.MODELS", "is not a cfl_flare.models.MLP"),
    ],
)
def test_build_refuses(path: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build({"class_path": path}, MLP, "model")
    assert str(caught.value).startswith("model: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("path", [".MLP", ".models.MLP"])
def test_build_refuses_relative_paths(path: str) -> None:
    with pytest.raises(ConfigError):
        build({"class_path": path}, MLP, "model")


def test_build_refuses_arguments_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="model MLP: unknown setting 'width'"):
        build({"class_path": "cfl_flare.models.MLP", "args": {"width": 3}}, MLP, "model")
    with pytest.raises(ConfigError, match="model MLP: setting 'input_shape' is missing"):
        build({"class_path": "cfl_flare.models.MLP"}, MLP, "model")


@pytest.mark.parametrize("name", ["a", "Run-1", "2024.10_x", "a" * 100])
def test_run_names(name: str) -> None:
    check_run_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-a", "_a", "a/b", "../a", "a b", "a\n", "ä", "a" * 101, "a\0", None, 3]
)
def test_run_names_that_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="run: name"):
        check_run_name(name)


LOGISTIC = "cfl_flare.models.Logistic"
DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "args", [{"*": 5}, {"*": [[1, 4, 4], 2, 3, 4, 5, 6]}, {"x": {"class_path": LOGISTIC, "args": 5}}, 5, {"x": DEEP}]
)
def test_arguments_that_no_class_has_are_one_clear_error(args) -> None:
    with pytest.raises(ConfigError, match=r"model( Logistic)?: .*(arguments|args)"):
        build({"class_path": LOGISTIC, "args": args}, nn.Module, "model")


# ---- Settings ----


@dataclass(frozen=True)
class Oven:
    degrees: int = setting(help="how hot", ge=1)
    share: float | int = setting(1.0, help="how much of it", bounds=SHARE_OR_COUNT)
    rate: float = setting(0.5, help="how fast", ge=0, lt=1)
    mode: str | None = setting(None, help="how", choices=("air", "grill"))
    clean: int = setting(0, help="how often", ge=0, name="oven_clean")
    inner: bool = field(default=False)

    def __post_init__(self) -> None:
        check_settings(self, "oven")


@dataclass(frozen=True)
class Sink:
    degrees: int = setting(40, help="of the water")
    clean: int = setting(0, help="how often", name="sink_clean")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"degrees": 0}, "oven: degrees = 0 should be >= 1"),
        ({"degrees": 1.0}, "oven: degrees = 1.0 should be int, not float"),
        ({"share": 1.5}, "oven: share = 1.5 should be a share in (0.0, 1.0] or a count >= 1"),
        ({"share": 0}, "oven: share = 0 should be a share"),
        ({"rate": 1}, "oven: rate = 1 should be in [0, 1)"),
        ({"rate": -0.1}, "oven: rate = -0.1 should be in [0, 1)"),
        ({"rate": float("nan")}, "oven: rate = nan should be in [0, 1)"),
        ({"mode": "steam"}, "oven: mode = 'steam' should be 'air' or 'grill'"),
        ({"clean": -1}, "oven: oven_clean = -1 should be >= 0"),
        ({"clean": True}, "oven: oven_clean = True should be int, not bool"),
    ],
)
def test_refusals_name_the_setting_its_value_and_what_it_should_be(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Oven(**{"degrees": 200, **values})
    assert str(refused.value).startswith(says)


def test_a_setting_that_may_be_none_is_refused_with_none() -> None:
    with pytest.raises(ConfigError, match=r"oven: mode = 'steam' should be 'air' or 'grill' or None$"):
        Oven(200, mode="steam")


def test_a_subclass_may_change_a_default_alone() -> None:
    @dataclass(frozen=True)
    class Hot(Oven):
        rate: float = 0.9

    found = settings_of(Hot)["rate"]
    assert (found.default, found.help) == (0.9, "how fast")
    with pytest.raises(ConfigError, match=r"rate = 2 should be in \[0, 1\)"):
        Hot(200, rate=2)


def test_more_than_two_choices_are_listed() -> None:
    @dataclass(frozen=True)
    class Open:
        mode: str = setting("a", help="", choices=("a", "b", "c"))

    with pytest.raises(ConfigError, match="mode = 'd' should be one of 'a', 'b', 'c'"):
        check_settings(Open("d"), "open")


def test_an_infinite_number_is_beyond_any_bound() -> None:
    @dataclass(frozen=True)
    class Open:
        rate: float = setting(1.0, help="", gt=0)

    with pytest.raises(ConfigError, match="rate = inf should be > 0"):
        check_settings(Open(float("inf")), "open")


def test_settings_are_known_by_what_users_call_them() -> None:
    assert list(settings_of(Oven)) == ["degrees", "share", "rate", "mode", "oven_clean"]
    both = settings_of(Oven, Sink)
    assert both["degrees"].help == "how hot"
    assert (both["oven_clean"].field, both["sink_clean"].field) == ("clean", "clean")


def test_each_dataclass_takes_its_own_from_what_is_given() -> None:
    given = {"degrees": 60, "oven_clean": 1, "sink_clean": 2, "mode": "air"}
    assert pick(Oven, given, "here") == Oven(60, mode="air", clean=1)
    assert pick(Sink, given, "here") == Sink(60, 2)
    with pytest.raises(ConfigError, match="here: setting 'degrees' is missing"):
        pick(Oven, {"mode": "air"}, "here")
    assert changed(Sink(60, 0)) == ["degrees"]


def test_an_unknown_name_is_refused_with_those_that_are_close() -> None:
    check_known(["degrees", "sink_clean"], (Oven, Sink), "kitchen")
    with pytest.raises(ConfigError, match=r"^kitchen: unknown setting 'oven_claen'; did you mean oven_clean"):
        check_known(["degrees", "oven_claen"], (Oven, Sink), "kitchen")
    with pytest.raises(ConfigError, match=r"unknown setting 'zzz'; there are degrees, mode, "):
        check_known(["zzz"], (Oven, Sink), "kitchen")
    with pytest.raises(ConfigError, match="unknown setting 'clean'"):  # ambiguous, and no name that users write
        check_known(["clean"], (Oven, Sink), "kitchen")


def test_a_component_keeps_settings_unchecked_by_their_fields_names() -> None:
    component = SimpleNamespace()
    assert keep(component, {"degrees": -5, "clean": 3, "colour": "red"}, Oven) == ["colour"]
    assert vars(component) == {"degrees": -5, "share": 1.0, "rate": 0.5, "mode": None, "clean": 3}
    with pytest.raises(ConfigError, match="degrees = -5 should be >= 1"):
        from_attributes(Oven, component, "here")
    component = SimpleNamespace()
    keep(component, {}, Oven)
    with pytest.raises(ConfigError, match="here: setting 'degrees' is missing"):
        from_attributes(Oven, component, "here")


def test_a_signature_lists_the_settings() -> None:
    def cook(dish: str, mode: str = "air", **settings: Any) -> None: ...

    for as_fields, names in ((False, ["oven_clean"]), (True, ["clean"])):
        parameters = inspect.signature(shows(Oven, as_fields=as_fields)(cook)).parameters
        del cook.__signature__
        assert list(parameters) == ["dish", "mode", "degrees", "share", "rate", *names]
        assert parameters["degrees"].default is inspect.Parameter.empty
        assert (parameters["rate"].default, parameters["mode"].default) == (0.5, "air")


class LeavesProgram:
    def __init__(self) -> None:
        raise SystemExit(3)


def make_unannotated():
    return LeavesProgram()


def test_a_constructor_that_ends_the_program_is_an_error() -> None:
    with pytest.raises(ConfigError, match="SystemExit: 3"):
        build({"class_path": f"{__name__}.LeavesProgram", "args": {}}, LeavesProgram, "oven")


def test_a_function_without_annotation_has_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"make_unannotated.*; annotate the function"):
        build({"class_path": f"{__name__}.make_unannotated", "args": {}}, LeavesProgram, "oven")
