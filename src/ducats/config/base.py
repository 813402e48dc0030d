"""Base classes of all settings."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class StrictModel(BaseModel):
    """Frozen settings that reject unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ComponentConfig(StrictModel):
    """A component by name, with keyword arguments that are checked against its signature."""

    name: str = Field(description="a registered name, or `package.module:function`")
    params: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the component")
