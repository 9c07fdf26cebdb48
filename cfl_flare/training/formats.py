# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A model in formats that other programs read: ONNX, and MONAI's bundle. Nothing is pickled.

The graph holds what ``cfl-flare predict`` does: it fills up and scales samples, and makes predictions of outputs. A
JSON file beside it describes inputs and outputs.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cfl_flare.core import __version__
from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.files import atomic_write, make_folder
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.summary import FAR
from cfl_flare.training.losses import predicted
from cfl_flare.training.tasks import Binary, LearningTask, Multilabel

FORMATS = ("onnx", "monai")
INPUT, OUTPUTS = "samples", ("predictions", "outputs")
# What onnxruntime computes may differ from torch by this much, as a part of numbers above 1.
TOLERANCE = 1e-5
MOST_BYTES = 2**31 - 1
OF_LINK = {
    "softmax": "the probability of each class; they add up to 1",
    "sigmoid": "the probability of each finding",
    "identity": "the predicted number",
    "exp": "the predicted rate; for survival, the hazard relative to an output of 0",
}


class Predictor(nn.Module):
    """A model between what ``cfl-flare predict`` does to samples and what it makes of outputs.

    Args:
        model: takes prepared samples.
        link: of the task.
        preparation: of a table's features, float64 with NaN where a value is missing; None for samples that are
            normalised as pixels.
    """

    fill: Tensor
    mean: Tensor
    deviation: Tensor
    scaled: Tensor

    def __init__(self, model: nn.Module, link: str, preparation: Preparation | None):
        super().__init__()
        self.model, self.link, self.clip = model, link, None if preparation is None else preparation.clip
        self.is_table = preparation is not None
        if preparation is not None:
            for name in ("fill", "mean", "deviation"):
                self.register_buffer(name, torch.from_numpy(np.array(getattr(preparation, name), np.float64)))
            self.register_buffer("scaled", torch.from_numpy(preparation.columns.scaled))

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and outputs of samples; NaN for pixels that nobody has scaled."""
        x = self._filled_and_scaled(samples) if self.is_table else (samples - 0.5) / 0.5
        outputs = self.model(x)
        if not self.is_table:
            far = x.abs().flatten(1).amax(dim=1) > FAR
            outputs = torch.where(far.view(-1, *[1] * (outputs.dim() - 1)), torch.nan, outputs)
        return predicted(outputs, self.link) + 0.0, outputs

    def _filled_and_scaled(self, features: Tensor) -> Tensor:
        """As `Preparation.apply`."""
        z = (torch.where(features.isnan(), self.fill, features) - self.mean) / self.deviation
        if self.clip is not None:
            z = torch.where(self.scaled, z.clamp(-self.clip, self.clip), z)
        return z.float()


@dataclass(frozen=True)
class Portable:
    """A model to write, with what its reader has to know.

    Attributes:
        model: the module, ready to predict.
        task: what it predicts.
        shape: of one sample.
        preparation: how features of a table are filled up and scaled; None for other samples.
        classes: their names, of the predictions' columns; none where these are no classes.
        facts: where it comes from, for the description.
    """

    model: nn.Module
    task: LearningTask
    shape: Sequence[int]
    preparation: Preparation | None = None
    classes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def samples(self, count: int) -> Tensor:
        """Random samples as the graph takes them, of a table with missing values."""
        generator = torch.Generator().manual_seed(count)
        x = torch.rand((count, *self.shape), generator=generator)
        p = self.preparation
        if p is None:
            return x
        z = torch.from_numpy(p.mean) + (16 * x.double() - 8) * torch.from_numpy(p.deviation)
        return torch.where(torch.rand(x.shape, generator=generator) < 0.1, torch.nan, z)

    @property
    def predictor(self) -> Predictor:
        return Predictor(self.model, self.task.link, self.preparation).eval()

    def description(self, outputs: Tensor) -> dict[str, Any]:
        """Inputs and outputs in words and numbers, for JSON; ``outputs`` are of some samples."""
        p, shape = self.preparation, ["n", *self.shape]
        in_graph = "the graph fills up missing values, scales numbers and clips them; nothing is left to do"
        of_input = {"name": INPUT, "dtype": "float64", "shape": shape, "missing": "NaN", "preparation": in_graph}
        if p is None:
            values = "bytes divided by 255, or floats as in training, as a rule from 0 to 1"
            in_graph = f"the graph takes x to (x - 0.5) / 0.5; beyond {(FAR + 1) / 2:g} pixels are unscaled: NaN"
            of_input |= {"dtype": "float32", "missing": "none", "values": values, "preparation": in_graph}
        of_outputs = {"dtype": "float32", "shape": ["n", *outputs.shape[1:]]}
        names = {} if p is None else {"features": _features(p)}
        threshold = self.task.threshold if isinstance(self.task, (Binary, Multilabel)) else None
        return {
            **self.facts,
            "task": {"task": self.task.name, **dataclasses.asdict(self.task)},
            "input": {**of_input, **names},
            "outputs": [
                {"name": OUTPUTS[0], **of_outputs, "values": OF_LINK[self.task.link], "link": self.task.link},
                {"name": OUTPUTS[1], **of_outputs, "values": "what the network computes, before the link"},
            ],
            "classes": [*self.classes],
            **({} if threshold is None else {"threshold": threshold}),
            "software": {"cfl-flare": __version__, "torch": torch.__version__},
        }


def _features(preparation: Preparation) -> list[dict[str, Any]]:
    """What each feature of a table is; a category is 1 in the feature of its name, and 0 in the column's others."""
    features: list[dict[str, Any]] = []
    for column, _ in preparation.columns.places:
        what = {"column": column.column, "kind": column.kind}
        if column.kind == "category":
            codes: list[dict[str, Any]] = [{"is": category} for category in column.categories]
        elif column.categories:
            codes = [{"codes": dict(zip(column.categories, range(len(column.categories))))}]
        else:
            codes = [{} if column.range is None else {"range": [*column.range]}]
        codes += [{"is": "missing"}] * column.missing
        features += [{"name": name, **what, **code} for name, code in zip(column.features, codes)]
    return features


