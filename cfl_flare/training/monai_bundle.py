# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A MONAI bundle of a model of images: its network is an ONNX graph, as the usual ``model.pt`` is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"

SCRIPT = '''"""The network of this bundle, which onnxruntime computes: nothing is unpickled."""

import numpy as np
import onnxruntime
import torch
from monai.utils import convert_to_dst_type


class OnnxNetwork(torch.nn.Module):
    """Predictions of images, float32 from 0 to 1; the graph normalises them."""

    def __init__(self, path):
        super().__init__()
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def forward(self, images):
        samples = np.asarray(images.detach().cpu(), np.float32)
        predictions = self.session.run(["predictions"], {"samples": samples})[0]
        return convert_to_dst_type(torch.from_numpy(predictions), images)[0]
'''
README = """# {name}

A {task} model of images, written by cfl_flare. `configs/metadata.json` describes its input and output.

`models/model.onnx` stands for the usual `models/model.pt`, which would be pickled. `scripts` runs it by onnxruntime.
It needs `pip install "monai[ignite,nibabel]" onnxruntime pillow`. In this folder, this predicts a folder of images:

```sh
python -m monai.bundle run --config_file configs/inference.json --bundle_root . --dataset_dir IMAGES
```
"""


def bundle_files(name: str, graph: bytes, description: Mapping[str, Any]) -> dict[str, bytes | str]:
    """The files of a bundle, by their paths in it; see `cfl_flare.training.formats.Portable.description`."""
    return {
        "configs/metadata.json": json.dumps(_metadata(name, description), indent=1),
        "configs/inference.json": json.dumps(_inference(description), indent=1),
        "models/model.onnx": graph,
        "scripts/__init__.py": SCRIPT,
        "docs/README.md": README.format(name=name, task=description["task"]["task"]),
    }


def _metadata(name: str, description: Mapping[str, Any]) -> dict[str, Any]:
    _, channels, *sides = description["input"]["shape"]
    predictions = description["outputs"][0]
    _, count, *of_pixels = predictions["shape"]
    is_probability = predictions["link"] in ("softmax", "sigmoid")
    names = (description["classes"] or [str(k) for k in range(count)])[-count:]  # of a finding, its being there
    of: dict[str, Any] = {"dtype": "float32", "is_patch_data": False}
    image = {**of, "type": "image", "format": "magnitude", "num_channels": channels, "spatial_shape": sides}
    image |= {"value_range": [0, 1], "channel_def": {str(i): f"channel {i}" for i in range(channels)}}
    pred = {**of, "type": "probabilities" if is_probability else "value", "num_channels": count}
    pred |= {"format": "segmentation" if of_pixels else "classes", "spatial_shape": of_pixels or [1, count]}
    pred |= {"value_range": [0, 1] if is_probability else [], "channel_def": {str(i): n for i, n in enumerate(names)}}
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "monai_version": "1.4.0",
        "numpy_version": np.__version__,
        "changelog": {"0.1.0": "written by cfl_flare"},
        "pytorch_version": description["software"]["torch"].partition("+")[0],
        "required_packages_version": {"onnxruntime": "1.20.0", "pytorch-ignite": "0.4.11", "nibabel": "4.0.1"},
        "name": name,
        "task": f"{description['task']['task']} of images",
        "description": f"{name}, trained by federated learning with cfl_flare; onnxruntime computes its network",
        **dict.fromkeys(("authorship", "copyright"), "see the documents of the run"),
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": pred}},
        "cfl_flare": description,
    }


def _inference(description: Mapping[str, Any]) -> dict[str, Any]:
    """The workflow: images are read, converted and resized as ``cfl-flare predict`` does."""
    _, channels, height, width = description["input"]["shape"]
    resized = f"image.convert('{'L' if channels == 1 else 'RGB'}').resize(({width}, {height}), 2)"
    reader = {"_target_": "PILReader", "converter": f"$lambda image: {resized}", "reverse_indexing": False}
    is_mask = len(description["outputs"][0]["shape"]) > 2
    csv = {
        **{"_target_": "ClassificationSaver", "output_dir": "@output_dir"},
        "batch_transform": "$lambda batch: [sample['image'].meta for sample in batch]",
        "output_transform": "$lambda batch: [sample['pred'] for sample in batch]",
    }
    masks = [
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
        {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir", "resample": False},
    ]
    transforms = [
        {"_target_": "LoadImaged", "keys": "image", "reader": reader, "ensure_channel_first": True},
        {"_target_": "ScaleIntensityRanged", "keys": "image", "a_min": 0, "a_max": 255, "b_min": 0, "b_max": 1},
        {"_target_": "EnsureTyped", "keys": "image", "dtype": "$torch.float32"},
    ]
    return {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "device": "cpu",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/predictions'",
        "images": "$sorted(p for p in glob.glob(@dataset_dir + '/**', recursive=True) if p[-4:] in ('.png', '.jpg'))",
        "network_def": {"_target_": "scripts.OnnxNetwork", "path": "$@bundle_root + '/models/model.onnx'"},
        "preprocessing": {"_target_": "Compose", "transforms": transforms},
        "data": "$[{'image': path} for path in @images]",
        "dataset": {"_target_": "Dataset", "data": "@data", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {"_target_": "Compose", "transforms": masks if is_mask else []},
        "handlers": [] if is_mask else [csv],
        "evaluator": {
            **{"_target_": "SupervisedEvaluator", "device": "@device", "val_data_loader": "@dataloader"},
            **{"network": "@network_def", "inferer": "@inferer"},
            **{"postprocessing": "@postprocessing", "val_handlers": "@handlers"},
        },
        "run": ["$@evaluator.run()"],
    }
