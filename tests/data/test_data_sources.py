# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sources: what they read, and what they refuse in one clear line."""

import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.core.config import describe, from_dict
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import SOURCES, Digits, Npz, Samples
from cfl_flare.data.images import Folder
from cfl_flare.data.loading import checked
from cfl_flare.data.table import Table
from tests.helpers.refusals import catch_refusal


def make_npz_arrays(n=12, shape=(6, 5), dtype=np.uint8, **changes):
    """The arrays of a small file in MedMNIST's layout."""
    rng = np.random.default_rng(0)
    made = {}
    for split in ("train", "test"):
        made[f"{split}_images"] = (rng.random((n, *shape)) * 255).astype(dtype)
        made[f"{split}_labels"] = (np.arange(n) % 3)[:, None].astype(np.uint8)
    return {k: v for k, v in {**made, **changes}.items() if v is not None}


def save_npz(path, **contents):
    np.savez(path, **contents)
    return str(path)


def refuse_source(source, message):
    """Read a source that is refused in one line that says what the pattern says."""
    catch_refusal(lambda: checked(source.load(), "data"), message)


# Samples


def test_samples_keep_their_keys():
    samples = Samples(np.zeros((4, 2), np.float32), np.arange(4), np.array(["a", "b", "a", "c"]))
    assert samples.take(np.array([3, 0])).key.tolist() == ["c", "a"]
    assert Samples(samples.x, samples.y).take(np.array([1])).key is None


X, Y = np.zeros((3, 2), np.float32), np.arange(3)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (Samples(X, np.arange(4)), "3 samples but 4 labels"),
        (Samples(X[:0], Y[:0]), "no samples"),
        (Samples(X, Y.astype(str)), "labels have dtype <U.* and shape .3,.; give class numbers or numbers to predict"),
        (Samples(X, np.array([0, 10**9, 1])), "label 1000000000 is not a class number"),
        (Samples(X, 2 * np.eye(3, dtype=int)), r"labels of shape \(3, 3\) say which of 3 findings .* sample 0 has 2; "),
        (Samples(np.array([[0.0], [np.nan], [1]]), Y), "sample 1 holds NaN or infinity"),
        (Samples(X.astype(int), Y), "samples have dtype int64; use uint8 or float32"),
        (Samples(X, Y, np.arange(2)), r"keys have shape \(2,\), labels \(3,\)"),
        (Samples(X, Y, np.ones(3)), "keys have dtype float64; use whole numbers or text"),
    ],
)
def test_unsound_samples(samples, message):
    with pytest.raises(DataError, match=f"here: {message}"):
        samples.check("here")


def test_splits_that_do_not_belong_together():
    sound = Samples(X, Y)
    with pytest.raises(DataError, match=r"training samples are \(2,\), test samples \(1,\)"):
        checked((sound, Samples(X[:, :1], Y)), "data")
    with pytest.raises(DataError, match="only one of training and test samples has keys"):
        checked((sound, Samples(X, Y, Y)), "data")
    with pytest.raises(DataError, match=r"should return .* not list"):
        checked([sound, sound], "data")


def test_every_source_says_what_it_is_and_can_be_described():
    for name, cls in SOURCES.items():
        assert cls.name == name and cls.__doc__
    spec = describe(Npz("a.npz", key="user"), "data")
    assert spec == {"class_path": "cfl_flare.data.sources.Npz", "args": {"path": "a.npz", "key": "user"}}


# Digits and npz


def test_digits():
    train, test = checked(Digits().load(), "data")
    assert len(train) + len(test) == 1797 and train.x.shape[1:] == (1, 8, 8) and train.x.max() <= 1
    with pytest.raises(ConfigError, match=r"test_share = 1\.0 should be in \(0, 1\)"):
        Digits(test_share=1.0)


