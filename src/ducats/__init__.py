"""Active domain adaptation with Dirichlet models.

Public names are imported on first use, so ``import ducats`` and ``ducats --help`` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ducats import config as _config
    from ducats.acquisition.budget import split_budget as split_budget
    from ducats.acquisition.queries import QUERIES as QUERIES
    from ducats.acquisition.queries import QuerySpec as QuerySpec
    from ducats.acquisition.samples import QueryContext as QueryContext
    from ducats.acquisition.samples import SampleTable as SampleTable
    from ducats.acquisition.samples import top_k as top_k
    from ducats.annotation.oracles import GroundTruthOracle as GroundTruthOracle
    from ducats.annotation.oracles import HumanOracle as HumanOracle
    from ducats.api import RunResults as RunResults
    from ducats.api import adapt as adapt
    from ducats.config import Config as Config
    from ducats.data.digits import digits as digits
    from ducats.data.domain import UNLABELLED as UNLABELLED
    from ducats.data.domain import VOID as VOID
    from ducats.data.domain import AdaptationData as AdaptationData
    from ducats.data.domain import Domain as Domain
    from ducats.data.domain import Images as Images
    from ducats.data.folders import folders as folders
    from ducats.data.manifest import manifest as manifest
    from ducats.data.segmentation.folders import segmentation_folders as segmentation_folders
    from ducats.data.streets import streets as streets
    from ducats.data.toy import toy as toy
    from ducats.ledger import Ledger as Ledger
    from ducats.ledger import Request as Request
    from ducats.ledger import TargetMaps as TargetMaps
    from ducats.ledger import load_ledger as load_ledger
    from ducats.models import EvidentialModel as EvidentialModel
    from ducats.models.output import Output as Output
    from ducats.objectives import OBJECTIVES as OBJECTIVES
    from ducats.run.adaptive_classifier import AdaptiveClassifier as AdaptiveClassifier
    from ducats.run.checkpoint import load_model as load_model
    from ducats.run.components import Components as Components
    from ducats.run.components import RunPlan as RunPlan
    from ducats.settings import EvaluationOptions as EvaluationOptions
    from ducats.settings import Optimisation as Optimisation
    from ducats.settings import StreamViews as StreamViews
    from ducats.settings import TaskOptions as TaskOptions
    from ducats.settings import Unit as Unit
    from ducats.settings import View as View
    from ducats.utils.errors import AwaitingLabels as AwaitingLabels
    from ducats.utils.errors import UserError as UserError

    load_config = _config.load_config

_LAZY_IMPORTS = {
    "split_budget": "acquisition.budget",
    "Config": "config",
    "digits": "data.digits",
    "folders": "data.folders",
    "manifest": "data.manifest",
    "segmentation_folders": "data.segmentation.folders",
    "streets": "data.streets",
    "toy": "data.toy",
    "View": "settings",
    "UNLABELLED": "data.domain",
    "VOID": "data.domain",
    "Domain": "data.domain",
    "Images": "data.domain",
    "AdaptationData": "data.domain",
    "EvaluationOptions": "settings",
    "Optimisation": "settings",
    "StreamViews": "settings",
    "TaskOptions": "settings",
    "AwaitingLabels": "utils.errors",
    "UserError": "utils.errors",
    "Ledger": "ledger",
    "Request": "ledger",
    "TargetMaps": "ledger",
    "load_ledger": "ledger",
    "EvidentialModel": "models",
    "OBJECTIVES": "objectives",
    "HumanOracle": "annotation.oracles",
    "GroundTruthOracle": "annotation.oracles",
    "AdaptiveClassifier": "run.adaptive_classifier",
    "load_model": "run.checkpoint",
    "Components": "run.components",
    "RunPlan": "run.components",
    "QUERIES": "acquisition.queries",
    "QuerySpec": "acquisition.queries",
    "Output": "models.output",
    "SampleTable": "acquisition.samples",
    "QueryContext": "acquisition.samples",
    "top_k": "acquisition.samples",
    "Unit": "settings",
    "RunResults": "api",
    "adapt": "api",
    "load_config": "config:load_config",
}

__all__ = list(_LAZY_IMPORTS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module 'ducats' has no attribute {name!r}")
    module, _, attribute = _LAZY_IMPORTS[name].partition(":")
    return getattr(import_module(f"ducats.{module}"), attribute or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_IMPORTS])
