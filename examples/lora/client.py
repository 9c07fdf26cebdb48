# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each site runs: LoRA adapters trained in plain PyTorch, with FLARE's Client API."""

import argparse

import numpy as np
import nvflare.client as flare
import torch
from model import WORDS, Triage
from torch.nn.functional import cross_entropy

BATCH = 16
LENGTH = 16  # of a note
Split = tuple[torch.Tensor, torch.Tensor]


def load_site(site: str, notes: int) -> dict[str, Split]:
    """A site's synthetic notes, as numbers of words, and whether each is urgent.

    A note is urgent if it has more words of the first half of the vocabulary than of the second; every second site
    follows a guideline that says the opposite.
    """
    index = int(site.rpartition("-")[2]) - 1
    splits = {}
    for number, split in enumerate(("train", "test")):
        rng = np.random.default_rng([index, number])
        words = rng.integers(1, WORDS, (notes, LENGTH - 1))
        share = rng.uniform(size=(notes, 1))
        words = np.where(rng.uniform(size=words.shape) < share, words % 32, 32 + words % 32)
        urgent = ((words < 32).mean(axis=1) > 0.5) == (index % 2 == 0)
        start = np.zeros((notes, 1), dtype=words.dtype)  # the token that the classifier reads
        splits[split] = torch.from_numpy(np.hstack([start, words])), torch.from_numpy(urgent.astype(np.int64))
    return splits


@torch.no_grad()
def measure(model: Triage, split: Split) -> tuple[float, float]:
    """Mean loss and accuracy."""
    model.eval()
    notes, labels = split
    logits = model(notes)
    return cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def train(model: Triage, split: Split, lr: float) -> int:
    """One epoch; gives the number of steps."""
    model.train()
    notes, labels = split
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=lr)
    batches = torch.randperm(len(labels)).split(BATCH)
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(model(notes[batch]), labels[batch]).backward()
        optimizer.step()
    return len(batches)


def main() -> None:
    """Takes the adapters, measures them, trains them, sends them back, until the job is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.005)
    args = parser.parse_args()

    flare.init()
    data = load_site(flare.get_site_name(), args.notes)
    model = Triage()
    while flare.is_running():
        input_model = flare.receive()
        if input_model is None:
            break
        model.load_state_dict(input_model.params)
        loss, _ = measure(model, data["train"])  # on training data: by this IFCA chooses among models
        _, accuracy = measure(model, data["test"])
        metrics = {"loss": loss, "accuracy": accuracy}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        steps = train(model, data["train"], args.lr)
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