def write_formats(folder: Path, name: str, portable: Portable, formats: Sequence[str]) -> list[Path]:
    """Writes a model in each of some formats: ``NAME.onnx`` and ``NAME.json``, and a MONAI bundle ``NAME-monai``.

    What was written is computed once more, by onnxruntime, and compared with torch.

    Args:
        folder: where to; created if it does not exist.
        name: of the files, without an ending.
        portable: the model.
        formats: some of `FORMATS`.

    Returns:
        The files.

    Raises:
        ConfigError: a format is unknown, does not take this model, or needs packages that are not installed.
    """
    from cfl_flare.training.monai_bundle import bundle_files

    unknown = [name for name in formats if name not in FORMATS]
    require(not unknown and bool(formats), f"formats = {[*formats]} should be some of {', '.join(FORMATS)}")
    is_image = portable.preparation is None and len(portable.shape) == 3
    require(
        "monai" not in formats or is_image,
        f"formats: a MONAI bundle describes images, and {name} takes samples of shape {tuple(portable.shape)}; write "
        "onnx, whose graph fills up and scales a table",
    )
    graph, outputs = onnx_of(portable)
    description = portable.description(outputs)
    files: dict[Path, bytes | str] = {}
    if "onnx" in formats:
        files |= {folder / f"{name}.onnx": graph, folder / f"{name}.json": json.dumps(description, indent=1)}
    if "monai" in formats:
        files |= {
            folder / f"{name}-monai" / path: text for path, text in bundle_files(name, graph, description).items()
        }
    for path, content in files.items():
        make_folder(path.parent)
        atomic_write(path, content)
    return [*files]


def onnx_of(portable: Portable) -> tuple[bytes, Tensor]:
    """The ONNX graph of a model, compared with it; and its outputs for two samples.

    Raises:
        ConfigError: packages are missing, torch's exporter does not take the model, or onnxruntime computes something
            else.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise ConfigError(
            f"formats: {error.name} is not installed, which ONNX needs; pip install 'cfl-flare[formats]'"
        ) from error
    predictor, kind = portable.predictor, type(portable.model).__name__
    batch = {0: torch.export.Dim("n")}
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [*OUTPUTS], "dynamic_shapes": (batch,)}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(predictor, (portable.samples(2),), **names, dynamo=True, verbose=False)
        graph = _without_traces(program.model_proto)
        onnx.checker.check_model(graph)
        content = graph.SerializeToString()
    except Exception as error:  # the exporter raises many kinds of errors, of several lines
        raise ConfigError(
            f"formats: torch does not write {kind} as ONNX ({one_line(error)}); predict with cfl-flare predict, or "
            "build the network of layers that torch.onnx knows"
        ) from error
    require(len(content) <= MOST_BYTES, f"formats: {kind} has {len(content):,} bytes; an ONNX file has 2 GiB at most")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = portable.samples(5)
    with torch.no_grad():
        wanted = predictor(x)
    for name, ours, theirs in zip(OUTPUTS, wanted, session.run([*OUTPUTS], {INPUT: x.numpy()})):
        far = float(((torch.from_numpy(theirs) - ours).abs() / ours.abs().clamp(min=1)).max())
        require(
            far <= TOLERANCE,
            f"formats: onnxruntime's {name} of {kind} are {far:.2g} from torch's, more than {TOLERANCE:g}; predict "
            "with cfl-flare predict",
        )
    return content, wanted[1]


def _without_traces(graph: Any) -> Any:
    """A graph without what torch notes of its own work, such as paths of this machine."""
    for part in (graph, graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for part in (*graph.graph.value_info, *graph.graph.initializer, *graph.functions):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return graph
