# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Patients with samples at several owners, or in both splits: refused, kept once, left out, or counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Npz, Samples
from cfl_flare.data.patients import find_repeated, settle_patients
from cfl_flare.data.table import Table


def make_patient_samples(rows: list[tuple[str, int]]) -> Samples:
    """A sample for each owner and patient."""
    owners, patients = zip(*rows)
    x = np.zeros((len(rows), 1), np.float32)
    return Samples(x, np.arange(len(rows)) % 2, np.array(owners), patient=np.array(patients))


# Patient 1 is at both clinics; 4 trains and tests at b; 2, 3, 5 and 6 are at one place.
TRAIN = [("a", 1), ("a", 2), ("b", 1), ("b", 3), ("b", 4)]
TEST = [("a", 5), ("b", 4), ("b", 6), ("b", 1)]


def settle(rule: str, by_owner: bool = True) -> tuple[list, list, list[str]]:
    train, test, lines = settle_patients(
        make_patient_samples(TRAIN), make_patient_samples(TEST), rule, by_owner, "data"
    )
    parts = [list(zip(part.key.tolist(), part.patient.tolist())) for part in (train, test)]
    return parts[0], parts[1], lines


def test_they_are_found_by_name_and_number():
    found = find_repeated(make_patient_samples(TRAIN), make_patient_samples(TEST), by_owner=True)
    assert found.patients == 6
    assert found.owners == {"1": ("a", "b")}
    assert found.splits == ("1", "4")  # patient 1 at b
    assert found.count == 2
    expected = "1 of 6 patients have samples at several owners (1 at a and b), such as '1'"
    assert found.line == f"{expected} and 2 of 6 patients have training and test samples, such as '1', '4'"


def test_without_a_choice_they_are_refused():
    message = "1 of 6 patients have samples at several owners .*; set repeated_patients to first .*, drop .* or allow"
    with pytest.raises(DataError, match=message):
        settle("refuse")


def test_the_first_owner_keeps_a_patient():
    train, test, lines = settle("first")
    assert train == [("a", 1), ("a", 2), ("b", 3), ("b", 4)]
    assert test == [("a", 5), ("b", 6)]
    assert "kept at the first owner by name, and in training, without 3 of 9 samples" in lines[0]


def test_they_are_left_out():
    train, test, lines = settle("drop")
    assert train == [("a", 2), ("b", 3)]
    assert test == [("a", 5), ("b", 6)]
    assert "left out, without 5 of 9 samples" in lines[0]
    only = make_patient_samples([("a", 1), ("b", 1)])
    with pytest.raises(DataError, match="none is left to train; set repeated_patients to first or allow"):
        settle_patients(only, make_patient_samples(TEST[:1]), "drop", True, "data")


def test_they_count_twice_and_the_run_says_so():
    train, test, lines = settle("allow")
    assert (train, test) == (TRAIN, TEST)
    assert "epsilon and intervals take them for several patients" in lines[0]
    assert "test samples are of patients that trained" in lines[0]


def test_without_owners_only_the_splits_count():
    train, test, _ = settle("first", by_owner=False)
    assert train == TRAIN
    assert test == [("a", 5), ("b", 6)]


class Registry(DataSource):
    """Two clinics of 20 patients with two visits each; patient 3 is seen at both."""

    patient = "pid"

    def load(self) -> tuple[Samples, Samples]:
        parts = []
        for first in (0, 100):
            rows = [(clinic, first + 10 * number + i) for number, clinic in enumerate("ab") for i in range(10)]
            rows += [("a", 3 + first), ("b", 3 + first)] if first == 0 else []
            parts.append(make_patient_samples(rows * 2))
        return parts[0], parts[1]


@pytest.mark.parametrize(("rule", "sizes"), [("first", [22, 20]), ("drop", [18, 20]), ("allow", [22, 22])])
def test_clinics_share_a_patient_in_a_run(rule, sizes):
    config = DataConfig(partition="natural", repeated_patients=rule).resolved(Registry())
    people = config.host(Registry(), "local", 0, 1)
    assert [len(person.train) for person in people] == sizes
    assert any("1 of 40 patients have samples at several owners" in line for line in config.described(Registry()))
    with pytest.raises(DataError, match="1 at a and b"):
        DataConfig(partition="natural").resolved(Registry())


def test_a_date_divides_a_patient_s_visits(tmp_path):
    """Later visits of a patient are for testing: of 12 patients, each has two visits half a year apart."""
    rows = [f"{i},{i % 2},q{i},2020-0{1 + 6 * late}-01" for late in (0, 1) for i in range(12)]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["x,label,pid,day", *rows]) + "\n")
    table = Table(str(path), patient="pid", time="day", test_share=0.5)
    with pytest.raises(DataError, match="12 of 12 patients have training and test samples"):
        DataConfig().host(table, "site", 0, 1)
    (data,) = DataConfig(repeated_patients="allow").host(table, "site", 0, 1)
    assert (len(data.train), len(data.test)) == (12, 12)
    (data,) = DataConfig(repeated_patients="first").host(table, "site", 0, 1)
    assert (len(data.train), len(data.test)) == (12, 0)


def test_lesions_of_an_archive(tmp_path):
    arrays = {}
    for split, patients in (("train", np.arange(20) // 2), ("test", np.arange(9, 20))):
        images = np.zeros((len(patients), 4, 4), np.uint8)
        labels = np.arange(len(patients)) % 2
        arrays |= {f"{split}_images": images, f"{split}_labels": labels, f"{split}_lesion": patients}
    np.savez(tmp_path / "skin.npz", **arrays)
    source = Npz(str(tmp_path / "skin.npz"), patient="lesion")
    with pytest.raises(DataError, match="1 of 20 patients have training and test samples, such as '9'"):
        DataConfig(2, "iid").host(source, "local", 0, 1)
    people = DataConfig(2, "iid", repeated_patients="first", min_samples=4).host(source, "local", 0, 1)
    assert sum(len(person.test) for person in people) == 10
    with pytest.raises(ConfigError, match="repeated_patients = 'both' should be"):
        DataConfig(repeated_patients="both")
