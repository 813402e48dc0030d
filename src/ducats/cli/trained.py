"""Commands about runs that were made: measure, predict, report, what was bought."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ducats.cli.base import app, console, print_json
from ducats.errors import UserError


@app.command
def evaluate(run: Path, *, data: Path | None = None, device: str = "auto") -> int:
    """Measure a finished run's model on the images it was measured on, or on a folder of labelled ones.

    The answer says which images these are: held-out ones, the target without what was bought, or all of it.

    Args:
        run: The run's folder.
        data: A folder of labelled images, class/...; of segmentation with images/ and labels/, which are read
            with the run's class list. By default the run's own.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, measure, usable_precision

    trained = load_trained(run)
    found = measure(trained, make_fabric(device, precision=usable_precision(trained, device)), data)
    print_json(found.numbers(trained.classes, trained.config.evaluation.star_without))
    return 0


@app.command
def predict(
    run: Path,
    images: Path,
    *,
    out: Path | None = None,
    every_class: Annotated[bool, Parameter(negative=())] = False,
    uncertainty: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
) -> int:
    """Write a finished run's answers for a folder of images, each with its probability and uncertainties.

    Of segmentation, a label map for each image, in its own size: a PNG with class numbers and colours.

    Args:
        run: The run's folder.
        images: A folder of images, in any sub-folders or none.
        out: The CSV to write (key, label, probability, entropy, u_data, u_dis; after `ducats triage` also
            triage: accept or review), by default predictions.csv.
            Of segmentation, the folder for labels/, classes.txt and predictions.csv (means over each image's
            pixels, and the share of each class), by default predictions.
        every_class: Also write the probability of each class; not of segmentation.
        uncertainty: Segmentation: also write uncertainty/, an NPZ for each image with probability, entropy,
            u_data and u_dis of each pixel.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, predict_maps, usable_precision
    from ducats.inference import predict as predict_folder

    trained = load_trained(run)
    if every_class and trained.of_pixels:
        raise UserError("--every-class is for classification: of pixels, --uncertainty writes what there is")
    if uncertainty and not trained.of_pixels:
        raise UserError("--uncertainty is for segmentation: of images, the CSV has uncertainties already")
    fabric = make_fabric(device, precision=usable_precision(trained, device))
    if trained.of_pixels:
        out = out or Path("predictions")
        count = predict_maps(trained, fabric, images, out, uncertainty=uncertainty)
    else:
        out = out or Path("predictions.csv")
        count = predict_folder(trained, fabric, images, out, every_class=every_class)
    console.print(f"{count} image{'' if count == 1 else 's'}, answers in {out}", soft_wrap=True)
    return 0


@app.command
def report(*runs: Path, out: Path = Path("report.html")) -> int:
    """Make one offline page of one or many runs: was it worth it, curves, calibration, picks and why.

    A run that cannot be read is named in the page; if no run can, the exit code is 1.

    Args:
        runs: Run folders, or folders that hold them.
        out: The page to write; or a folder, for report.html with table.md, table.csv, summary.json and,
            of segmentation, classes.csv.
    """
    from ducats.report import SUFFIXES, report_page
    from ducats.report import report as write_report

    if not runs:
        raise UserError("name at least one run folder, e.g. `ducats report runs`")
    one_page = out.suffix.lower() in SUFFIXES and not out.is_dir()
    told = report_page(list(runs), out) if one_page else write_report(list(runs), out)
    spoilt = [f"{one.folder} cannot be read: {one.reason}" for one in told.broken]
    for caution in (*spoilt, *told.cautions):
        console.print(f"beware: {caution}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report in {told.page}", soft_wrap=True)
    return 0 if told.runs else 1


@app.command
def labels(run: Path) -> int:
    """Print the labels that a run bought, as CSV: round, key, label; of pixels also y and x.

    Args:
        run: The run's folder.
    """
    import csv

    from ducats.domain import VOID
    from ducats.rundir import RunDir

    home = RunDir(run)
    classes, ledger = home.data["classes"], home.bought()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = {VOID: "void", **dict(enumerate(classes))}
    # One by one: of pixels, there may be a hundred million.
    if ledger.sizes is None:
        writer.writerow(["round", "key", "label"])
        writer.writerows((e.round, e.key, names[e.label]) for e in ledger.entries())
    else:
        widths = dict(zip(ledger.keys, ledger.sizes[:, 1].tolist(), strict=True))
        writer.writerow(["round", "key", "y", "x", "label"])
        writer.writerows(
            (e.round, e.key, *divmod(e.position, widths[e.key]), names[e.label]) for e in ledger.entries()
        )
    return 0


@app.command
def picks(
    run: Path,
    *,
    out: Path | None = None,
    images: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    count: int = 4,
) -> int:
    """Draw a picture of the pixels that a segmentation run bought: a row per image, a column per round.

    Args:
        run: The run's folder.
        out: The PNG to write; by default picks.png in the run's folder.
        images: Keys of the images to show; by default some, evenly spaced.
        count: How many to show if none are named.
    """
    from ducats.inference import config_of
    from ducats.picks import choose, images_of, picks_figure
    from ducats.rundir import RunDir

    home = RunDir(run)
    settled, classes, ledger = config_of(home), home.data["classes"], home.bought()
    chosen = choose(ledger, images, count)  # before images are read, which may take long
    shown = images_of(settled, chosen)
    path = picks_figure(ledger, shown, out or run / "picks.png", classes=classes, chosen=chosen)
    console.print(f"picture in {path}", soft_wrap=True)
    return 0
