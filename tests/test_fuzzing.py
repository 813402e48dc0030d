"""Damaged input never ends in a traceback; `benchmarks/fuzzing.py` tries many more cases."""

from pathlib import Path

import pytest

from fuzz_cases import CASES, failure_of


@pytest.mark.parametrize("reader", CASES)
@pytest.mark.filterwarnings("ignore")  # of libraries, about damaged files
def test_damaged_input_is_read_or_refused_in_one_sentence(reader: str, tmp_path: Path) -> None:
    failures = [failure_of(reader, seed, tmp_path / "case") for seed in range(60)]
    assert [failure for failure in failures if failure] == []
