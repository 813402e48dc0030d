r"""Time how long a run with a frozen backbone takes to start if all images are embedded, on a CPU.

    python benchmarks/frozen_start.py --source DIR --target DIR -c backbones/offline

The first start embeds the images; the cache of embeddings is in a temporary folder.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from ducats.config import load_config
from ducats.models import EvidentialModel
from ducats.run.context import embed_images
from ducats.run.factory import build_run, resolve_for_machine
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric


def main() -> None:
    """Start several times; print a line for each."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("-c", "--config", action="append", default=[])
    parser.add_argument("--starts", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            f"data.params.source={options.source}",
            f"data.params.target={options.target}",
            "model.freeze=backbone",
            "acquisition.budget=10",
            "engine.device=cpu",
            f"engine.embedding_cache={folder}/cache",
        ]
        config = resolve_for_machine(load_config(options.config, settings))
        for start in range(options.starts):
            started = time.perf_counter()
            components, _ = build_run(config, RunFolder(Path(folder) / "run"))
            built = time.perf_counter()
            assert isinstance(components.model, EvidentialModel)
            embed_images(components, components.model, make_fabric("cpu"), config.engine)
            embedded = time.perf_counter()
            seconds = {"building": round(built - started, 2), "embedding": round(embedded - built, 2)}
            images = len(components.source) + len(components.pool)
            print(json.dumps({"start": start, "images": images, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
