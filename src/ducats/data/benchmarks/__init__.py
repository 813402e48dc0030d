"""Published domain-adaptation benchmarks, read in their original layout; nothing is downloaded.

Each benchmark has a description (``Benchmark``) and a function that reads one of its tasks. Files are listed
before any is decoded, which lets `ducats doctor` check them without decoding.
"""

from ducats.data.benchmarks.benchmark import Benchmark, ImageCount
from ducats.data.benchmarks.digit_sets import DIGIT_SETS_SPEC, digit_sets
from ducats.data.benchmarks.domainnet import DOMAINNET_SPEC, domainnet
from ducats.data.benchmarks.mini_domainnet import MINI_DOMAINNET_SPEC, mini_domainnet
from ducats.data.benchmarks.office31 import OFFICE31_SPEC, office31
from ducats.data.benchmarks.office_home import OFFICE_HOME_SPEC, office_home
from ducats.data.benchmarks.pacs import PACS_SPEC, pacs
from ducats.data.benchmarks.tasks import class_order, list_task
from ducats.data.benchmarks.visda2017 import VISDA2017_SPEC, visda2017

__all__ = [
    "DIGIT_SETS_SPEC",
    "DOMAINNET_SPEC",
    "MINI_DOMAINNET_SPEC",
    "OFFICE31_SPEC",
    "OFFICE_HOME_SPEC",
    "PACS_SPEC",
    "VISDA2017_SPEC",
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
