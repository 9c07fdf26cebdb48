# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each hospital runs: PyTorch Lightning with FLARE's patch."""

import argparse
import os
from pathlib import Path

import numpy as np
import nvflare.client.lightning as flare
import pytorch_lightning as pl
import torch
from model import BloodModule
from nvflare.client import is_evaluate
from torch.utils.data import DataLoader, TensorDataset


class BloodCells(pl.LightningDataModule):
    """A hospital's images: its own share of a file that simulates them all.

    Every second hospital numbers the kinds of cells by another scheme, which nobody has told the others.

    Args:
        file: in MedMNIST's layout, in the folder that ``$CFL_DATA_ROOT`` names.
        site: the hospital.
        sites: how many hospitals share the file.
        samples: most images of a split.
    """

    def __init__(self, file: str, site: str, sites: int, samples: int):
        super().__init__()
        index = int(site.rpartition("-")[2]) - 1
        self.splits = {}
        with np.load(Path(os.environ["CFL_DATA_ROOT"]) / file) as arrays:
            for split in ("train", "test"):
                images = arrays[f"{split}_images"][index::sites][:samples]
                labels = arrays[f"{split}_labels"][index::sites][:samples].ravel().astype(np.int64)
                if index % 2 == 1:
                    labels = (labels + 4) % 8
                pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
                self.splits[split] = TensorDataset(pixels, torch.from_numpy(labels))

    def train_dataloader(self) -> DataLoader:
        """What fit() trains on."""
        return DataLoader(self.splits["train"], batch_size=32, shuffle=True)

    def val_dataloader(self) -> list[DataLoader]:
        """What validate() measures on: the test images, then the training images."""
        return [DataLoader(self.splits[split], batch_size=200) for split in ("test", "train")]


def main() -> None:
    """Takes a model, measures it, trains it, sends it back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True, help="in the folder that $CFL_DATA_ROOT names")
    parser.add_argument("--sites", type=int, required=True, help="how many share the file")
    parser.add_argument("--samples", type=int, required=True, help="most images of a split")
    parser.add_argument("--lr", type=float, required=True)
    args = parser.parse_args()

    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    flare.patch(trainer)  # from here on validate() and fit() receive the server's model and send what comes of it
    model = BloodModule(lr=args.lr)
    cells = BloodCells(args.file, flare.get_site_name(), args.sites, args.samples)
    while flare.is_running():
        only_evaluate = is_evaluate()  # asked before validate(), which answers the task
        trainer.validate(model, datamodule=cells, verbose=False)
        if not only_evaluate:  # fit() would take the next task for one to train on, whatever it is
            trainer.fit(model, datamodule=cells)


if __name__ == "__main__":
    main()
