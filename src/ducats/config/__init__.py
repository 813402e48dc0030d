"""Run configuration: strict, frozen pydantic models, loaded from and written to YAML. Imports no torch.

Later files override earlier ones, and ``key=value`` settings override files. An unknown name is an error that
gives the file and the closest known name. Components never see a config: ``assemble`` reads it and passes
them flat arguments.
"""

from ducats.config.base import Part
from ducats.config.loading import explain, find, load, merge, shipped, to_yaml
from ducats.config.schema import Config, ask_epochs
from ducats.config.views import View

__all__ = ["Config", "Part", "View", "ask_epochs", "explain", "find", "load", "merge", "shipped", "to_yaml"]