def test_npz_grey_colour_and_keys(tmp_path, monkeypatch):
    train, test = Npz(save_npz(tmp_path / "grey.npz", **make_npz_arrays())).load()
    assert train.x.shape == (12, 1, 6, 5) and train.x.dtype == np.uint8 and train.y.dtype == np.int64
    users = {"train_user": np.arange(12), "test_user": np.arange(12)}
    save_npz(tmp_path / "colour.npz", **make_npz_arrays(shape=(6, 5, 3), dtype=np.float64), **users)
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    train, test = Npz("colour.npz", key="user").load()
    assert test.x.shape == (12, 3, 6, 5) and test.x.dtype == np.float32
    assert train.key.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": None}, "no array 'train_images'; it has train_labels, test_images, test_labels"),
        ({"train_images": np.zeros((0, 6, 5), np.uint8), "train_labels": np.zeros(0, int)}, "training: no samples"),
        ({"train_labels": np.zeros(5, int)}, "training: 12 samples but 5 labels"),
        (
            {"train_labels": np.zeros((12, 4), int)},
            r"training labels are several findings of 0 or 1 each \(12, 4\), test labels class numbers \(12,\); ",
        ),
        (
            {"train_labels": np.full((12, 4), 3)},
            r"training: labels of shape \(12, 4\) say .* sample 0 has 3; write 1 for",
        ),
        ({"train_images": np.full((12, 6, 5), np.nan)}, "training: sample 0 holds NaN"),
        ({"train_images": np.zeros((12, 6), np.uint8)}, r"train: images have shape \(12, 6\); it should be"),
        ({"train_images": np.zeros((12, 6, 5, 4), np.uint8)}, r"shape \(12, 6, 5, 4\); it should be"),
        (
            {"test_images": np.zeros((12, 7, 5), np.uint8)},
            r"a.npz: training samples are \(1, 6, 5\), test samples \(1, 7, 5\)",
        ),
        ({"test_images": np.array([{}] * 12)}, "cannot be read as an npz file without pickled objects"),
    ],
)
def test_npz_refusals(tmp_path, changes, message):
    refuse_source(Npz(save_npz(tmp_path / "a.npz", **make_npz_arrays(**changes))), message)


def test_npz_that_is_no_npz(tmp_path, monkeypatch):
    monkeypatch.delenv("CFL_DATA_ROOT", raising=False)
    refuse_source(Npz("nowhere.npz"), "path = 'nowhere.npz' is not a file; tried nowhere.npz; CFL_DATA_ROOT is not set")
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    refuse_source(Npz("nowhere.npz"), f"tried nowhere.npz, {re.escape(str(tmp_path))}")
    np.save(tmp_path / "single.npy", np.zeros(3))
    refuse_source(Npz("single.npy"), "is a single array, not an npz file")
    (tmp_path / "text.npz").write_text("hello")
    refuse_source(Npz("text.npz"), "cannot be read as an npz file without pickled objects")
    (tmp_path / "empty.npz").write_bytes(b"")
    refuse_source(Npz("empty.npz"), "cannot be read as an npz file")
    (tmp_path / "pickle.npz").write_bytes(b"\x80\x04]\x94.")  # a pickled list
    refuse_source(Npz("pickle.npz"), "cannot be read as an npz file without pickled objects")
    save_npz(tmp_path / "cut.npz", **make_npz_arrays())
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:900])
    refuse_source(Npz("cut.npz"), "cannot be read as an npz file")
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as file:
        for name in make_npz_arrays():
            file.writestr(name, "no array")
    refuse_source(Npz("zip.npz"), "'train_images' is not an array")


# Folders of images


def pictures(folder, counts, size=(6, 6), mode="L"):
    """So many images of each class."""
    for c, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            grey = 40 * c + i
            Image.new(mode, size, grey if mode == "L" else (grey,) * 3).save(folder / name / f"{i}.png")


