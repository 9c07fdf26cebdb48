# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names of classes at check-in: what a site states, and how the server compares them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cfl_flare.core.errors import BudgetError, ColumnsError, ConfigError
from cfl_flare.data import ParticipantData, Samples, SiteData
from cfl_flare.flare.class_names import compare_classes, names_to_state, settle_classes
from cfl_flare.flare.schema import CLASSES
from tests.helpers.files import write_npz
from tests.helpers.kits import JOB, answer, ask_check_in, make_executor, write_kit

ABC = ("a", "b", "c")


def host_labels(
    y: np.ndarray, classes: tuple[str, ...], patient: np.ndarray | None = None
) -> dict[str, ParticipantData]:
    samples = Samples(np.zeros((len(y), 1), np.float32), y, patient=patient, classes=classes)
    return {"site": ParticipantData("site", samples, samples.take(np.arange(0)))}


def test_most_sites_decide():
    stated = {"s1": ABC, "s2": ABC, "s3": ("b", "c")}
    agreed, left_out = compare_classes(stated)
    assert agreed == ABC
    assert left_out.keys() == {"s3"}
    assert "[b, c], and the run [a, b, c]" in left_out["s3"]
    assert compare_classes({"late": ("b", "c")}, agreed)[1].keys() == {"late"}
    assert compare_classes({"late": ABC}, agreed) == (ABC, {})
    assert compare_classes({}, agreed) == (ABC, {})
    assert compare_classes({}) == (None, {})


def test_names_differ_in_case_spelling_order_and_number():
    for other in (("A", "b", "c"), ("a", "b", "c "), ("b", "a", "c"), (*ABC, "d"), ()):
        assert compare_classes({"s1": ABC, "s2": ABC, "s3": other})[1].keys() == {"s3"}


def test_without_a_majority_nobody_knows():
    message = r"differently: \[a, b, c\] at s1; \[b, c\] at s2: set classes=\[...\] in the job's data"
    with pytest.raises(ConfigError, match=message):
        compare_classes({"s1": ABC, "s2": ("b", "c")})
    many = {f"s{i}": tuple(f"{'x' * 90}{i}-{j}" for j in range(1000)) for i in range(50)}
    with pytest.raises(ConfigError) as caught:
        compare_classes(many)
    assert len(str(caught.value)) < 1500


def test_the_job_decides_and_not_one_of_two_sites():
    agreed = settle_classes(["a", "b"], None)
    assert compare_classes({"s1": ("a", "b"), "liar": ("b", "a")}, agreed, is_start=True)[1].keys() == {"liar"}
    assert settle_classes(None, None) is None
    assert settle_classes([], None) is None


@pytest.mark.parametrize("of_run", [["b", "a"], []])
def test_a_resumed_run_has_its_own_classes(of_run):
    assert settle_classes(None, of_run) == settle_classes(of_run, of_run) == tuple(of_run)
    with pytest.raises(ConfigError, match=r"the job has the classes \[a, b\], and the run that is resumed"):
        settle_classes(["a", "b"], of_run)
    with pytest.raises(ConfigError, match=r"\[a, b\] at s1, s2: none numbers them .* as this run: set classes"):
        compare_classes({"s1": ("a", "b"), "s2": ("a", "b")}, tuple(of_run), is_start=True)


def test_a_job_states_the_names_of_its_source(tmp_path):
    assert SiteData(classes=["b", "a"]).stated_classes == ("b", "a")
    columns = {"columns": [{"column": "age"}], "label": "died", "classes": ["no", "yes"]}
    assert SiteData(columns=columns).stated_classes == ("no", "yes")
    assert SiteData().stated_classes == ()


def test_a_rare_class_is_not_named():
    y = np.repeat([0, 1, 2], [10, 5, 4])
    with pytest.raises(ColumnsError, match="class 'c' has 4 patients, and its name is not stated of fewer than 5; set"):
        names_to_state(host_labels(y, ABC), (), has_dp=False, is_simulation=False)
    assert names_to_state(host_labels(y, ABC), ABC, has_dp=True, is_simulation=False) == ABC
    assert names_to_state(host_labels(y, ABC), (), has_dp=True, is_simulation=True) == ABC
    assert names_to_state(host_labels(y[:15], ("a", "b")), (), has_dp=False, is_simulation=False) == ("a", "b")
    assert names_to_state(host_labels(y, ()), (), has_dp=True, is_simulation=False) == ()
    assert names_to_state({}, (), has_dp=True, is_simulation=False) == ()


def test_patients_are_counted_and_not_their_samples():
    y = np.repeat([0, 1], [10, 10])
    patient = np.array([*range(10), *[77] * 10])
    with pytest.raises(ColumnsError, match="class 'b' has 1 patients"):
        names_to_state(host_labels(y, ("a", "b"), patient), (), has_dp=False, is_simulation=False)
    parts = host_labels(y, ("a", "b"), patient=np.array([*range(13), 0, 1, 2, 3, 4, 5, 6]))["site"]
    again = ParticipantData("site", parts.train, parts.train.take(np.arange(10, 20)))
    assert names_to_state({"site": again}, (), has_dp=False, is_simulation=False) == ("a", "b")
    three = parts.train.take(np.array([*range(10), 10, 11, 12]))
    again = ParticipantData("site", three, three.take(np.arange(10, 13)))  # the same three patients of class b
    with pytest.raises(ColumnsError, match="class 'b' has 3 patients"):
        names_to_state({"site": again}, (), has_dp=False, is_simulation=False)
    findings = np.array([[1, 0]] * 6 + [[1, 1]] * 2)
    with pytest.raises(ColumnsError, match="class 'b' has 2 patients"):
        names_to_state(host_labels(findings, ("a", "b")), (), has_dp=False, is_simulation=False)


def test_names_from_the_data_are_not_stated_with_dp():
    y = np.repeat([0, 1], [10, 10])
    with pytest.raises(BudgetError, match="with dp, names of classes that folders, arrays or rows give would not be"):
        names_to_state(host_labels(y, ("a", "b")), (), has_dp=True, is_simulation=False)


def words(path: Path, rare: int) -> Path:
    """A small file whose labels are words, and a class of this many samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.array(["benign"] * 10 + ["malignant"] * 10 + ["other"] * rare)
    images = np.zeros((len(labels), 4, 4), np.uint8)
    write_npz(path, images, labels, images[:20], labels[:20])
    return path


@pytest.mark.parametrize(
    ("rare", "classes", "said"),
    [
        (0, None, ["benign", "malignant"]),
        (2, None, "columns"),
        (0, ["benign", "malignant", "other"], ["benign", "malignant", "other"]),
        (2, ["benign", "malignant", "other"], ["benign", "malignant", "other"]),
        (2, ["benign", "malignant"], "data"),
    ],
)
def test_a_site_states_names_or_a_code(tmp_path, monkeypatch, rare, classes, said):
    monkeypatch.setenv("CFL_DATA", str(words(tmp_path / "data" / "ward.npz", rare)))
    model = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 4, 4], "num_classes": 3}}
    site = make_executor(SiteData(classes=classes), model=model)
    job = {**JOB, "model": model}
    content = answer(site, ask_check_in(job=job), write_kit(tmp_path / "kit"))
    assert (content.get(CLASSES) or content.get("error")) == said
    assert "benign" not in str(content) or CLASSES in content
