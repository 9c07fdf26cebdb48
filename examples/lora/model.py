# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A small transformer whose pretrained weights stay as they are, with LoRA adapters that are trained."""

from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

WORDS = 64


def pretrained() -> nn.Module:
    """The same weights at every site. In earnest: ``AutoModelForSequenceClassification.from_pretrained(...)``."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertForSequenceClassification(config)


class Triage(nn.Module):
    """Urgent or not, for a note of word numbers. Only adapters and the classifier are in its `state_dict`.

    Args:
        rank: of the adapters.
    """

    def __init__(self, rank: int = 4):
        super().__init__()
        self.rank = rank
        adapters = LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=rank,
            lora_alpha=4 * rank,
            target_modules=["query", "value"],
            modules_to_save=["classifier"],
        )
        self.network = get_peft_model(pretrained(), adapters)

    def forward(self, notes: torch.Tensor) -> torch.Tensor:
        """Logits of shape (notes, 2)."""
        return self.network(input_ids=notes).logits

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """What travels: the adapters and the classifier."""
        return get_peft_model_state_dict(self.network)

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True, assign: bool = False) -> Any:
        """Takes what `state_dict` gives."""
        return set_peft_model_state_dict(self.network, dict(state_dict))