def test_folder_with_its_own_split(tmp_path):
    pictures(tmp_path / "train", {"cat": 4, "dog": 3})
    pictures(tmp_path / "test", {"dog": 2})
    (tmp_path / "train" / "cat" / ".hidden").write_text("")
    train, test = checked(Folder(str(tmp_path)).load(), "data")
    assert train.y.tolist() == [0] * 4 + [1] * 3 and test.y.tolist() == [1, 1]
    assert train.x.shape == (7, 1, 6, 6) and train.x[1].max() == 1 and train.x[5].min() == 41


def test_folder_split_here_resized_and_converted(tmp_path, monkeypatch):
    pictures(tmp_path / "set", {"a": 10, "b": 5}, size=(8, 4))
    pictures(tmp_path / "set", {"c": 5}, mode="RGB")
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    train, test = checked(Folder("set", size=5, channels=3).load(), "data")
    assert train.x.shape == (16, 3, 5, 5) and np.bincount(test.y).tolist() == [2, 1, 1]
    assert Folder("set", size=5, channels=1).load()[0].x.shape[1] == 1


def test_folder_refusals(tmp_path, monkeypatch):
    monkeypatch.delenv("CFL_DATA_ROOT", raising=False)
    refuse_source(
        Folder("nowhere"), "data folder: path = 'nowhere' is not a folder; tried nowhere; CFL_DATA_ROOT is not set"
    )
    refuse_source(Folder(str(tmp_path)), "holds no folder; put each class's images into a folder of its own")
    (tmp_path / "a").mkdir()
    refuse_source(Folder(str(tmp_path)), "holds no images in its folders")
    pictures(tmp_path, {"a": 3, "b": 3})
    Image.new("RGB", (6, 6)).save(tmp_path / "b" / "x.png")
    refuse_source(
        Folder(str(tmp_path)), r"a/0.png has 1 channel\(s\), .*b/x.png has 3; convert them, or set channels=1"
    )
    Image.new("L", (7, 6)).save(tmp_path / "b" / "x.png")
    refuse_source(
        Folder(str(tmp_path)), r"a/0.png is 6x6 \(height x width\), .*b/x.png is 6x7; resize them, or set size"
    )
    Image.new("RGBA", (6, 6)).save(tmp_path / "b" / "x.png")
    refuse_source(Folder(str(tmp_path)), "b/x.png: has mode RGBA; save it as 8-bit grey or RGB")
    (tmp_path / "b" / "x.png").write_text("hello")
    refuse_source(Folder(str(tmp_path)), "b/x.png: cannot be read as an image")
    os.rename(tmp_path / "b" / "x.png", tmp_path / "b" / "x.txt")
    refuse_source(Folder(str(tmp_path)), "b/x.txt: not an image")
    os.remove(tmp_path / "b" / "x.txt")
    checked(Folder(str(tmp_path), test_share=0.4).load(), "data")
    few = checked(Folder(str(tmp_path), test_share=0.1).load(), "data")
    assert len(few[1]) == 0  # too few to keep some back
    pictures(tmp_path / "train", {"a": 1})
    refuse_source(Folder(str(tmp_path)), "has a folder train alone; give it both train and test, or neither")
    pictures(tmp_path / "test", {"z": 1})
    refuse_source(Folder(str(tmp_path)), "test/z: not a class in training, which has a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size = 0 should be in .1, 8192. or None"),
        ({"channels": 2}, "channels = 2 should be 1 or 3 or None"),
        ({"test_share": 0.0}, r"test_share = 0\.0 should be in \(0, 1\)"),
        ({"size": "big"}, "size = 'big' should be int"),
    ],
)
def test_folder_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(Folder, {"path": "x", **settings}, "data folder")


# Tables


