"""Run configuration, loaded from and written to YAML. Imports no torch.

Later files override earlier ones, and ``key=value`` settings override files. An unknown name is an error that
gives the file and the closest known name. Components never see a config: ``ducats.run.factory`` reads it and
passes them its sections, typed as ``ducats.settings``.
"""

from ducats.config.loader import (
    configs_folder,
    describe_settings,
    find_config,
    load_config,
    merge_layers,
    to_yaml,
)
from ducats.config.schema import ComponentConfig, Config, query_epochs

__all__ = [
    "ComponentConfig",
    "Config",
    "configs_folder",
    "describe_settings",
    "find_config",
    "load_config",
    "merge_layers",
    "query_epochs",
    "to_yaml",
]
