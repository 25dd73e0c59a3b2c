"""JSON schemas of the project's files, for editors."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field, create_model

from trucker.config.adapter import Adapter, Connection
from trucker.config.model import Model
from trucker.config.models import ProjectFile, TruckFile
from trucker.config.problems import key_of
from trucker.config.rules import COMPARISONS, KINDS

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE: Final = {"type": "string", "pattern": "{{|{%", "description": "A template."}
_SCALAR: Final = ["string", "number", "boolean"]
_NOT_TEXT: Final = ("integer", "number", "boolean")
_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

Json = dict[str, Any]


def project_schema(adapters: Sequence[Adapter]) -> Json:
    """trucker.yml's schema, where connections may have these adapters."""
    models = [adapter.connection for adapter in adapters]
    connection: Any = Annotated[typing.Union[tuple(models)], Field(discriminator="adapter")]  # noqa: UP007
    fields: dict[str, Any] = {"connections": (tuple[connection, ...], ProjectFile.model_fields["connections"])}
    project = create_model(ProjectFile.__name__, __base__=ProjectFile, __doc__=ProjectFile.__doc__, **fields)
    schema = project.model_json_schema(by_alias=True)
    references = schema["properties"]["connections"]["items"]["discriminator"]["mapping"]
    for adapter in adapters:
        definition = schema["$defs"][references[adapter.name].rpartition("/")[2]]
        _allow_shorthands(definition, adapter.connection)
        _allow_paths(definition)
    return {"$schema": _DIALECT, **_allow_templates(schema), "title": "trucker.yml"}


def truck_schema() -> Json:
    """truck.yml's schema."""
    schema = TruckFile.model_json_schema(by_alias=True)
    _one_of(schema["$defs"]["InputConfig"], "table", "tables")
    for rule in ("MaskRule", "HashRule", "RegexRule"):
        _one_of(schema["$defs"][rule], "column", "columns")
    _allow_paths(schema["$defs"]["HashRule"], "key")
    _one_of(schema["$defs"]["FilterRule"], *COMPARISONS)
    _one_of(schema["$defs"]["RuleConfig"], *KINDS)
    _allow_value_alone(schema["$defs"]["RuleConfig"]["properties"]["constant"])
    return {"$schema": _DIALECT, **_allow_templates(schema), "title": "truck.yml"}


def _allow_paths(connection: Json, *some: str) -> None:
    """Every key of a connection (some of them) may instead be `<key>_path`, the path of a file that holds the value."""
    for key in some or list(connection["properties"]):
        connection["properties"][f"{key}_path"] = {
            "type": "string",
            "description": f"The path of a file that holds {key}, relative to the project's folder.",
        }
    required = connection.pop("required", [])
    connection["allOf"] = [{"anyOf": [{"required": [key]}, {"required": [f"{key}_path"]}]} for key in required]


def _allow_shorthands(definition: Json, model: type[Connection]) -> None:
    """Where a section has a key that a text alone stands for, the text may be written in its place."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Model) and kind.shorthand is not None:
            section = definition["properties"][key_of(name, field)]
            reference = section.pop("$ref")
            short = {"$ref": f"{reference}/properties/{kind.shorthand}"}
            definition["properties"][key_of(name, field)] = {"anyOf": [short, {"$ref": reference}], **section}


def _one_of(section: Json, *keys: str) -> None:
    section["oneOf"] = [{"required": [key]} for key in keys]


def _allow_value_alone(constant: Json) -> None:
    mapping = next(form for form in constant["anyOf"] if "additionalProperties" in form)
    mapping["additionalProperties"] = {"anyOf": [{"type": _SCALAR}, mapping["additionalProperties"]]}


def _allow_templates(schema: Any) -> Any:
    """Values other than free text may be a template, too. Limits get JSON schema's names."""
    if isinstance(schema, list):
        return [_allow_templates(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    # Only limits are renamed, whose values are numbers: a filter has properties called `gt` and `lt`, too.
    schema = {key if isinstance(value, dict) else _LIMITS.get(key, key): value for key, value in schema.items()}
    if schema.get("type") in _NOT_TEXT or (schema.get("type") == "string" and {"pattern", "enum"} & set(schema)):
        about = {key: schema[key] for key in ("description", "default", "title") if key in schema}
        rest = {key: value for key, value in schema.items() if key not in about}
        return {"anyOf": [rest, dict(_TEMPLATE)], **about}
    return {key: value if key == "default" else _allow_templates(value) for key, value in schema.items()}