def write_table_text(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    return str(tmp_path / "t.csv")


ROWS = [f"{a},{a * a},{'red' if a % 2 else 'blue'},{'well' if a % 3 else 'ill'},site-{a % 2}" for a in range(24)]
PATIENTS = "\n".join(["age,score,colour,label,site", *ROWS]) + "\n"


def seen_by_models(source):
    """Both splits, filled up and scaled by the training rows."""
    train, test = checked(source.load(), "data", missing=True)
    fitted = source.preparation(train, train)
    return replace(train, x=fitted.apply(train.x)), replace(test, x=fitted.apply(test.x))


def test_table_standardises_by_the_training_rows(tmp_path):
    train, test = seen_by_models(Table(write_table_text(tmp_path, PATIENTS), key="site", leave=["colour"]))
    assert train.x.shape[1:] == (2,) and train.x.dtype == np.float32 and len(train) + len(test) == 24
    assert np.allclose(train.x.mean(axis=0), 0, atol=1e-5) and np.allclose(train.x.std(axis=0), 1, atol=1e-5)
    assert set(train.key) == {"site-0", "site-1"}
    assert np.bincount(np.concatenate([train.y, test.y])).tolist() == [8, 16]  # ill, well


def test_table_as_it_is_and_with_constant_features(tmp_path):
    text = "a,b,label\n" + "".join(f"0.{i},7,{i % 2}\n" for i in range(8))
    train, test = seen_by_models(Table(write_table_text(tmp_path, text), scaling="none"))
    assert np.allclose(sorted(np.concatenate([train.x, test.x])[:, 0]), np.arange(8) / 5 - 1)
    train, test = seen_by_models(Table(write_table_text(tmp_path, text)))
    assert np.allclose(train.x[:, 1], 0) and np.allclose(test.x[:, 1], 0)


def test_table_from_npz(tmp_path):
    path = save_npz(
        tmp_path / "t.npz", x=np.random.default_rng(0).random((20, 3)), b=np.arange(20), y=np.arange(20) % 2
    )
    train, test = checked(Table(path, label="y").load(), "data")
    assert train.x.shape[1:] == (4,) and len(test) == 4
    refuse_source(Table(path), r"no column 'label'; it has x\.0, x\.1, x\.2, b, y")
    path = save_npz(tmp_path / "t.npz", x=np.zeros((20, 3)), label=np.zeros(19, int))
    refuse_source(Table(path), "'label' has 19 rows but 'x' has 20; every array is a column")
    path = save_npz(tmp_path / "t.npz", x=np.zeros((20, 3)), label=np.array([{}] * 20))
    refuse_source(Table(path), "cannot be read as an npz file without pickled objects")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("a,label\n", "no rows"),
        ("a,b\n1,2\n", "no column 'label'; it has a, b"),
        ("a,a,label\n1,2,0\n", "two columns are called 'a'"),
        ("a,label\n1,0\n1\n", "row 2 has 1 values, the header 2 columns"),
        ("a,label\n1,0\ninf,1\n", "column 'a': row 2 is infinite; fix it or leave the row out"),
        ("a,label\n1,0\n2,1\nthree,1\n", "column 'a': row 3 holds 'three' among numbers"),
        ("a,label\n1,0.5\n1,\n", "column 'label': row 2 has no label"),
        ("a,label\n1,0.5\n1,inf\n", "column 'label': row 2 is infinite; fix it or leave the row out"),
        ("a,label\n1,0.5\n1,2.5\n1,none\n", "column 'label': row 3 holds 'none' among numbers; fix it"),
        ("a,label\n1,0\n1,\n", "column 'label': row 2 has no label"),
        ("a,label\n1,x\n1,\n", "column 'label': row 2 has no label"),
        ("label\nx\ny\n", "no column besides 'label' that could be a feature; it has label"),
        ('a,label\n"1,x\n', "cannot be read as a CSV file in UTF-8"),
    ],
)
def test_table_refusals(tmp_path, text, message):
    refuse_source(Table(write_table_text(tmp_path, text)), message)


