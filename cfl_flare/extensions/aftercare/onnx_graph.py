# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A model as an ONNX graph, which other programs read. Nothing is pickled.

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
from cfl_flare.training.losses import predict_from
from cfl_flare.training.tasks import LearningTask

INPUT = "samples"
OUTPUTS = ("predictions", "outputs")
# What onnxruntime computes may differ from torch by this much, as a part of numbers above 1.
TOLERANCE = 1e-5
OF_LINK = {
    "softmax": "the probability of each class; they add up to 1",
    "sigmoid": "the probability of each finding",
    "identity": "the predicted number",
    "exp": "the predicted rate; for survival, the hazard relative to an output of 0",
}


class Predictor(nn.Module):
    """A model between what ``cfl-flare predict`` does to samples and what it makes of outputs.

    A table's features are float64, NaN where a value is missing. Samples without a preparation are pixels.
    """

    def __init__(
        self,
        model: nn.Module,
        link: str,
        preparation: Preparation | None,
    ):
        super().__init__()
        self.model = model
        self.link = link
        self.preparation = preparation

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and outputs of samples; NaN for pixels that nobody has scaled.

        Args:
            samples: the number of samples.
        """
        if self.preparation is not None:
            outputs = self.model(_filled_and_scaled(samples, self.preparation))
        else:
            x = (samples - 0.5) / 0.5
            outputs = self.model(x)
            far = x.abs().flatten(1).amax(dim=1) > FAR
            outputs = torch.where(
                far.view(-1, *[1] * (outputs.dim() - 1)), torch.nan, outputs
            )
        return predict_from(outputs, self.link) + 0.0, outputs


def _filled_and_scaled(
    features: Tensor,
    preparation: Preparation,
) -> Tensor:
    """As `Preparation.apply`."""
    numbers = (preparation.fill, preparation.mean, preparation.deviation)
    fill, mean, deviation = (
        torch.tensor(values, dtype=torch.float64) for values in numbers
    )
    z = (torch.where(features.isnan(), fill, features) - mean) / deviation
    if preparation.clip is not None:
        scaled = torch.tensor(preparation.columns.scaled)
        z = torch.where(scaled, z.clamp(-preparation.clip, preparation.clip), z)
    return z.float()


@dataclass(frozen=True)
class Portable:
    """A model to write, with what its reader has to know.

    Attributes:
        model: the module, ready to predict.
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
        """Random samples as the graph takes them, of a table with missing values.

        Args:
            count: how many.
        """
        draws = np.random.default_rng(count)
        p = self.preparation
        x = draws.random((count, *self.shape))
        if p is None:
            return torch.from_numpy(x).float()
        return torch.from_numpy(
            np.where(
                draws.random(x.shape) < 0.1, np.nan, p.mean + (16 * x - 8) * p.deviation
            )
        )

    def description(self, outputs: Tensor) -> dict[str, Any]:
        """Inputs and outputs in words and numbers, for JSON; ``outputs`` are of some samples.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
        """
        of_input: dict[str, Any] = {
            "dtype": "float32",
            "values": "bytes over 255, or floats as in training",
        }
        in_graph = f"x becomes (x - 0.5) / 0.5; beyond {(FAR + 1) / 2:g} pixels were never scaled, and give NaN"
        if self.preparation is not None:
            of_input = {
                "dtype": "float64",
                "missing": "NaN",
                "features": _features(self.preparation),
            }
            in_graph = "missing values are filled up, numbers scaled and clipped"
        of_outputs = {"dtype": "float32", "shape": ["n", *outputs.shape[1:]]}
        return {
            **self.facts,
            "task": {"task": self.task.name, **dataclasses.asdict(self.task)},
            "input": {
                "name": INPUT,
                "shape": ["n", *self.shape],
                **of_input,
                "in_graph": in_graph,
            },
            "outputs": [
                {
                    "name": OUTPUTS[0],
                    **of_outputs,
                    "values": OF_LINK[self.task.link],
                    "link": self.task.link,
                },
                {
                    "name": OUTPUTS[1],
                    **of_outputs,
                    "values": "what the network computes, before the link",
                },
            ],
            "classes": [*self.classes],
            "software": {"cfl-flare": __version__, "torch": torch.__version__},
        }


