# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The device, model and settings that a process's participants share; the samples, batches and memory of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.private import Division
from cfl_flare.training.ensemble import Predictor, ignores_mode
from cfl_flare.training.resident import ResidentModel, build_optimizer, build_untrained
from cfl_flare.training.sample_gradients import SampleGradients
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification, LearningTask

if TYPE_CHECKING:
    from cfl_flare.training.augment import Augment

# Stacked models kept for the next participant: the candidates, the frozen part of a sum, and what is being measured.
PREDICTORS = 3
# Untrained models kept for the next participant.
UNTRAINED = 4
# The name of a participant's private layers. No method uses it: names of its own are identifiers.
PRIVATE = ":private"


@dataclass(frozen=True)
class Place:
    """A device for one site's process.

    Attributes:
        device: such as ``cpu`` or ``cuda:1``.
        memory: the share of a GPU's memory that the process may take; None for all of it.
    """

    device: str
    memory: float | None = None

    @classmethod
    def of(
        cls,
        device: str,
        memory: float | None = None,
        index: int = 0,
        together: int | None = None,
    ) -> Place:
        """The place of one of a job's sites: those that ask for ``cuda`` are spread over the machine's GPUs in turn.

        ``together`` is how many sites share this machine, None if each may have its own. No ``memory`` is an even share
        where the sites that compete for a GPU are known.

        Args:
            device: where to compute.
            memory: the largest part of the GPU's memory.
            index: the number of the site.
            together: how many sites share the machine.
        """
        devices = torch.cuda.device_count() if device == "cuda" else 0
        if not devices:
            return cls(device, memory)
        number = index % devices
        if memory is None and together is not None:
            rivals = len(range(number, together, devices))
            memory = 1 / rivals if rivals > 1 else None
        return cls(f"cuda:{number}", memory)

    def limit(self) -> None:
        """Makes torch's allocator keep to the share of memory; beyond it, this process is out of memory."""
        if self.memory is not None and torch.device(self.device).type == "cuda":
            torch.cuda.set_per_process_memory_fraction(
                self.memory, torch.device(self.device)
            )

    def __str__(self) -> str:
        if torch.device(self.device).type != "cuda":
            return self.device
        if self.memory is None:
            share = ""
        else:
            share = f", at most {self.memory:.0%} of its memory"
        return f"{self.device} ({torch.cuda.get_device_name(self.device)}{share})"


@dataclass(frozen=True)
class Split:
    """Samples and labels as tensors: ``x (n, *input_shape)`` float32, ``y (n, ...)`` as the run's task has targets.

    Attributes:
        patient: ``(n,)`` int64, the number of each sample's patient, from 0; None if each is of a patient of its own.
    """

    x: Tensor
    y: Tensor
    patient: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        device: str = "cpu",
        task: LearningTask | None = None,
        patient: np.ndarray | None = None,
    ) -> Split:
        """Converts arrays; by default, labels are class numbers, and ``patient`` has any names.

        Images are stored channels-last, the order in which a CPU convolves fastest.

        Args:
            x: samples ``(n, *input_shape)`` float32.
            y: labels ``(n, ...)``.
            device: where to compute.
            task: the run's task.
            patient: the patient of each sample ``(n,)``.
        """
        tensor = torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(device)
        if tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        number = None if patient is None else np.unique(patient, return_inverse=True)[1]
        return cls(tensor, (task or Classification()).targets(y).to(device), number)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Split:
        """Some of the samples; their patients keep their numbers.

        Args:
            rows: the numbers of the samples.
        """
        patient = None if self.patient is None else self.patient[rows.cpu().numpy()]
        return Split(self.x[rows], self.y[rows], patient)

    @property
    def patients(self) -> int:
        """How many patients there are."""
        return len(self) if self.patient is None else len(np.unique(self.patient))

    @cached_property
    def class_counts(self) -> Tensor:
        """How many samples, or pixels, are of each class, up to the last one that occurs."""
        return torch.bincount(self.y.flatten())

    def by_patient(self, values: np.ndarray) -> np.ndarray:
        """The mean over each patient's samples of values ``(..., n)``: ``(..., patients)``.

        Args:
            values: ``(..., n)``.
        """
        if self.patient is None:
            return values
        number = np.unique(self.patient, return_inverse=True)[1]
        sums = [
            np.bincount(number, weights=row) for row in values.reshape(-1, len(self))
        ]
        return (np.stack(sums) / np.bincount(number)).reshape(*values.shape[:-1], -1)


