"""Run configuration, loaded from and written to YAML. Imports no torch.

Later files override earlier ones, and ``key=value`` settings override files. An unknown name is an error that
gives the file and the closest known name. Components never see a config: ``ducats.run.factory`` reads it and
passes them its sections, typed as ``ducats.settings``.

Public names are imported on first use, so ``ducats --help`` imports neither pydantic nor yaml.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ducats.config.layers import configs_folder as configs_folder
    from ducats.config.loader import describe_settings as describe_settings
    from ducats.config.loader import find_config as find_config
    from ducats.config.loader import find_recipe as find_recipe
    from ducats.config.loader import load_config as load_config
    from ducats.config.loader import to_yaml as to_yaml
    from ducats.config.schema import AcquisitionConfig as AcquisitionConfig
    from ducats.config.schema import ComponentConfig as ComponentConfig
    from ducats.config.schema import Config as Config
    from ducats.config.schema import has_source as has_source
    from ducats.config.schema import query_epochs as query_epochs

_LAZY_IMPORTS = {
    "configs_folder": "layers",
    **dict.fromkeys(("describe_settings", "find_config", "find_recipe", "load_config", "to_yaml"), "loader"),
    **dict.fromkeys(
        ("AcquisitionConfig", "ComponentConfig", "Config", "has_source", "query_epochs"), "schema"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY_IMPORTS[name]}"), name)
