r"""Compare the estimated time of runs with the time that they take, on a CPU.

    python benchmarks/estimate.py --source DIR --target DIR --settings \
        "model.params.backbone=tf_efficientnet_lite0" "-c cpu train.epochs=6"

Each entry of ``--settings`` is one run: configs (``-c NAME``) and settings. The cache of embeddings is empty.
"""

import argparse
import dataclasses
import itertools
import json
import shlex
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ducats.config import load_config
from ducats.models import EvidentialModel
from ducats.run import run
from ducats.run.context import embed_images
from ducats.run.estimate import estimate_components
from ducats.run.factory import build_run, resolve_for_machine
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric


def compare(data: Mapping[str, str], settings: str) -> dict[str, Any]:
    """Return estimated and real seconds of one run."""
    words = shlex.split(settings)
    files = [name for option, name in itertools.pairwise(words) if option == "-c"]
    own = [word for word in words if "=" in word]
    folders = [f"data.params.{name}={path}" for name, path in data.items()]
    with tempfile.TemporaryDirectory() as folder:
        common = [
            "data.params.ground_truth=true",
            "engine.device=cpu",
            f"engine.embedding_cache={folder}/cache",
        ]
        config = resolve_for_machine(load_config(files, [*folders, *common, *own]))
        components, plan = build_run(config, RunFolder(Path(folder) / "run"))
        started = time.perf_counter()
        estimates = estimate_components(components, plan, config.engine)
        assert estimates is not None
        estimate, finetuning = estimates
        estimating = time.perf_counter() - started
        fabric = make_fabric("cpu")
        started = time.perf_counter()
        assert isinstance(components.model, EvidentialModel)
        embed_images(components, components.model, fabric, config.engine, has_audit=bool(plan.audit))
        embedding = time.perf_counter() - started
        run_folder = run(components, plan, Path(folder) / "run", fabric=fabric, performance=config.engine)
        return {
            "settings": settings,
            "images": len(components.source) + len(components.pool),
            "estimate": dataclasses.asdict(estimate),
            "finetuning": None if finetuning is None else dataclasses.asdict(finetuning),
            "estimating_seconds": round(estimating, 1),
            "embedding_seconds": round(embedding, 1),
            "training_seconds": run_folder.stages()[-1]["seconds"],
            "accuracy": [round(100 * stage["accuracy"], 1) for stage in run_folder.stages()],
        }


def main() -> None:
    """Run all settings and print a line for each."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--settings", nargs="+", default=[""])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for settings in options.settings:
        results.append(compare({"source": options.source, "target": options.target}, settings))
        print(json.dumps(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