def test_table_key_and_bytes(tmp_path):
    refuse_source(
        Table(write_table_text(tmp_path, PATIENTS), key="user"),
        "no column 'user'; it has age, score, colour, label, site",
    )
    (tmp_path / "t.csv").write_bytes(b"a,label\n\xff\xfe,0\n")
    refuse_source(Table(str(tmp_path / "t.csv")), "cannot be read as a CSV file in UTF-8")
    with pytest.raises(ConfigError, match="label and key are both 'x'"):
        Table("t.csv", label="x", key="x")


# Real data, where it is


ROOT = os.environ.get("CFL_DATA_ROOT")


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("fashionmnist.npz", (1, 28, 28), 10),
        ("bloodmnist28.npz", (3, 28, 28), 8),
        ("mednist28.npz", (1, 28, 28), 6),
        ("pneumoniamnist.npz", (1, 28, 28), 2),
    ],
)
def test_real_npz(name, shape, classes):
    if not ROOT or not (Path(ROOT) / name).is_file():
        pytest.skip(f"{name} is not in CFL_DATA_ROOT")
    train, test = checked(Npz(name).load(), "data")
    assert train.x.shape[1:] == shape and len(np.unique(train.y)) == len(np.unique(test.y)) == classes


def test_a_table_of_a_hundred_thousand_columns_is_read(tmp_path):
    path = tmp_path / "wide.csv"
    names = [f"c{i}" for i in range(100_000)]
    path.write_text("\n".join([",".join(["label", *names]), *(",".join([str(i % 2)] * 100_001) for i in range(8))]))
    assert Table(str(path)).load()[0].x.shape[1:] == (100_000,)


@pytest.mark.parametrize("value", [1e38, -1e17])
def test_samples_beyond_float32_s_squares_are_refused(value):
    with pytest.raises(DataError, match=r"sample 1 reaches 1e\+\d\d; scale the samples"):
        Samples(np.array([[0.0], [value]], np.float32), np.array([0, 1])).check("own")


# Labels that are no class numbers


def test_npz_labels_of_each_form(tmp_path):
    rng = np.random.default_rng(0)
    made = {
        "masks": rng.integers(0, 3, (12, 6, 5, 1)).astype(np.uint8),
        "findings": rng.integers(0, 2, (12, 14)).astype(np.uint8),
        "age": rng.normal(50, 9, (12, 1)),
        "survival": np.stack((rng.random(12) + 1, rng.integers(0, 2, 12)), axis=1),
    }
    path = save_npz(
        tmp_path / "a.npz", **make_npz_arrays(), **{f"{s}_{n}": y for n, y in made.items() for s in ("train", "test")}
    )
    found = {name: checked(Npz(path, labels=name).load(), "data")[0].y for name in made}
    assert found["masks"].shape == (12, 6, 5) and found["masks"].dtype == np.uint8
    assert found["findings"].shape == (12, 14)
    assert found["age"].tolist() == made["age"][:, 0].tolist()
    assert np.array_equal(found["survival"], made["survival"])
    assert Npz(path).load()[0].y.dtype == np.int64
    refuse_source(Npz(path, labels="grades"), "no array 'train_grades'; it has train_images, ")


@pytest.mark.parametrize("changes", [{"test_labels": np.full(12, -1)}, {"test_labels": np.full(12, 0.5)}])
def test_npz_numbers_in_one_split_are_numbers_in_both(tmp_path, changes):
    train, test = Npz(save_npz(tmp_path / "a.npz", **make_npz_arrays(**changes))).load()
    assert train.y.dtype == test.y.dtype == np.float64 and train.y.tolist() == [0, 1, 2] * 4


def test_npz_masks_of_another_size_are_refused(tmp_path):
    masks = {f"{split}_masks": np.zeros((12, 5, 6), np.uint8) for split in ("train", "test")}
    path = save_npz(tmp_path / "a.npz", **make_npz_arrays(), **masks)
    refuse_source(
        Npz(path, labels="masks"), r"training: masks are 5x6, and samples have shape \(1, 6, 5\); give each image"
    )


