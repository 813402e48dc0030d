"""One run, completely described: frozen models, YAML in, strict, resolved YAML out. Needs no torch.

Later files override earlier ones, and ``key=value`` settings override files. Unknown names are errors that
name the file and the nearest known name. Parts never see any of this: ``assemble`` reads it and hands them
flat arguments.
"""

from ducats.config.base import Part
from ducats.config.loading import explain, find, load, merge, shipped, to_yaml
from ducats.config.schema import Config, ask_epochs
from ducats.config.views import View

__all__ = ["Config", "Part", "View", "ask_epochs", "explain", "find", "load", "merge", "shipped", "to_yaml"]
