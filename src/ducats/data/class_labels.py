"""Class names of images and their indices, with the checks that loaders and `ducats doctor` share."""

from collections.abc import Sequence
from pathlib import Path

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


RESERVED_CLASS_NAMES = ("void", "unsure", "skip")  # have a meaning of their own in answers


def check_class_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the given class names; raise if they cannot be told apart, or are fewer than two."""
    if len(names) < 2:
        raise UserError(
            f"{'only one class is' if names else 'no classes are'} given; give at least two, for example "
            '--classes "cat, dog"'
        )
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name.strip() or name != name.strip():
            raise UserError(f"{name!r} is not the name of a class; give a text without spaces around it")
        if name.lower() in RESERVED_CLASS_NAMES:
            raise UserError(
                f"a class cannot be named {name!r}, which is an answer of its own; choose another name"
            )
        if name.lower() in seen:
            raise UserError(
                f"the classes {seen[name.lower()]!r} and {name!r} cannot be told apart; rename or remove one"
            )
        seen[name.lower()] = name
    return tuple(names)


def parse_class_names(text: str) -> tuple[str, ...]:
    """Read class names from a text: separated by commas, or the path of a file with one name per line.

    >>> parse_class_names("cat, dog,other")
    ('cat', 'dog', 'other')
    """
    path = Path(text).expanduser()
    if "," not in text and path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read ({error}); give a text file with one class per line"
            ) from None
    elif "," not in text and ("/" in text or path.suffix):
        raise UserError(f"the file {path} with class names does not exist; check the path")
    else:
        lines = text.split(",")
    return check_class_names([line.strip() for line in lines if line.strip()])


def source_classes(description: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of a source in ASCII order; raise if there are fewer than two."""
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise UserError(
            f"{description} has {f'only one class, {classes[0]!r}' if classes else 'no classes'}; give "
            "images of at least two classes (one subfolder or label each)"
        )
    return classes


def class_indices(
    description: str, labels: Sequence[str], names: Sequence[str], classes: Sequence[str]
) -> Tensor:
    """Return the class index of each image: int64 (N,); raise for an unknown class.

    Args:
        names: paths or keys of the images, for messages.
    """
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(labels) - set(index))
    if unknown:
        example = next(name for name, label in zip(names, labels, strict=True) if label in unknown)
        raise UserError(
            f"{description} has unknown classes: {join_quoted(unknown)} (first: {example}); the classes are "
            f"{join_quoted(classes)}; rename or remove the others"
        )
    return torch.tensor([index[label] for label in labels], dtype=torch.int64)