def _features(preparation: Preparation) -> list[dict[str, Any]]:
    """What each feature of a table is; a category is 1 in the feature of its name, and 0 in the column's others."""
    features: list[dict[str, Any]] = []
    for column, _ in preparation.columns.places:
        what = {"column": column.column, "kind": column.kind}
        if column.kind == "category":
            codes: list[dict[str, Any]] = [
                {"is": category} for category in column.categories
            ]
        elif column.categories:
            codes = [
                {"codes": dict(zip(column.categories, range(len(column.categories))))}
            ]
        else:
            codes = [{} if column.range is None else {"range": [*column.range]}]
            codes[0] |= {} if column.unit is None else {"unit": column.unit}
        codes += [{"is": "missing"}] * column.missing
        features += [
            {"name": name, **what, **code} for name, code in zip(column.features, codes)
        ]
    return features


def write_onnx(
    folder: Path,
    name: str,
    portable: Portable,
) -> list[Path]:
    """Write a model as ``NAME.onnx``, and its description as ``NAME.json``.

    Args:
        folder: where the files go. It is made if it does not exist.
        name: the files' name without its ending.
        portable: the model, with the facts that its reader needs.

    Returns:
        The written files, the graph first.

    Raises:
        ConfigError: packages are missing, torch's exporter does not take the model, or onnxruntime computes something
            else.
    """
    graph, outputs = onnx_of(portable)
    make_folder(folder)
    graph_file = folder / f"{name}.onnx"
    atomic_write(graph_file, graph)
    description_file = folder / f"{name}.json"
    atomic_write(description_file, json.dumps(portable.description(outputs), indent=1))
    return [graph_file, description_file]


def onnx_of(portable: Portable) -> tuple[bytes, Tensor]:
    """The ONNX graph of a model, compared with it; and its outputs for two samples.

    Args:
        portable: the model with its preparation.

    Raises:
        ConfigError: packages are missing, torch's exporter does not take the model, or onnxruntime computes something
            else.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        reason = f"{error.name} is not installed, which ONNX needs"
        raise ConfigError(f"onnx: {reason}; pip install 'cfl-flare[onnx]'") from error
    kind = type(portable.model).__name__
    predictor = Predictor(
        portable.model, portable.task.link, portable.preparation
    ).eval()
    batch = {0: torch.export.Dim("n")}
    names: dict[str, Any] = {
        "input_names": [INPUT],
        "output_names": [*OUTPUTS],
        "dynamic_shapes": (batch,),
    }
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                predictor, (portable.samples(2),), **names, dynamo=True, verbose=False
            )
        graph = _without_traces(program.model_proto)
        onnx.checker.check_model(graph)
        content = graph.SerializeToString()
    except (
        Exception
    ) as error:  # the exporter raises many kinds of errors, of several lines
        reason = f"torch does not write {kind} as ONNX ({one_line(error)})"
        way_out = "predict with cfl-flare predict, or build the network of layers that torch.onnx knows"
        raise ConfigError(f"onnx: {reason}; {way_out}") from error
    require(
        len(content) < 2**31,
        f"onnx: {kind} has {len(content):,} bytes; an ONNX file has 2 GiB at most",
    )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = portable.samples(5)
    with torch.no_grad():
        wanted = predictor(x)
    for name, ours, theirs in zip(
        OUTPUTS, wanted, session.run([*OUTPUTS], {INPUT: x.numpy()})
    ):
        gap = (torch.from_numpy(theirs) - ours).abs() / ours.abs().clamp(min=1)
        far = float(
            gap.where(torch.from_numpy(theirs) != ours, torch.zeros(())).max()
        )  # both may be infinite
        reason = f"onnxruntime's {name} of {kind} are {far:.2g} from torch's, more than {TOLERANCE:g}"
        require(far <= TOLERANCE, f"onnx: {reason}; predict with cfl-flare predict")
    return content, wanted[1]


def _without_traces(graph: Any) -> Any:
    """A graph without what torch notes of its own work, such as paths of this machine."""
    inner = graph.graph
    tensors = (*inner.input, *inner.output, *inner.value_info, *inner.initializer)
    for part in (graph, inner, *inner.node, *tensors, *graph.functions):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return graph
