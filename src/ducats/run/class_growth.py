"""The classes of a run that is resumed: with those that were added, renamed or merged since it started."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ducats.data.domain import Domain, RenumberedMaps, renumber
from ducats.models import EvidentialModel
from ducats.models.growing import grow_classes
from ducats.run.components import Components
from ducats.runfolder.class_changes import ClassList


def grow_model(model: EvidentialModel, classes_before: int, classes: int) -> EvidentialModel:
    """Return the model with a logit for each class; without new classes, the same one."""
    if classes == classes_before:
        return model
    network = model.unwrap()
    grow_classes(network, classes_before, classes)
    return EvidentialModel(network, model.evidence)


def with_class_list(components: Components, classes: ClassList) -> Components:
    """Return components with the classes of a run.

    The model has a logit for each class, also for merged ones. Source images of a merged class have the label
    of the class that it is part of. The test set has the classes in use. The oracle gets the list.
    """
    if isinstance(getattr(components.oracle, "classes", None), ClassList):
        components.oracle.classes = classes  # type: ignore[attr-defined]
    if not classes.changes:
        return components
    test = components.test
    return replace(
        components,
        source=_with_names(components.source, classes, classes.names),
        test=None if test is None else with_current_classes(test, classes),
    )


def with_current_classes(test: Domain, classes: ClassList) -> Domain:
    """Return a test set with the classes in use, followed by those of its own that the run does not know."""
    return _with_names(test, classes, classes.current)


def _with_names(domain: Domain, classes: ClassList, names: Sequence[str]) -> Domain:
    """Return a domain with the given classes, followed by its own that are not among them.

    Its own names may be former ones.
    """
    current = [
        classes.names[n] if (n := classes.number(name)) is not None else name for name in domain.classes
    ]
    all_names = tuple(dict.fromkeys((*names, *current)))
    numbers = [all_names.index(name) for name in current]
    labels = domain.labels
    if numbers != list(range(len(numbers))):
        table = torch.tensor(numbers)
        labels = renumber(labels, table) if isinstance(labels, Tensor) else RenumberedMaps(labels, table)
    return replace(domain, labels=labels, classes=all_names)
