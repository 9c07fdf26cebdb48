# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names of classes: which number stands for which, in tables, .npz files, folders and a user's own sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.cli.specs import dealt_out, read_source
from cfl_flare.data import DataConfig, DataSource, Npz, ParticipantData, Samples, SiteData
from cfl_flare.data.classes import as_names, close_gaps, describe_classes, name_codes, sort_names
from cfl_flare.data.images import Folder
from cfl_flare.data.loading import read
from cfl_flare.data.numbering import as_numbers
from cfl_flare.data.spelling import fold_text
from cfl_flare.data.summary import DataSummary
from cfl_flare.data.table import Table
from cfl_flare.training.tasks import build_task
from tests.helpers.files import write_npz
from tests.helpers.refusals import catch_refusal


def write_label_table(folder: Path, labels: list[str], name: str = "ward.csv", header: str = "x,label") -> str:
    path = folder / name
    path.write_text("\n".join([header, *(f"{i / 10},{label}" for i, label in enumerate(labels))]) + "\n")
    return str(path)


def write_ward_npz(folder: Path, labels: np.ndarray, tests: np.ndarray | None = None, **arrays: np.ndarray) -> str:
    """An .npz file in MedMNIST's layout, with 4x4 images."""
    tests = labels if tests is None else tests
    images, test_images = (np.zeros((len(own), 4, 4), np.uint8) for own in (labels, tests))
    own = {"test_images": test_images, "test_labels": tests, **arrays}
    return str(write_npz(folder / "ward.npz", images, labels, **own))


