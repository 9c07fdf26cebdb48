# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A setting is stated once: what is made from its field."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import (
    SHARE_OR_COUNT,
    changed,
    check_known,
    check_settings,
    from_attributes,
    keep,
    pick,
    setting,
    settings_of,
    shows,
)


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
