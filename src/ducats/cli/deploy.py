"""Commands that prepare a trained model for use."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import Strict, TrustCode, app, print_line, print_warning, progress_bars
from ducats.utils.progress import activity


@app.command
def export(
    run: Path,
    *,
    onnx: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
    opset: int = 18,
    batch_size: int | None = None,
    trust_code: TrustCode = False,
) -> int:
    """Export the model of a finished run: weights, classes, preprocessing and a model card.

    Args:
        run: Run folder.
        onnx: Also write model.onnx, from uint8 images of any size to probability, u_dis, u_data and label,
            checked against PyTorch with ONNX Runtime. Needs ducats[export].
        out: Output folder; default: export in the run folder.
        opset: ONNX opset version, at least 18.
        batch_size: Fixed batch size of the ONNX graph; default: dynamic.
    """
    with progress_bars(), activity("loading libraries"):
        from ducats.deploy import export as export_model
        from ducats.deploy import load_trained_model
        from ducats.runfolder.run_folder import RunFolder

    with progress_bars(), activity(f"exporting the model{' as an ONNX graph' if onnx else ''}"):
        done = export_model(
            load_trained_model(run, trust_code=trust_code),
            out or RunFolder(run).export_path,
            onnx=onnx,
            opset=opset,
            batch_size=batch_size,
        )
    if done.difference is not None:
        print_line(f"{done.difference.describe()}, on {done.checked_on}")
    print_line(f"model in {done.folder}; usage in MODEL_CARD.md")
    return 0


@app.command
def triage(
    run: Path,
    *,
    risk: float = 0.05,
    criterion: Literal["u_dis", "entropy", "probability"] = "u_dis",
    confidence: float = 0.9,
    data: Path | None = None,
    acquired_labels: Annotated[bool, Parameter(negative=())] = False,
    strict: Strict = False,
    device: str = "auto",
    trust_code: TrustCode = False,
) -> int:
    """Find the uncertainty threshold for accepting predictions without review at a given error rate.

    The threshold is computed on labels that were not used for training and written to triage.json in the run
    folder. `ducats predict` then marks each prediction as accept or review.

    Args:
        run: Run folder.
        risk: Maximum fraction of wrong predictions among the accepted ones.
        criterion: Quantity that is compared with the threshold.
        confidence: Confidence with which the risk is not exceeded.
        data: Folder of labelled images, one subfolder per class; default: the test images of the run.
        acquired_labels: Use the labels acquired by the run, with the predictions made before training on
            them.
        device: auto, cpu, cuda or mps.
    """
    with progress_bars(), activity("loading libraries"):
        from ducats.deploy import load_trained_model, supported_precision
        from ducats.deploy import triage as find_rule
        from ducats.training.distributed import make_fabric

    trained = load_trained_model(run, trust_code=trust_code)
    fabric = make_fabric(device, precision=supported_precision(trained, device))
    with progress_bars():
        rule = find_rule(
            trained,
            fabric,
            risk=risk,
            criterion=criterion,
            confidence=confidence,
            folder=data,
            acquired_labels=acquired_labels,
            strict=strict,
        )
    path = rule.save(run)
    print_line(rule.describe())
    print_line(
        f"computed on {rule.calibrated_on}: {rule.accepted} of {rule.images} accepted, {rule.wrong} of them "
        f"wrong; rule in {path}"
    )
    for warning in rule.warnings:
        print_warning(warning)
    return 0
