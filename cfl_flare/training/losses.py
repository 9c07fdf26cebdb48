# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions from outputs, losses that torch lacks, the weights of classes, and penalty terms.

Terms are part of what torch differentiates, so their gradients are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cfl_flare.core.params import Params

# These make predictions of outputs: class probabilities, a probability of each output, numbers, rates.
LINKS = ("softmax", "sigmoid", "identity", "exp")
# Rows of the matrix of all pairs that are compared at a time.
ROWS = 1024


def predict_from(
    outputs: Tensor,
    link: str,
) -> Tensor:
    """Predictions from outputs ``(n, classes, ...)``: probabilities that add up to 1, or of each output, or numbers.

    Args:
        outputs: outputs of a model ``(n, classes, ...)``.
        link: one of `LINKS`.
    """
    if link == "softmax":
        return outputs.softmax(dim=1)
    if link == "sigmoid":
        return outputs.sigmoid()
    if link == "exp":
        return outputs.exp()
    return outputs


def compute_cox_loss(
    risk: Tensor,
    time: Tensor,
    event: Tensor,
    ties: str = "efron",
) -> Tensor:
    """The negative logarithm of Cox's partial likelihood, divided by the number of events.

    At each event, those at risk are all whose time is not shorter. Of d events at the same time, Breslow compares each
    with all at risk; Efron leaves out of them the shares 0, 1/d, ..., (d-1)/d of those whose event it is.

    Args:
        risk: ``(n,)`` logarithms of relative hazards.
        time: ``(n,)`` until the event, or until the end of observation.
        event: ``(n,)`` 1 where the event happened, else 0.
        ties: ``"efron"`` or ``"breslow"``.

    Returns:
        A scalar; 0, with a gradient of zeros, where there is no event.
    """
    order = torch.argsort(time)
    risk = risk[order]
    time = time[order]
    happened = event[order] > 0
    if not happened.any():
        return risk.sum() * 0

    # The logarithm of the sum of hazards from each place on; at a tie, from the tie's first place.
    from_here = risk.flip(0).logcumsumexp(0).flip(0)
    at_risk = from_here[torch.searchsorted(time, time)][happened]
    terms = risk[happened] - at_risk
    if ties == "efron":
        _, tie, sizes = torch.unique_consecutive(
            time[happened], return_inverse=True, return_counts=True
        )
        hazards = _log_sums(risk[happened], tie, len(sizes))[tie]
        # How many events of the same tie come before each event.
        starts = sizes.cumsum(0) - sizes
        before = torch.arange(len(tie), device=tie.device) - starts[tie]
        left_out = (before / sizes[tie]) * (hazards - at_risk).exp()
        terms = terms - torch.log1p(-left_out)
    return -terms.sum() / len(terms)


def _log_sums(
    values: Tensor,
    group: Tensor,
    groups: int,
) -> Tensor:
    """For each group, the logarithm of the sum of exponentials ``(groups,)``."""
    top = torch.full((groups,), -torch.inf, dtype=values.dtype, device=values.device)
    top = top.scatter_reduce(0, group, values.detach(), "amax")
    sums = torch.zeros_like(top).index_add(0, group, (values - top[group]).exp())
    return sums.log() + top


def measure_concordance(
    risk: Tensor,
    time: Tensor,
    event: Tensor,
    counts: Tensor,
) -> Tensor:
    """Harrell's C of draws of the samples, ``(draws,)`` float64; NaN where there is no pair that counts.

    Among the pairs whose first event is known, it is the share where that sample has the higher risk. Equal risks count
    half. Of two equal times, an observed event comes before the end of observation. The first arguments are those of
    `compute_cox_loss`. ``counts`` says how often each draw has each sample, ``(n, draws)``, or ``(n,)`` for one draw.

    Args:
        risk: ``(n,)`` logarithms of relative hazards.
        time: ``(n,)`` until the event, or until the end of observation.
        event: ``(n,)`` 1 if the event happened, else 0.
        counts: how often each resample has each sample, ``(n, draws)`` or ``(n,)``
            float64.
    """
    counts = counts.view(len(time), -1)
    draws = counts.shape[1]
    right = torch.zeros(draws, dtype=torch.float64, device=time.device)
    pairs = torch.zeros_like(right)
    happened = event > 0
    # float32 has halves exactly below 2**23.
    others = counts.float()
    for start in range(0, len(time), ROWS):
        rows = slice(start, start + ROWS)
        earlier = time[rows, None] < time
        tied = (time[rows, None] == time) & ~happened
        known = (earlier | tied) & happened[rows, None]
        higher = known & (risk[rows, None] > risk)
        equal = known & (risk[rows, None] == risk)
        scores = higher.float().add_(equal, alpha=0.5)
        pairs += (counts[rows] * (known.float() @ others).double()).sum(0)
        right += (counts[rows] * (scores @ others).double()).sum(0)
    return right / pairs


