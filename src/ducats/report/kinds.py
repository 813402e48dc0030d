"""What reports say differently about images and about pixels: data, so that nothing else has to ask."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Measure:
    """A column of the table.

    Args:
        key: its name in a run's records.
        title: its name on paper.
        better: +1 if more is better, -1 if less is, 0 if neither.
        scale: what it is multiplied by on paper: 100 for percent.
        digits: decimals on paper.
        grouped: whether its thousands are set apart: 1,310,720.
        optional: whether the column is left out where no run has it.
        unlike: an optional column is also left out where it says the same as the measure of this key.
        spare: whether only the spreadsheet has room for it.
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
    """Runs that can be compared: they are ranked by one measure.

    Args:
        headline: the measure's key, as the records name it.
        score: the measure's name in a sentence and on an axis.
        mean: its name where it is a mean over seeds.
        label: what is bought, one of it.
        axis: what is bought, on an axis.
        measures: the table's columns.
        prefix: of the ids of its figures, so that two kinds can share a page.
    """

    headline: str
    score: str
    mean: str
    label: str
    axis: str
    measures: tuple[Measure, ...]
    prefix: str = ""

    def measure(self, key: str) -> Measure:
        """The column of that key."""
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
    axis="labels bought",
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
