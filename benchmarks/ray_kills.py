"""Kill workers and nodes of a Ray cluster during scoring; check that the picks do not change.

    python benchmarks/ray_kills.py [--times 5] [--images 384] [--json FILE]

Starts a real cluster of two nodes on this machine, with 2 CPUs each. In each trial, at a random time after
the first chunk is done, either one worker receives SIGKILL or all processes of the non-head node are killed;
that node is then replaced by a new one. The picks must equal those of an undisturbed single process. Needs
Linux and ducats[ray].
"""

import argparse
import json
import os
import platform
import random
import signal
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scoring import make_run, write_images

from ducats.deploy import TrainedModel, load_trained_model
from ducats.deploy.scoring import score_pool

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
NODE_RESOURCES = {"num_cpus": 2, "object_store_memory": 200_000_000}
N_CHUNKS = 16


@dataclass
class Trial:
    """Outcome of one scoring."""

    killed: str  # "worker", "node" or "nothing"
    parts_done: int  # at the time of the kill
    seconds: float  # after the kill, or in total if nothing was killed
    alike: bool
    error: str


def main() -> None:
    """Run the trials, print them, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="trials of each kind")
    parser.add_argument("--images", type=int, default=384)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE_RESOURCES, "include_dashboard": False})
    trials = list[Trial]()
    try:
        cluster.add_node(**NODE_RESOURCES)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            pool = write_images(base, options.images, shards=False)
            trained = load_trained_model(make_run(base / "run", "resnet18", batch=8))
            score_pool(trained, str(pool), out=base / "one", budget=20, device="cpu")
            for number, kind in enumerate(["nothing"] + ["worker", "node"] * options.times):
                trials.append(run_trial(trained, pool, base, f"{number}", kind, cluster))
                print(json.dumps(asdict(trials[-1])), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    for kind in ("worker", "node"):
        of = [each for each in trials if each.killed == kind]
        print(
            f"{sum(each.alike for each in of)} of {len(of)} trials with a killed {kind} have the same picks"
        )
    if options.json:
        about = {"cores": os.cpu_count(), "machine": platform.machine(), "ray": ray.__version__}
        about |= {"images": options.images, "parts": N_CHUNKS}
        found = {"about": about, "trials": [asdict(each) for each in trials]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def run_trial(trained: TrainedModel, pool: Path, base: Path, name: str, kind: str, cluster: Any) -> Trial:
    """Score once and kill a worker, a node or nothing."""
    out, error = base / name, list[str]()

    def work() -> None:
        try:
            score_pool(trained, str(pool), out=out, budget=20, device="cpu", backend="ray", chunks=N_CHUNKS)
        except Exception as failure:
            error.append(f"{type(failure).__name__}: {failure}")

    began, thread = time.perf_counter(), threading.Thread(target=work)
    thread.start()
    while not n_finished_chunks(out) and thread.is_alive():
        time.sleep(0.02)
    if kind != "nothing":
        time.sleep(random.uniform(0, 4))
        began = time.perf_counter()
    count = n_finished_chunks(out)
    if kind == "worker":
        victims = scoring_pids(cluster)
        os.kill(random.choice(victims), signal.SIGKILL)
    elif kind == "node":
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
    thread.join()
    seconds = time.perf_counter() - began
    if kind == "node":
        cluster.add_node(**NODE_RESOURCES)
        cluster.wait_for_nodes()
    files = [folder / "picks.csv" for folder in (base / "one", out)]
    is_identical = not error and files[0].read_bytes() == files[1].read_bytes()
    return Trial(kind, count, round(seconds, 1), is_identical, "".join(error))


def n_finished_chunks(out: Path) -> int:
    """Return the number of finished chunks."""
    return len(list((out / "chunks").glob("chunk-*")))


def scoring_pids(cluster: Any) -> list[int]:
    """Return the ids of the processes that are scoring."""
    raylets = {
        process.process.pid for node in cluster.list_all_nodes() for process in node.all_processes["raylet"]
    }
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue
        if (
            command.startswith(b"ray::score_chunk_on_node")
            and int(status.rpartition(")")[2].split()[1]) in raylets
        ):
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
