"""The classes of a run that is resumed: with those that were added, renamed or merged since it started."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ducats.data.domain import Domain, Labels
from ducats.models import EvidentialModel
from ducats.models.growing import grow_classes
from ducats.run.components import Components
from ducats.runfolder.class_changes import ClassList
from ducats.utils.errors import UserError


def grow_model(model: EvidentialModel, classes_before: int, classes: int) -> EvidentialModel:
    """Return the model with a logit for each class; without new classes, the same one."""
    if classes == classes_before:
        return model
    network = model.unwrap()
    grow_classes(network, classes_before, classes)
    return EvidentialModel(network, model.evidence)


def with_class_list(components: Components, classes: ClassList) -> Components:
    """Return components with the classes of a run.

    Source and test images of a merged class get the class that it is part of. The oracle gets the list.
    """
    if hasattr(components.oracle, "classes"):
        components.oracle.classes = classes
    if not classes.changes:
        return components
    test = components.test
    return replace(
        components,
        source=_with_names(components.source, classes),
        test=None if test is None else _with_names(test, classes),
    )


def _with_names(domain: Domain, classes: ClassList) -> Domain:
    """Return a domain with the classes of the run, and then those of its own that the run does not know."""
    names = domain.classes
    numbers = [classes.number(name) for name in names]
    unknown = [name for name, number in zip(names, numbers, strict=True) if number is None]
    unknown_numbers = {name: len(classes) + index for index, name in enumerate(unknown)}
    numbers = [unknown_numbers.get(n, number) for n, number in zip(names, numbers, strict=True)]
    return replace(domain, labels=_renumber(domain.labels, numbers), classes=(*classes.names, *unknown))


def _renumber(labels: Labels, numbers: Sequence[int | None]) -> Labels:
    if list(numbers) == list(range(len(numbers))):
        return labels
    if not isinstance(labels, Tensor) or labels.ndim > 1:
        raise UserError(
            "classes of label maps cannot be merged; undo the merge by restoring classes.json from a backup"
        )
    table = torch.tensor([int(number or 0) for number in numbers])
    return torch.where(labels >= 0, table[labels.clamp(min=0)], labels)
