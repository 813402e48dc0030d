"""Commands on existing runs: evaluate, predict, report, labels, picks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ducats.cli.base import (
    Strict,
    TrustCode,
    app,
    print_csv,
    print_json,
    print_line,
    print_warning,
    progress_bars,
)
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise
from ducats.utils.progress import activity


@app.command
def evaluate(
    run: Path,
    *,
    data: Path | None = None,
    strict: Strict = False,
    device: str = "auto",
    trust_code: TrustCode = False,
) -> int:
    """Evaluate the model of a finished run on its evaluation images or on a folder of labelled images.

    The output states which images were used: held-out images, the target without labelled images, or the
    whole target.

    Args:
        run: Run folder.
        data: Folder of labelled images, one subfolder per class; segmentation: images/ and labels/, read with
            the run's class list. Default: the evaluation images of the run.
        device: auto, cpu, cuda or mps.
    """
    with progress_bars(), activity("loading libraries"):
        from ducats.deploy import evaluate_run, load_trained_model, supported_precision
        from ducats.training.distributed import make_fabric

    trained = load_trained_model(run, trust_code=trust_code)
    fabric = make_fabric(device, precision=supported_precision(trained, device))
    with progress_bars():
        result = evaluate_run(trained, fabric, data, strict=strict)
    print_json(result.metrics(trained.classes, trained.config.evaluation.miou_star_exclude))
    return 0


@app.command
def predict(
    run: Path,
    images: Path,
    *,
    out: Path | None = None,
    class_probabilities: Annotated[bool, Parameter(negative=())] = False,
    uncertainty_maps: Annotated[bool, Parameter(negative=())] = False,
    strict: Strict = False,
    device: str = "auto",
    trust_code: TrustCode = False,
) -> int:
    """Predict the images of a folder with the model of a finished run, with probability and uncertainties.

    Segmentation: write a label map for each image in its original size, a PNG with class numbers and colours.

    Args:
        run: Run folder.
        images: Folder of images, searched recursively.
        out: Output CSV (key, label, probability, entropy, u_data, u_dis; after `ducats triage` also triage:
            accept or review); default: predictions.csv. Unreadable images are listed in NAME-unreadable.csv.
            Segmentation: output folder for labels/, classes.txt and predictions.csv (means over the pixels of
            each image, and the fraction of each class); default: predictions. Unreadable images are listed in
            its unreadable.csv.
        class_probabilities: Also write the probability of each class; not for segmentation.
        uncertainty_maps: Segmentation: also write uncertainty/, an NPZ per image with probability, entropy,
            u_data and u_dis of each pixel.
        device: auto, cpu, cuda or mps.
    """
    with progress_bars(), activity("loading libraries"):
        from ducats.deploy import load_trained_model, predict_label_maps, supported_precision
        from ducats.deploy import predict as predict_folder
        from ducats.training.distributed import make_fabric

    trained = load_trained_model(run, trust_code=trust_code)
    if class_probabilities and trained.per_pixel:
        raise UserError(
            "--class-probabilities is for classification; for segmentation use --uncertainty-maps"
        )
    if uncertainty_maps and not trained.per_pixel:
        raise UserError(
            "--uncertainty-maps is for segmentation; for classification the CSV contains the uncertainties"
        )
    fabric = make_fabric(device, precision=supported_precision(trained, device))
    if trained.per_pixel:
        out = out or Path("predictions")
        with progress_bars():
            done = predict_label_maps(
                trained, fabric, images, out, uncertainty_maps=uncertainty_maps, strict=strict
            )
    else:
        out = out or Path("predictions.csv")
        with progress_bars():
            done = predict_folder(
                trained, fabric, images, out, class_probabilities=class_probabilities, strict=strict
            )
    skipped = ""
    if done.n_unreadable:
        skipped = f"; {pluralise(done.n_unreadable, 'unreadable image')} skipped, see {done.unreadable_file}"
    print_line(f"{pluralise(done.n_predicted, 'image')}, predictions in {out}{skipped}")
    return 0


@app.command
def report(
    *runs: Path,
    out: Path | None = None,
    figures: Annotated[list[str] | None, Parameter(name="--figure", negative=())] = None,
) -> int:
    """Write an offline HTML report of one or more runs: verdict, curves, calibration, selected samples.

    The report lists runs that cannot be read. If no run can be read, the exit code is 1.

    Args:
        runs: Run folders, or folders that contain them.
        out: Output page; or a folder for report.html, table.md, table.csv, summary.json and, for
            segmentation, classes.csv. Default: report.html in the folder given; for several, in the current
            folder.
        figures: A figure to add, as in `ducats figure`, e.g. your own as package.module:name. Repeatable.
    """
    from ducats.report import report as write_report
    from ducats.report import report_page
    from ducats.report.write import PAGE_FILE_NAME, PAGE_SUFFIXES

    if not runs:
        raise UserError("give at least one run folder, e.g. `ducats report runs`")
    out = out or (runs[0] if len(runs) == 1 else Path()) / PAGE_FILE_NAME
    one_page = out.suffix.lower() in PAGE_SUFFIXES and not out.is_dir()
    write = report_page if one_page else write_report
    result = write(list(runs), out, figures=tuple(figures or ()))
    unreadable = [f"{broken.folder} cannot be read: {broken.reason}" for broken in result.broken]
    for warning in (*unreadable, *result.cautions):
        print_warning(warning)
    print_line(f"report in {result.page}")
    return 0 if result.runs else 1


@app.command
def labels(run: Path) -> int:
    """Print the labels acquired by a run as CSV: round, key, label; for pixels also y and x.

    If the run has audit labels, a column says which they are.

    Args:
        run: Run folder.
    """
    from ducats.data.domain import UNLABELLED, VOID
    from ducats.ledger import load_ledger
    from ducats.runfolder.run_folder import RunFolder

    run_folder = RunFolder(run)
    classes, ledger = run_folder.classes.resolved_names, load_ledger(run_folder)
    names = {VOID: "void", **dict(enumerate(classes))}
    # Streamed: there may be a hundred million pixels.
    per_pixel = ledger.sizes is not None
    if ledger.sizes is not None:
        audit = ledger.audit_pixels()
        keys = [ledger.keys[image] for image in audit.image.tolist()]
        audited = set(zip(keys, audit.position.tolist(), strict=True))
        widths = dict(zip(ledger.keys, ledger.sizes[:, 1].tolist(), strict=True))
    else:
        images = (ledger.audit_labels() != UNLABELLED).nonzero().squeeze(1).tolist()
        audited = {(ledger.keys[image], 0) for image in images}

    def rows() -> Iterator[tuple[object, ...]]:
        yield ("round", "key", *(("y", "x") if per_pixel else ()), "label", *(("audit",) if audited else ()))
        for entry in ledger.entries():
            place = divmod(entry.position, widths[entry.key]) if per_pixel else ()
            mark = ((entry.key, entry.position) in audited,) if audited else ()
            yield (entry.round, entry.key, *place, names[entry.label], *mark)

    print_csv(rows())
    return 0


@app.command
def picks(
    run: Path,
    *,
    out: Path | None = None,
    images: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    count: int = 4,
    trust_code: TrustCode = False,
) -> int:
    """Draw the pixels labelled by a segmentation run: one row per image, one column per round.

    Args:
        run: Run folder.
        out: Output PNG; default: picks.png in the run folder.
        images: Keys of the images to show; default: evenly spaced ones.
        count: Number of images if no keys are given.
    """
    from ducats.deploy import load_run_config
    from ducats.deploy.picks import select_image_keys, write_picks_figure
    from ducats.deploy.pool_images import load_images
    from ducats.ledger import load_ledger
    from ducats.runfolder.run_folder import RunFolder

    run_folder = RunFolder(run)
    config, ledger = load_run_config(run_folder, trust_code=trust_code), load_ledger(run_folder)
    classes = run_folder.classes.resolved_names
    image_keys = select_image_keys(ledger, images, count)  # first: reading the images may take long
    images_shown = load_images(config, image_keys)
    path = write_picks_figure(
        ledger, images_shown, out or run_folder.picks_path, classes=classes, image_keys=image_keys
    )
    print_line(f"figure in {path}")
    return 0