@pytest.mark.parametrize("column", [[f"{a}.5" for a in range(20)], [str(a - 3) for a in range(20)]])
def test_a_table_with_numbers_to_predict(tmp_path, column):
    text = "age,score\n" + "".join(f"{i % 7},{value}\n" for i, value in enumerate(column))
    train, test = checked(Table(write_table_text(tmp_path, text), label="score").load(), "data")
    assert train.y.dtype == test.y.dtype == np.float64 and len(test) == 5  # one of each fifth
    assert sorted(np.concatenate((train.y, test.y))) == [float(value) for value in column]
    assert np.diff(np.sort(test.y)).max() <= 7


ROWS_WITH_TIMES = [f"{40 + i},{i + 0.5},{int(i % 4 == 0)},{i % 3}" for i in range(24)]
FOLLOW_UP = "\n".join(["age,months,died,ward", *ROWS_WITH_TIMES]) + "\n"


def test_a_table_with_times_and_events(tmp_path):
    train, test = checked(
        Table(write_table_text(tmp_path, FOLLOW_UP), label="months", event="died", key="ward").load(), "data"
    )
    assert train.x.shape == (18, 1) and train.y.shape == (18, 2)  # the event is no feature
    both = np.concatenate((train.y, test.y))
    assert sorted(both[:, 0]) == [i + 0.5 for i in range(24)] and both[:, 1].sum() == 6
    assert np.unique(test.key, return_counts=True)[1].tolist() == [2, 2, 2]  # a quarter of each ward's
    path = save_npz(tmp_path / "t.npz", x=np.zeros((8, 2)), t=np.arange(1, 9), e=np.arange(8) % 2 == 0)
    assert Table(path, label="t", event="e", test_share=0.5).load()[0].y.dtype == np.float64


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "70,8.5,2,0",
            "column 'died': row 25 holds '2'; write 1 where the event happened, 0 where the row was censored",
        ),
        ("70,8.5,0.5,0", "column 'died': row 25 holds '0.5'; write 1"),
        ("70,8.5,,0", "column 'died': row 25 holds no value; write 1"),
        ("70,8.5,yes,0", "column 'died': row 25 holds 'yes'; write 1"),
        ("70,0,1,0", "column 'months': 1 of 25 rows have a time that is not above 0 .rows 25."),
        ("70,-3,1,0", "1 of 25 rows have a time that is not above 0 .rows 25."),
        ("70,inf,1,0", "column 'months': row 25 is infinite; fix it or leave the row out"),
        ("70,,1,0", "column 'months': row 25 has no time; fill it in, leave the row out"),
        ("70,long,1,0", "column 'months': row 25 holds 'long' among numbers; fix it, leave the row out"),
    ],
)
def test_rows_without_a_time_or_an_event(tmp_path, row, message):
    refuse_source(Table(write_table_text(tmp_path, FOLLOW_UP + row + "\n"), label="months", event="died"), message)


def test_event_columns_that_will_not_do(tmp_path):
    path = write_table_text(tmp_path, FOLLOW_UP)
    refuse_source(
        Table(path, label="months", event="dead"),
        "no column 'dead'; it has age, months, died, ward; set event, or CFL_EVENT together with CFL_DATA",
    )
    with pytest.raises(ConfigError, match="data table: label and event are both 'died'; they are different columns"):
        Table(path, label="died", event="died")
    with pytest.raises(ConfigError, match="data table: key and event are both 'died'"):
        Table(path, label="months", key="died", event="died")
    both = save_npz(tmp_path / "t.npz", x=np.zeros((8, 2)), t=np.ones((8, 2)), e=np.ones(8))
    refuse_source(Table(both, label="t", event="e"), r"no column 't'; it has x\.0, x\.1, t\.0, t\.1, e")
