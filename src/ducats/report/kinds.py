"""Differences between reports on classification and on segmentation, as data."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Measure:
    """A column of the table.

    Args:
        key: key in a run's records.
        better: +1 if higher is better, -1 if lower is better, 0 if neither.
        scale: factor for display, e.g. 100 for percent.
        digits: decimals for display.
        grouped: use a thousands separator, as in 1,310,720.
        optional: omit the column if no run has a value.
        unlike: omit an optional column also if its values equal those of the measure with this key.
        spare: show the column in the CSV file only.
    """

    key: str
    title: str
    better: int
    scale: float = 1.0
    digits: int = 3
    grouped: bool = False
    optional: bool = False
    unlike: str = ""
    spare: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of runs that can be compared because they are ranked by the same measure.

    Args:
        headline: key of that measure in the records.
        score: name of the measure in sentences and on axes.
        mean: name of its mean over seeds.
        label: name of one label in sentences.
        axis: title of an axis that counts labels.
        measures: columns of the table.
        prefix: prefix of SVG ids, so that two kinds can share a page.
    """

    headline: str
    score: str
    mean: str
    label: str
    axis: str
    measures: tuple[Measure, ...]
    prefix: str = ""

    def measure(self, key: str) -> Measure:
        """Return the measure with that key."""
        return next(measure for measure in self.measures if measure.key == key)


CALIBRATION = Measure("ece", "Calibration error %", -1, 100, 2)
CLASS_MEAN = Measure("mean_class_accuracy", "Class mean %", +1, 100, 2)
NLL = Measure("nll", "NLL", -1)
BRIER = Measure("brier", "Brier", -1)
AURC = Measure("aurc", "AURC", -1, digits=4)
SECONDS = Measure("seconds", "Seconds", 0, digits=1)
IMAGES = Kind(
    headline="accuracy",
    score="accuracy",
    mean="mean accuracy",
    label="label",
    axis="labels",
    measures=(
        Measure("accuracy", "Accuracy %", +1, 100, 2),
        Measure("labels", "Labels", 0, digits=0),
        CALIBRATION,
        CLASS_MEAN,
        NLL,
        BRIER,
        AURC,
        SECONDS,
    ),
)
PIXELS = Kind(
    headline="mean_iou",
    score="mIoU",
    mean="mIoU",
    label="labelled pixel",
    axis="labelled pixels",
    measures=(
        Measure("mean_iou", "mIoU %", +1, 100, 2),
        Measure("mean_iou_star", "mIoU* %", +1, 100, 2, optional=True),
        Measure("labels", "Labelled pixels", 0, digits=0, grouped=True),
        Measure("clicks", "Clicks", 0, digits=0, grouped=True, optional=True, unlike="labels"),
        Measure("accuracy", "Pixel accuracy %", +1, 100, 2),
        CALIBRATION,
        CLASS_MEAN,
        NLL,
        replace(BRIER, spare=True),
        replace(AURC, spare=True),
        SECONDS,
    ),
    prefix="pixels-",
)
KINDS = {kind.headline: kind for kind in (IMAGES, PIXELS)}
