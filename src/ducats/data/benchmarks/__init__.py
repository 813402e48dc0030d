"""Published domain-adaptation benchmarks, read in their original layout; nothing is downloaded.

Each benchmark has a description (``Benchmark``) and a function that reads one of its tasks. Files are listed
before any is decoded, which lets `ducats doctor` check them without decoding.
"""

from collections.abc import Mapping

from ducats.data.benchmarks.benchmark import Benchmark, ImageCount
from ducats.data.benchmarks.digit_sets import DIGIT_SETS, digit_sets
from ducats.data.benchmarks.domainnet import DOMAINNET, domainnet
from ducats.data.benchmarks.mini_domainnet import MINI_DOMAINNET, mini_domainnet
from ducats.data.benchmarks.office31 import OFFICE31, office31
from ducats.data.benchmarks.office_home import OFFICE_HOME, office_home
from ducats.data.benchmarks.pacs import PACS, pacs
from ducats.data.benchmarks.tasks import class_order, list_task
from ducats.data.benchmarks.visda2017 import VISDA2017, visda2017

BENCHMARKS: Mapping[str, Benchmark] = {  # by the name of the reading function
    "digit_sets": DIGIT_SETS,
    "domainnet": DOMAINNET,
    "mini_domainnet": MINI_DOMAINNET,
    "office31": OFFICE31,
    "office_home": OFFICE_HOME,
    "pacs": PACS,
    "visda2017": VISDA2017,
}

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "ImageCount",
    "class_order",
    "digit_sets",
    "domainnet",
    "list_task",
    "mini_domainnet",
    "office31",
    "office_home",
    "pacs",
    "visda2017",
]