class Batches:
    """Batches of a training split, each of them transformed if there are transforms.

    A transformed batch is made when it is asked for. It is equal each time, because the batch or each sample has
    a seed. All are kept at once only where `samples`, which other models need beforehand, has made them.
    """

    def __init__(
        self,
        data: Split,
        indices: list[Tensor],
        augment: Augment | None = None,
        seeds: Sequence[int | Sequence[int]] = (),
    ):
        self._data = data
        self._indices = indices
        self._augment = augment
        self._seeds = seeds
        self._made: list[Split] = []

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> Split:
        if self._made:
            return self._made[number]
        batch = self._data.take(self._indices[number])
        if self._augment is None:
            return batch
        return Split(
            *self._augment(batch.x, batch.y, self._seeds[number]), batch.patient
        )

    def places(self, number: int) -> Tensor:
        """The places of a batch's samples in the split.

        Args:
            number: the number of the batch.
        """
        return self._indices[number]

    @property
    def sizes(self) -> list[int]:
        return [len(chosen) for chosen in self._indices]

    def samples(self) -> Tensor:
        """The samples of all batches, one after the other, ``(n, *input_shape)`` float32."""
        if self._augment is None:
            return self._data.x[torch.cat(self._indices)]
        self._made = [self[i] for i in range(len(self))]
        return torch.cat([batch.x for batch in self._made])


class MemoryView(MutableMapping[str, Params]):
    """A part of a participant's memory: the names that begin with a prefix, without it."""

    def __init__(
        self,
        memory: MutableMapping[str, Params],
        prefix: str,
    ):
        self._memory = memory
        self._prefix = prefix

    def __getitem__(self, name: str) -> Params:
        return self._memory[self._prefix + name]

    def __setitem__(
        self,
        name: str,
        value: Params,
    ) -> None:
        self._memory[self._prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self._memory[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (
            name.removeprefix(self._prefix)
            for name in self._memory
            if name.startswith(self._prefix)
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Runtime:
    """The resident model, its optimizer and the settings, which all participants of a process share.

    Args:
        should_stop: asked before each step whether the job was aborted.
        private: the layers that each participant has for itself; None for none.
        authorize: the site's component policy, which is asked about a task of the user's.

    Attributes:
        untrained: the run's untrained model of a given number; ``initial`` is what travels of it.
        ignores_mode: the network is known to compute the same in training and in evaluation mode.
    """

    def __init__(
        self,
        make_model: Callable[[], torch.nn.Module],
        settings: TrainSettings,
        seed: int,
        device: str = "cpu",
        should_stop: Callable[[], bool] = lambda: False,
        private: str | None = None,
        authorize: Callable[[str], None] | None = None,
    ):
        try:
            torch.zeros(1, device=device)
        except (
            Exception
        ) as error:  # torch raises many kinds of errors for a missing device
            reason = f"device = {device!r} cannot be used here ({one_line(error)})"
            raise ConfigError(f"{reason}; name another, such as 'cpu'") from error
        settings.lr_at(
            0
        )  # a cosine without its rounds is refused here, and not in each participant's first step
        self.settings = settings
        self.seed = seed
        self.device = device
        self.should_stop = should_stop
        self.task = settings.built_task(authorize)
        self.augment = settings.built_augment(self.task)
        self.resident = ResidentModel(make_model(), device)
        self.division = Division.of(self.resident.module, private)
        self.untrained = lru_cache(UNTRAINED)(
            partial(build_untrained, make_model, seed)
        )
        self.initial = lru_cache(UNTRAINED)(
            lambda index: self.untrained(index).take(self.division.public)
        )
        self.optimizer = build_optimizer(settings, self.resident)
        self.ignores_mode = ignores_mode(self.resident.module)
        self._predictors: OrderedDict[
            tuple[int | bool, ...], tuple[list[Params], Predictor]
        ] = OrderedDict()

    @cached_property
    def sample_gradients(self) -> SampleGradients:
        """The gradients of single samples, for differential privacy."""
        return SampleGradients(self.resident)

    @contextmanager
    def drawing_from(self, rng: np.random.Generator) -> Iterator[None]:
        """Inside it, the modules' own random draws, as of dropout, come from a stream.

        Args:
            rng: the source of random numbers.
        """
        on_cpu = torch.device(self.device).type == "cpu"
        # torch.manual_seed seeds every kind of device, which takes longer than a step of a small model.
        seed = torch.default_generator.manual_seed if on_cpu else torch.manual_seed
        with torch.random.fork_rng(devices=[]):
            seed(int(rng.integers(2**62)))
            yield

    @property
    def shared_parameters(self) -> Tensor:
        """The resident model's parameters that travel: what penalties act on, with their gradient."""
        if self.division.private is None:
            return self.resident.parameters
        names = [e.name for e in self.division.public.entries if e.kind == "parameter"]
        return torch.cat(
            [self.resident.parameters[s] for s in self.resident.layout.select(names)]
        )

    def predictor(
        self,
        models: Sequence[Params],
        features: bool = False,
        training: bool = False,
    ) -> Predictor:
        """A predictor of these models; the last few are cached, as a site's participants compare the same models.

        Args:
            models: the models.
            features: outputs of the backbone in place of logits.
            training: predict in training mode.
        """
        key = (features, training, *map(id, models))
        if key not in self._predictors:
            self._predictors[key] = (
                list(models),
                Predictor(self.resident, models, features, training),
            )
        self._predictors.move_to_end(key)
        while len(self._predictors) > PREDICTORS:
            self._predictors.popitem(last=False)
        return self._predictors[key][1]

    def forget(self) -> None:
        """Lets go of the models that predicted: those of the next round are others."""
        self._predictors.clear()