def compute_soft_dice(
    outputs: Tensor,
    targets: Tensor,
) -> Tensor:
    """Dice of probabilities, (2 sum p t + 1) / (sum p + sum t + 1): the mean over all classes but the background.

    Outputs are logits ``(n, classes, h, w)``, and targets ``(n, h, w)`` int64.

    Args:
        outputs: logits ``(n, classes, h, w)``.
        targets: ``(n, h, w)`` int64.
    """
    probabilities = outputs.softmax(dim=1)[:, 1:]
    masks = [targets == number for number in range(1, outputs.shape[1])]
    there = torch.stack(masks, dim=1).to(probabilities.dtype)
    both = (probabilities * there).sum(dim=(0, 2, 3))
    either = (probabilities + there).sum(dim=(0, 2, 3))
    return ((2 * both + 1) / (either + 1)).mean()


def balance_classes(
    counts: Tensor,
    classes: int,
) -> Tensor:
    """Weights with which each class that occurs has the same share of all samples: n / (classes that occur * n_c).

    ``counts`` are the n_c up to the last class that occurs. A class that does not occur has weight 1: it counts in
    label smoothing alone.

    Args:
        counts: ``(classes,)``, samples of each class.
        classes: the number of classes.

    >>> balance_classes(torch.tensor([3, 0, 1]), 3)
    tensor([0.6667, 1.0000, 2.0000])
    """
    counts = F.pad(counts, (0, classes - len(counts)))
    weights = counts.sum() / ((counts > 0).sum() * counts.clamp(min=1))
    return torch.where(counts > 0, weights, torch.ones_like(weights))


@dataclass(frozen=True)
class Step:
    """The input of a term in one local step.

    Attributes:
        parameters: the flat parameters ``(parameter_size,)`` that are being trained, without private layers.
        features: the backbone's outputs ``(n, d)`` for the batch, in the term's mode; None unless it compares them.
        compared: the outputs of the K models that the term compares them with, ``(K, n, d)``, in the same mode; these
            do not train.
    """

    parameters: Tensor
    features: Tensor | None = None
    compared: Tensor | None = None


class Term(Protocol):
    """A term that is added to the loss in each local step.

    Attributes:
        compares: the models whose features the term needs for each batch.
        training: whether these features, and those of the model that trains, are those of training mode.
    """

    compares: tuple[Params, ...] = ()
    training: bool = False

    def __call__(self, step: Step) -> Tensor:
        """The term's value, a scalar."""
        ...


class Pull(Term):
    """``strength/2 * ||theta - anchor||^2`` over some of the parameters ``slices``, ``(d,)``, never over buffers."""

    def __init__(
        self,
        strength: float,
        anchor: np.ndarray,
        slices: Sequence[slice],
    ):
        self._strength = strength
        self._anchor = torch.from_numpy(anchor)
        self._slices = slices

    @classmethod
    def to(
        cls,
        strength: float,
        model: Params,
        scope: str = "all",
    ) -> Pull:
        """The pull to a model, or to a part of one.

        Args:
            strength: mu.
            model: the anchor.
            scope: the part that is pulled: a role, or names.
        """
        return cls(strength, model.part(scope), model.layout.select(scope))

    def __call__(self, step: Step) -> Tensor:
        here = torch.cat([step.parameters[s] for s in self._slices])
        squares = (here - self._anchor.to(here.device)).square()
        return 0.5 * self._strength * squares.sum()


class ParameterContrast(Term):
    """``mu * -log( exp(cos(theta, Theta_own)/tau) / sum_k exp(cos(theta, Theta_k)/tau) )`` (thesis Eq. 4.3).

    Theta are the ``centres (K, d)`` of some of the parameters, ``slices``. The participant's own centre has ``index``.
    """

    def __init__(
        self,
        mu: float,
        tau: float,
        index: int,
        centres: np.ndarray,
        slices: Sequence[slice],
    ):
        self._mu = mu
        self._tau = tau
        self._index = index
        self._centres = F.normalize(torch.from_numpy(centres), dim=1)
        self._slices = slices

    def __call__(self, step: Step) -> Tensor:
        here = torch.cat([step.parameters[s] for s in self._slices])
        cosines = self._centres.to(here.device) @ F.normalize(here, dim=0)
        return -self._mu * (cosines / self._tau).log_softmax(dim=0)[self._index]


class RepresentationContrast(Term):
    """`ParameterContrast` with cosines of backbone outputs, per sample, averaged over the batch (thesis Eq. 4.4).

    With ``training``, these are the outputs that the models compute in training mode, and not in evaluation mode.
    """

    def __init__(
        self,
        mu: float,
        tau: float,
        index: int,
        centres: Sequence[Params],
        training: bool = False,
    ):
        self._mu = mu
        self._tau = tau
        self._index = index
        self.compares = tuple(centres)
        self.training = training

    def __call__(self, step: Step) -> Tensor:
        assert step.features is not None and step.compared is not None
        cosines = F.cosine_similarity(step.features[None], step.compared, dim=2)
        return -self._mu * (cosines / self._tau).log_softmax(dim=0)[self._index].mean()
