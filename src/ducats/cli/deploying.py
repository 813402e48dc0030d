"""Commands that take a finished model to where it is used."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import app, console


@app.command
def export(
    run: Path,
    *,
    onnx: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
    opset: int = 18,
    batch: int | None = None,
) -> int:
    """Write a finished run's model for use elsewhere: weights, classes, preprocessing and a model card.

    Args:
        run: The run's folder.
        onnx: Also write model.onnx: images in [0, 1] to probability, u_dis, u_data and label, checked with
            ONNX Runtime against PyTorch. Needs ducats[export].
        out: The folder to write to; by default export in the run's folder.
        opset: Of ONNX's operators, 18 or more.
        batch: How many images the graph takes at a time; any number by default.
    """
    from ducats.inference import export as export_model
    from ducats.inference import load_trained

    done = export_model(load_trained(run), out or run / "export", onnx=onnx, opset=opset, batch=batch)
    if done.difference is not None:
        _say(f"{done.difference.in_words()}, on {done.checked_on}")
    _say(f"model in {done.folder}; MODEL_CARD.md says how to use it")
    return 0


@app.command
def triage(
    run: Path,
    *,
    risk: float = 0.05,
    by: Literal["u_dis", "entropy", "probability"] = "u_dis",
    confidence: float = 0.9,
    data: Path | None = None,
    bought: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
) -> int:
    """Find the threshold below which predictions may go unseen, for a chosen share of wrong ones.

    It is found on labels that the model was not trained on, and written to triage.json in the run's folder:
    `ducats predict` then says of each image whether to accept its label or to review it.

    Args:
        run: The run's folder.
        risk: Share of the accepted predictions that may be wrong.
        by: What is held against the threshold.
        confidence: With which the risk is not exceeded.
        data: A folder of labelled images, class/...; by default the run's own test images.
        bought: Use the labels that the run bought, with what the model said before it learnt them.
        device: auto, cpu, cuda or mps.
    """
    from ducats.engine.processes import make_fabric
    from ducats.inference import load_trained, usable_precision
    from ducats.inference import triage as find_rule

    trained = load_trained(run)
    fabric = make_fabric(device, precision=usable_precision(trained, device))
    rule = find_rule(trained, fabric, risk=risk, by=by, confidence=confidence, folder=data, bought=bought)
    path = rule.save(run)
    _say(rule.in_words())
    _say(
        f"found on {rule.on}: {rule.accepted} of {rule.images} accepted, {rule.wrong} of these wrong; "
        f"rule in {path}"
    )
    for caution in rule.cautions:
        _say(f"beware: {caution}", "yellow")
    return 0


def _say(words: str, style: str | None = None) -> None:
    console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)
