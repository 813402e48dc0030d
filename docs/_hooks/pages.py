"""Hooks of the site: pages generated from the code, and links to files outside of the docs."""

import json
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ducats.cli import app
from ducats.config import Config

_LINK_UPWARDS = re.compile(r"\]\((?:\.\./)+([\w./-]+)((?:#[\w-]+)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference of commands and settings."""
    for name, content in (("commands", commands()), ("settings", settings())):
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Files) -> str:
    """Let links to files that are not pages, such as CONTRIBUTING.md, lead to the repository."""
    depth = page.file.src_uri.count("/")

    def resolve(match: re.Match[str]) -> str:
        if match.group(0).count("../") <= depth:
            return match.group(0)
        return f"]({config.repo_url}/blob/main/{match.group(1)}{match.group(2)})"

    return _LINK_UPWARDS.sub(resolve, markdown)


def commands() -> str:
    """Return the help of every command as Markdown."""
    text = app.generate_docs(output_format="markdown", recursive=True)
    introduction, _, sections = text.partition("## Table of Contents")
    sections = sections.partition("\n## ")[2]
    heading = introduction.replace("# ducats\n", "# Commands\n", 1)
    return f"{heading.strip()}\n\n## {sections}"


def settings() -> str:
    """Return all settings, with type, default and description."""
    schema, defaults = Config.model_json_schema(), Config().model_dump(mode="json")
    sections = {name: _section(prop, schema) for name, prop in schema["properties"].items()}
    general = {name: prop for name, prop in schema["properties"].items() if sections[name] is None}
    lines = [_SETTINGS_INTRODUCTION, "## General\n", *_table(general, "", defaults, schema)]
    for name, section in sections.items():
        if section is not None:
            lines += [f"\n## {name}\n", section["description"].partition("\n")[0], ""]
            lines += _table(section["properties"], f"{name}.", defaults[name], schema)
    return "\n".join(lines)


_SETTINGS_INTRODUCTION = """# Settings

Each setting can be given in a config file and as `--set NAME=VALUE`. `ducats config` prints the values of a
run, `ducats config --explain` also the parameters of data sets, models, objectives and queries (`data.params`
and so on), which are described on the pages of [own data](../own-data.md), [backbones](../backbones.md) and
[methods](../methods/README.md). The defaults are those of the default method, `ducats`, for images.
"""


def _section(prop: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
    found = _resolve(prop, schema)
    return found if "properties" in found else None


def _resolve(prop: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in prop:
        return prop
    found: dict[str, Any] = schema["$defs"][prop["$ref"].rpartition("/")[2]]
    return found


def _table(
    properties: dict[str, Any], prefix: str, defaults: dict[str, Any], schema: dict[str, Any]
) -> Iterator[str]:
    yield "| setting | values | default | |\n| --- | --- | --- | --- |"
    for name, prop in properties.items():
        nested = _section(prop, schema)
        shown = "" if nested else f"`{json.dumps(defaults[name])}`"
        description = prop.get("description") or (nested or {}).get("description", "")
        cells = (f"`{prefix}{name}`", _values(prop, schema), shown, description)
        yield "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |"


def _values(prop: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the values that a setting can have, in words."""
    if "enum" in prop:
        return ", ".join(f"`{value}`" for value in prop["enum"])
    if "const" in prop:
        return f"`{prop['const']}`"
    if "anyOf" in prop:
        return ", ".join(dict.fromkeys(_values(choice, schema) for choice in prop["anyOf"]))
    if nested := _section(prop, schema):
        return f"{nested['title']}: " + ", ".join(f"`{name}`" for name in nested["properties"])
    kind = prop.get("type", "any")
    if kind == "array" and isinstance(items := prop.get("items"), dict):
        return f"list of {_values(items, schema)}"
    return _KINDS.get(kind, kind)


_KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "object": "mapping",
    "array": "list",
    "null": "`null`",
}
