"""JSON schemas of the project's files, for editors."""

from __future__ import annotations

from typing import Any, Final

from trucker.config.models import CONNECTIONS, ProjectFile, TruckFile
from trucker.config.rules import COMPARISONS, KINDS

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE: Final = {"type": "string", "pattern": "{{|{%", "description": "A template."}
_SCALAR: Final = ["string", "number", "boolean"]
_NOT_TEXT: Final = ("integer", "number", "boolean")
_LIMITS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

Json = dict[str, Any]


def project_schema() -> Json:
    """trucker.yml's schema."""
    schema = ProjectFile.model_json_schema(by_alias=True)
    for model in CONNECTIONS.values():
        _allow_paths(schema["$defs"][model.__name__])
    _allow_mode_alone(schema["$defs"]["PostgresConnection"])
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


def _allow_mode_alone(connection: Json) -> None:
    ssl = connection["properties"]["ssl"]
    reference = {"$ref": ssl.pop("$ref")}
    connection["properties"]["ssl"] = {"anyOf": [{"$ref": "#/$defs/Ssl/properties/mode"}, reference], **ssl}


def _one_of(section: Json, *keys: str) -> None:
    section["oneOf"] = [{"required": [key]} for key in keys]


def _allow_value_alone(constant: Json) -> None:
    held = next(form for form in constant["anyOf"] if "additionalProperties" in form)
    held["additionalProperties"] = {"anyOf": [{"type": _SCALAR}, held["additionalProperties"]]}


def _allow_templates(schema: Any) -> Any:
    """What is not just any text may be a template too. Limits get JSON schema's names."""
    if isinstance(schema, list):
        return [_allow_templates(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    # A filter has properties of these names, too.
    schema = {key if isinstance(value, dict) else _LIMITS.get(key, key): value for key, value in schema.items()}
    if schema.get("type") in _NOT_TEXT or (schema.get("type") == "string" and {"pattern", "enum"} & set(schema)):
        about = {key: schema[key] for key in ("description", "default", "title") if key in schema}
        rest = {key: value for key, value in schema.items() if key not in about}
        return {"anyOf": [rest, dict(_TEMPLATE)], **about}
    return {key: value if key == "default" else _allow_templates(value) for key, value in schema.items()}