def folder_of(root: Path, **counts: int) -> str:
    """A folder of images by class: this many of each."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(root / name / f"{i}.png")
    return str(root)


def labels_of(train: Samples, test: Samples) -> list[str]:
    """The names of the labels, in any order."""
    numbers = np.concatenate((train.y, test.y)).tolist()
    return sorted(train.classes[number] if train.classes else str(number) for number in numbers)


# Two values are two classes


TWO = {
    "1 and 2": (["1", "2"], ("1", "2")),
    "0 and 10": (["0", "10"], ("0", "10")),
    "0 and 255": (["0", "255"], ("0", "255")),
    "-1 and 1": (["-1", "1"], ("-1", "1")),
    "0.0 and 1.0": (["0.0", "1.0"], ()),
    "1.0 and 2.0": (["1.0", "2.0"], ("1", "2")),
    "-1.0 and 1.0": (["-1.0", "1.0"], ("-1", "1")),
    "0.5 and 1.5": (["0.5", "1.5"], ("0.5", "1.5")),
    "0 and 1": (["0", "1"], ()),
    "False and True": (["False", "True"], ()),
    "words": (["benign", "malignant"], ("benign", "malignant")),
    "words with spaces": ([" benign", "malignant "], ("benign", "malignant")),
    "words of mixed case": (["malignant", "Benign"], ("Benign", "malignant")),
    "numbers beyond all classes": (["100001", "100002"], ("100001", "100002")),
}


@pytest.mark.parametrize(("values", "names"), TWO.values(), ids=TWO)
def test_two_values_are_two_classes(tmp_path, values, names):
    train, test = read(Table(write_label_table(tmp_path, values * 8)))
    assert train.classes == test.classes == names
    assert sorted(np.concatenate((train.y, test.y)).tolist()) == [0] * 8 + [1] * 8
    assert train.y.dtype == np.int64
    assert train.outputs == 2


@pytest.mark.parametrize(("values", "names"), TWO.values(), ids=TWO)
def test_two_values_of_arrays_are_two_classes(tmp_path, values, names):
    numbers = [float(value) for value in values if value.strip().lstrip("-").replace(".", "").isdigit()]
    of_type = (np.array(numbers) if "." in values[0] else np.array(numbers, int)) if numbers else np.array(values)
    of_type = np.array([False, True]) if "True" in values else of_type
    train, test = read(Npz(write_ward_npz(tmp_path, np.tile(of_type, 4))))
    assert train.classes == names
    assert train.y.tolist() == test.y.tolist() == [0, 1] * 4 if "Benign" not in values else [1, 0] * 4


def test_several_codes_are_classes_without_gaps(tmp_path):
    train, test = read(Table(write_label_table(tmp_path, ["1", "2", "3"] * 4)))
    assert train.classes == ("1", "2", "3")
    assert {*np.concatenate((train.y, test.y)).tolist()} == {0, 1, 2}
    train, _ = read(Npz(write_ward_npz(tmp_path, np.array([0, 100, 200, 100]))))
    assert train.classes == ("0", "100", "200")
    assert train.y.tolist() == [0, 1, 2, 1]
    train, test = read(Npz(write_ward_npz(tmp_path, np.array([0, 1, 2, 255], np.uint8), np.array([0, 1, 2]))))
    assert train.classes == ("0", "1", "2", "255")
    assert train.y.tolist() == [0, 1, 2, 3]
    assert test.y.tolist() == [0, 1, 2]


def test_text_of_numbers_is_numbered_as_numbers_are(tmp_path):
    """A parquet file may hold text where a CSV file of the same rows holds numbers."""
    codes = [str(code) for code in range(1, 12)] * 2
    train, test = read(Npz(write_ward_npz(tmp_path, np.array(codes))))
    assert train.classes == tuple(map(str, range(1, 12)))
    others, _ = read(Npz(write_ward_npz(tmp_path, np.array(codes, int))))
    assert others.classes == train.classes
    assert others.y.tolist() == train.y.tolist() == test.y.tolist()


def test_many_numbers_are_to_predict(tmp_path):
    train, _ = read(Table(write_label_table(tmp_path, ["0.5", "1.5", "2.5"] * 4)))
    assert train.y.dtype == np.float64
    train, _ = read(Table(write_label_table(tmp_path, ["-1", "0", "1"] * 4)))
    assert train.y.tolist() != []
    message = r"if they are classes, set classes=\[-1,0,1\] of the source; if one means that there is no label, leave"
    catch_refusal(lambda: build_task("classification").check_form(train.y, "data"), message)
    train, _ = read(Table(write_label_table(tmp_path, ["-1", "0", "1"] * 4), classes=[-1, 0, 1]))
    assert train.classes == ("-1", "0", "1")


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_task_of_numbers_gets_the_numbers(tmp_path, task):
    """Days of stay 2, 5 and 9 are classes 0, 1 and 2 for a classification, and stay what they are for a regression."""
    train, _ = read(Table(write_label_table(tmp_path, ["2", "5", "9"] * 4)))
    assert train.classes == ("2", "5", "9")
    of_task = as_numbers(train, "data") if not build_task(task).classes else train
    expected = {2, 5, 9} if task == "regression" else {0, 1, 2}
    assert {*of_task.y.tolist()} == expected
    words = Samples(np.zeros((2, 1), np.float32), np.array([0, 1]), classes=("no", "yes"))
    catch_refusal(lambda: as_numbers(words, "data"), r"labels are names \(no, yes\), and the task takes numbers")


def test_codes_are_told_from_numbers():
    """Two values, or whole floats without a gap that begin with 0 or 1; a gap among integers stays a class number."""
    assert name_codes(np.array([0, 1, 5])) is None
    assert name_codes(np.array([0.0, 1.0, 2.0]))[0].tolist() == [0, 1, 2]
    assert name_codes(np.array([1.0, 2.0, 3.0]))[0].tolist() == [1, 2, 3]
    assert name_codes(np.array([0.0, 1.0, 3.0])) is None
    assert name_codes(np.arange(50.0)) is None
    assert name_codes(np.array([0.0, np.nan])) is None
    assert name_codes(np.array([])) is None
    assert close_gaps(np.array([0, 1, 2])) is None
    assert close_gaps(np.array([1, 1])) is None  # one class of two, of a set without the other
    numbers, names = close_gaps(np.array([7, 3, 7]))
    assert (numbers.tolist(), names) == ([1, 0, 1], ("3", "7"))


# A site alone knows no numbering but its own


def test_a_site_alone_does_not_number_codes_anew(tmp_path, monkeypatch):
    """Another site may have class 0: only the labels of all sites together have no gap."""
    monkeypatch.setenv("CFL_DATA", write_ward_npz(tmp_path, np.array([1, 2] * 8)))
    (data,) = DataConfig().host(SiteData(), "s", 0, 1)
    assert {*data.train.y.tolist()} == {1, 2}
    summary = DataSummary.of(data)
    assert "no sample is of class 0; if the labels are codes and not numbers from 0" in " ".join(summary.remarks)
    (data,) = DataConfig().host(SiteData(classes=[1, 2]), "s", 0, 1)
    assert {*data.train.y.tolist()} == {0, 1}
    assert data.train.classes == ("1", "2")
    assert "1: 8+8, 2: 8+8" in DataSummary.of(data).line


def test_classes_that_were_agreed_on_have_their_numbers(tmp_path):
    agreed = ["a", "b", "c"]
    train, test = read(Folder(folder_of(tmp_path / "site", b=5, c=5), classes=agreed))
    assert {*np.concatenate((train.y, test.y)).tolist()} == {1, 2}
    assert train.classes == ("a", "b", "c")
    train, _ = read(Npz(write_ward_npz(tmp_path, np.array(["c", "b"])), classes=agreed))
    assert train.y.tolist() == [2, 1]
    train, _ = read(Npz(write_ward_npz(tmp_path, np.array([0, 1]), classes=np.array(["b", "c"])), classes=agreed))
    assert train.y.tolist() == [1, 2]
    train, _ = read(Npz(write_ward_npz(tmp_path, np.array([0, 1])), classes=agreed))  # numbers of the agreed names
    assert (train.y.tolist(), train.classes) == ([0, 1], ("a", "b", "c"))
    train, test = read(Table(write_label_table(tmp_path, ["b", "c"] * 4), classes=agreed))
    assert {*np.concatenate((train.y, test.y)).tolist()} == {1, 2}
    samples = read(Table(write_label_table(tmp_path, ["b", "c"] * 4), classes=agreed))[0]
    assert samples.outputs == 3


def test_masks_and_findings_have_names_as_well(tmp_path):
    masks = np.array([[[0, 1], [2, 0]]] * 4, np.uint8)
    images = np.zeros((4, 2, 2), np.uint8)
    arrays = {"train_images": images, "test_images": images, "train_masks": masks, "test_masks": masks}
    path = write_ward_npz(tmp_path, np.array([0] * 4), classes=np.array(["none", "tumour", "organ"]), **arrays)
    source = Npz(path, labels="masks", classes=["none", "organ", "tumour"])
    train, _ = read(source)
    assert train.y[0].tolist() == [[0, 2], [1, 0]]
    findings = np.array([[1, 0], [1, 1], [0, 1], [0, 0]], np.uint8)
    path = write_ward_npz(tmp_path, findings, classes=np.array(["oedema", "effusion"]))
    train, _ = read(Npz(path, classes=["effusion", "oedema"]))
    assert train.y.tolist() == findings[:, ::-1].tolist()
    summary = DataSummary.of(ParticipantData("p", train, train))
    assert summary.counts == "effusion: 2+2, oedema: 2+2"
    catch_refusal(lambda: read(Npz(path, classes=["effusion", "oedema", "fracture"])), "classes names 2 of 3 classes")


def test_bytes_are_words_and_system_folders_no_classes(tmp_path):
    train, _ = read(Npz(write_ward_npz(tmp_path, np.array([b"b", b"a"]))))
    assert (train.y.tolist(), train.classes) == ([1, 0], ("a", "b"))
    folder = folder_of(tmp_path / "set", benign=5, malignant=5, __MACOSX=5)
    assert read(Folder(folder))[0].classes == ("benign", "malignant")


def test_each_sample_has_an_owner(tmp_path):
    owners = np.array(["h", ""])
    path = write_ward_npz(tmp_path, np.array([0, 1]), train_ward=owners, test_ward=owners)
    catch_refusal(lambda: read(Npz(path, key="ward")), "sample 1 has no key; name it, or leave the sample out")


def test_owners_that_only_train_have_no_test_samples(tmp_path):
    rows = [f"{i / 10},{i % 2},h{i % 2},{('train', 'test')[i % 2]}" for i in range(20)]
    path = write_label_table(tmp_path, [], header="\n".join(["x,label,ward,part", *rows]))
    report = DataConfig(partition="natural", min_samples=1).report(Table(path, key="ward", split="part"))
    assert (report.train.sum(), report.test.sum()) == (10, 0)


# Spelling


def test_what_differs_in_spelling_only_is_refused(tmp_path):
    for labels in (["Malignant", "malignant"], ["T 1", "T_1"], ["tumour-a", "Tumour a"]):
        message = "differ in case, spaces, hyphens or leading zeros only; write one class in one way"
        catch_refusal(lambda labels=labels: read(Table(write_label_table(tmp_path, labels * 4))), message)
        catch_refusal(lambda labels=labels: read(Npz(write_ward_npz(tmp_path, np.array(labels)))), message)
    catch_refusal(lambda: read(Folder(folder_of(tmp_path / "case", benign=3, Benign=3))), "differ in case")
    listed = read(Npz(write_ward_npz(tmp_path, np.array(["a", "A"])), classes=["A", "a"]))[0]  # two letters
    assert listed.y.tolist() == [1, 0]


def test_a_near_name_is_pointed_at(tmp_path):
    path = write_label_table(tmp_path, ["Dead", "alive"] * 4)
    catch_refusal(
        lambda: read(Table(path, classes=["alive", "dead"])), "label 'Dead' is none of .*; did you mean 'dead'"
    )
    folder = folder_of(tmp_path / "set", malignat=3, benign=3)
    catch_refusal(lambda: read(Folder(folder, classes=["benign", "malignant"])), "did you mean 'malignant'")
    catch_refusal(
        lambda: read(Table(path, classes=["well", "ill"])), r"none of the 2 classes .* \(well, ill\); correct it"
    )


def test_names_are_compared_without_accidents():
    assert as_names([1.0, True, " a ", "A\u0308"]) == ("1", "True", "a", "\u00c4")
    assert sort_names(["b", "A", "10", "9", "-1"]) == ("-1", "9", "10", "A", "b")
    assert fold_text("Stage_I") == fold_text("stage i")
    assert len({fold_text(name) for name in ("-", "+", "A", "A-", "1", "-1")}) == 6


@pytest.mark.parametrize("name", ["\x1b[31mred", "a" * 101, "\u202eevil", "two\nlines"])
def test_a_hostile_name_is_refused_in_one_line(tmp_path, name):
    catch_refusal(
        lambda: read(Npz(write_ward_npz(tmp_path, np.array([name, "b"])))), "is no name for a class: expected 1 to 100"
    )
    catch_refusal(lambda: Npz("x.npz", classes=[name, "b"]), "should be 1 to 1000 different names")


def test_too_many_names_are_no_classes(tmp_path):
    labels = np.array([f"patient {i}" for i in range(1001)])
    catch_refusal(
        lambda: read(Npz(write_ward_npz(tmp_path, labels))), "1,001 different names, more than 1,000; name another"
    )


# Folders


def test_an_extra_or_a_nested_folder_is_noticed(tmp_path):
    root = folder_of(tmp_path / "set", benign=3, malignant=3, old=1)
    catch_refusal(lambda: read(Folder(root, classes=["benign", "malignant"])), "label 'old' is none of the 2 classes")
    nested = folder_of(tmp_path / "nested" / "images", benign=3, malignant=3)
    catch_refusal(
        lambda: read(Folder(str(Path(nested).parent))), "If 'images' is no class but holds the classes' folders"
    )


def test_a_class_without_an_image_is_named(tmp_path):
    (tmp_path / "set" / "empty").mkdir(parents=True)
    root = folder_of(tmp_path / "set", benign=5, malignant=5)
    (data,) = DataConfig().host(Folder(root), "s", 0, 1)
    assert data.train.classes == ("benign", "empty", "malignant")
    assert "no sample is of class empty; check that other sites have some" in DataSummary.of(data).remarks
    assert DataSummary.of(data).counts == "benign: 4+1, empty: 0+0, malignant: 4+1"


def test_classes_are_described_in_lines():
    assert describe_classes((), [3, 4]) == []
    assert describe_classes(("a", "b"), [3, 0]) == ["classes by number: 0: a, 1: b", "classes without a sample: b"]
    assert describe_classes((), [3, 0, 1]) == ["classes without a sample: 1"]
    assert describe_classes(("0", "1", "2", "255"), [1] * 4)[1].startswith("class 255 is far from the others")


# A user's own source, and how samples are dealt out


class Words(DataSource):
    """Labels as text, and owners."""

    def load(self) -> tuple[Samples, Samples]:
        x = np.zeros((40, 1), np.float32)
        y = np.array(["yes", "no"] * 20)
        return Samples(x, y, np.arange(40) % 2), Samples(x, y, np.arange(40) % 2)


class UnnamedClasses(DataSource):
    def load(self) -> tuple[Samples, Samples]:
        x = np.zeros((40, 1), np.float32)
        return Samples(x, np.arange(40) % 2), Samples(x, np.arange(40) % 2)


def test_a_source_may_give_words():
    train, _ = read(Words())
    assert train.classes == ("no", "yes")
    assert train.y[:2].tolist() == [1, 0]


def test_owners_get_their_samples_and_no_default_permutes_labels(tmp_path):
    path = write_ward_npz(tmp_path, np.array([0, 1] * 20), train_pid=np.arange(40) % 2, test_pid=np.arange(40) % 2)
    assert dealt_out(Npz(path, key="pid"), {})["partition"] == {"partition": "natural"}
    assert dealt_out(read_source(f"npz:path={path},key=pid"), {})["participants"] is None
    assert dealt_out(read_source(f"{path}:key=pid"), {})["partition"] == {"partition": "natural"}
    assert dealt_out(Words(), {})["partition"] == "natural"
    for own in (Npz(path), UnnamedClasses(), Table(write_label_table(tmp_path, ["0", "1"] * 20))):
        assert dealt_out(own, {}) == {"partition": "iid", "participants": 24}
    assert dealt_out(read_source("digits"), {})["partition"] == "label_permutation:groups=3"
    named = dealt_out(Npz(path, key="pid"), {"partition": "label_permutation"})
    assert named["partition"] == "label_permutation"
