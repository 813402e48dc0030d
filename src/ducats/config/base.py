"""What all settings have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Settings that refuse what they do not know and never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(Strict):
    """A part by name, with knobs that are checked against its signature."""

    name: str = Field(description="a name from the mapping of its kind, or `package.module:function`")
    knobs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of that part")
