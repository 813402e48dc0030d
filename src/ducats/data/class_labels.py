"""Class names of images and their indices, with the checks that loaders and `ducats doctor` share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.utils.errors import UserError
from ducats.utils.findings import join_quoted
from ducats.utils.image_files import IMAGE_FILE_SUFFIXES


def check_not_empty(description: str, n_images: int) -> None:
    """Raise if a set has no images; ``description`` names the set in messages, here and below."""
    if not n_images:
        raise UserError(
            f"{description} contains no images ({', '.join(sorted(IMAGE_FILE_SUFFIXES))}); add images or "
            "give another path"
        )


def source_classes(description: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of a source in ASCII order; raise if there are fewer than two."""
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise UserError(
            f"{description} has {f'only one class, {classes[0]!r}' if classes else 'no classes'}; give "
            "images of at least two classes (one subfolder or label each)"
        )
    return classes


ADD_CLASSES_REMEDY = ", or let the run add them with --new-classes"


def target_only(labels: Sequence[str], classes: Sequence[str], *, allowed: bool) -> tuple[str, ...]:
    """Return the classes of target images that the source lacks, if they are allowed; else none."""
    return tuple(sorted(set(labels).difference(classes, [""]))) if allowed else ()


def class_indices(
    description: str, labels: Sequence[str], names: Sequence[str], classes: Sequence[str], *, remedy: str = ""
) -> Tensor:
    """Return the class index of each image: int64 (N,); raise for an unknown class.

    Args:
        names: paths or keys of the images, for messages.
        remedy: what else can be done about unknown classes, besides changing the images.
    """
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(labels) - set(index))
    if unknown:
        example = next(name for name, label in zip(names, labels, strict=True) if label in unknown)
        raise UserError(
            f"{description} has unknown classes: {join_quoted(unknown)} (first: {example}); the classes are "
            f"{join_quoted(classes)}; rename or remove the others{remedy}"
        )
    return torch.tensor([index[label] for label in labels], dtype=torch.int64)
