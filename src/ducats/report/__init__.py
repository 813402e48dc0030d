"""Reports over finished and unfinished runs: an HTML page, tables and a JSON summary. Does not need torch.

Public names are imported on first use, so ``ducats --help`` imports no plotting code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ducats.report.run_reader import find_runs as find_runs
    from ducats.report.run_reader import read_run as read_run
    from ducats.report.write import report as report
    from ducats.report.write import report_page as report_page

_LAZY_IMPORTS = {
    "find_runs": "run_reader",
    "read_run": "run_reader",
    "report": "write",
    "report_page": "write",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY_IMPORTS[name]}"), name)
