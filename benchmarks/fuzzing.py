"""Feed damaged files and settings to the readers: no traceback, no hang, no memory above 2 GB.

    python benchmarks/fuzzing.py --cases 100000

Cases are numbered per reader: `--reader weights --first 123 --cases 1` repeats one.
"""

import argparse
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import fuzz_cases

SECONDS_PER_CASE, MAX_MEMORY_GB, CHUNK = 20, 2.0, 500


def run_chunk(reader: str, first: int, cases: int) -> tuple[list[str], float]:
    """Run some cases; return the failures, and the peak memory of this process in GB."""
    warnings.simplefilter("ignore")
    failures = []
    signal.signal(signal.SIGALRM, _time_out)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + cases):
            signal.alarm(SECONDS_PER_CASE)
            failure = fuzz_cases.failure_of(reader, seed, Path(folder))
            signal.alarm(0)
            if failure:
                failures.append(failure)
    return failures, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _time_out(*_: object) -> None:
    raise RuntimeError(f"no result after {SECONDS_PER_CASE} s")


def main() -> int:
    """Run all cases in child processes; print failures and one line per reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases, of all readers together")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--reader", choices=list(fuzz_cases.CASES), help="only this one")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    readers = [options.reader] if options.reader else list(fuzz_cases.CASES)
    cases = -(-options.cases // len(readers))
    failed = False
    for reader in readers:
        start = time.perf_counter()
        chunks = [
            (reader, first, min(CHUNK, options.first + cases - first))
            for first in range(options.first, options.first + cases, CHUNK)
        ]
        with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=4) as pool:
            results = pool.starmap(run_chunk, chunks, chunksize=1)
        failures = [failure for found, _ in results for failure in found]
        memory = max(peak for _, peak in results)
        seconds = time.perf_counter() - start
        print(
            f"{reader}: {cases} cases, {len(failures)} failures, {memory:.2f} GB, {seconds:.0f} s", flush=True
        )
        print("\n".join(failures[:20]))
        failed |= bool(failures) or memory > MAX_MEMORY_GB
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
