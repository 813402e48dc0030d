"""Differences between reports on classification and on segmentation, as data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Measure:
    """A column of the table."""

    key: str  # key in a run's records
    title: str
    direction: int  # +1 if higher is better, -1 if lower is better, 0 if neither
    scale: float = 1.0  # factor for display, e.g. 100 for percent
    digits: int = 3  # decimals for display
    thousands_separator: bool = False  # use a thousands separator, as in 1,310,720
    optional: bool = False  # omit the column if no run has a value
    # Omit an optional column also if its values equal those of the measure with this key.
    redundant_with: str = ""
    csv_only: bool = False  # show the column in the CSV file only

    def adds_information(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether a table of these records needs the column."""
        return not self.optional or any(
            record.get(self.key) is not None and record[self.key] != record.get(self.redundant_with)
            for record in records
        )


@dataclass(frozen=True)
class RunKind:
    """A kind of runs that can be compared because they are ranked by the same measure."""

    headline_metric: str  # key of that measure in the records
    score_name: str  # name of the measure in sentences and on axes
    mean_name: str  # name of its mean over seeds
    label_name: str  # name of one label in sentences
    labels_axis: str  # title of an axis that counts labels
    measures: tuple[Measure, ...]  # columns of the table
    id_prefix: str = ""  # prefix of SVG ids, so that two kinds can share a page

    def measure(self, key: str) -> Measure:
        """Return the measure with that key."""
        return next(measure for measure in self.measures if measure.key == key)


ECE_MEASURE = Measure("ece", "Calibration error %", -1, 100, 2)
_CLASS_MEAN_MEASURE = Measure("mean_class_accuracy", "Class mean %", +1, 100, 2)
NLL_MEASURE = Measure("nll", "NLL", -1)
BRIER_MEASURE = Measure("brier", "Brier", -1)
AURC_MEASURE = Measure("aurc", "AURC", -1, digits=4)
SECONDS_MEASURE = Measure("seconds", "Seconds", 0, digits=1)
CLASSIFICATION = RunKind(
    headline_metric="accuracy",
    score_name="accuracy",
    mean_name="mean accuracy",
    label_name="label",
    labels_axis="labels",
    measures=(
        Measure("accuracy", "Accuracy %", +1, 100, 2),
        Measure("labels", "Labels", 0, digits=0),
        ECE_MEASURE,
        _CLASS_MEAN_MEASURE,
        NLL_MEASURE,
        BRIER_MEASURE,
        AURC_MEASURE,
        SECONDS_MEASURE,
    ),
)
SEGMENTATION = RunKind(
    headline_metric="mean_iou",
    score_name="mIoU",
    mean_name="mIoU",
    label_name="labelled pixel",
    labels_axis="labelled pixels",
    measures=(
        Measure("mean_iou", "mIoU %", +1, 100, 2),
        Measure("mean_iou_star", "mIoU* %", +1, 100, 2, optional=True),
        Measure("labels", "Labelled pixels", 0, digits=0, thousands_separator=True),
        Measure(
            "clicks", "Clicks", 0, digits=0, thousands_separator=True, optional=True, redundant_with="labels"
        ),
        Measure("accuracy", "Pixel accuracy %", +1, 100, 2),
        ECE_MEASURE,
        _CLASS_MEAN_MEASURE,
        NLL_MEASURE,
        replace(BRIER_MEASURE, csv_only=True),
        replace(AURC_MEASURE, csv_only=True),
        SECONDS_MEASURE,
    ),
    id_prefix="pixels-",
)
RUN_KINDS = {kind.headline_metric: kind for kind in (CLASSIFICATION, SEGMENTATION)}


def capitalise(text: str) -> str:
    """Start the name of a measure with a capital.

    >>> capitalise("pixel accuracy"), capitalise("mIoU")
    ('Pixel accuracy', 'mIoU')
    """
    return text[:1].upper() + text[1:] if text != "mIoU" else text
