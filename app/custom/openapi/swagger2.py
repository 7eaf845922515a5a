"""Swagger 2.0 documents converted to OpenAPI 3.0."""

from typing import Any

METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
STYLES = {"ssv": "spaceDelimited", "pipes": "pipeDelimited"}
PARAMETER_FIELDS = ("name", "in", "description", "required")


def upgrade(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its servers, bodies and schemas where OpenAPI 3.0 has them."""
    shared = {name: one for name, one in _dict(document.get("parameters")).items() if isinstance(one, dict)}
    components = {
        "schemas": _dict(document.get("definitions")),
        "parameters": {name: _parameter(one) for name, one in shared.items()},
        "securitySchemes": _dict(document.get("securityDefinitions")),
    }
    converted = {
        "openapi": "3.0.3",
        "info": document.get("info"),
        "servers": _servers(document),
        "components": components,
    }
    if "security" in document:
        converted["security"] = document["security"]
    paths = {path: _item(item, document, shared) for path, item in _dict(document.get("paths")).items()}
    result: dict[str, Any] = _move_references(converted | {"paths": paths})
    return result


def _servers(document: dict[str, Any]) -> list[dict[str, str]]:
    base = str(document.get("basePath") or "/")
    if not document.get("host"):
        return [{"url": base}]
    schemes = document.get("schemes") or ["https"]
    return [{"url": f"{'https' if 'https' in schemes else schemes[0]}://{document['host']}{base}"}]


def _item(item: Any, document: dict[str, Any], shared: dict[str, Any]) -> Any:
    if not isinstance(item, dict):
        return item
    common = [_dereference(one, shared) for one in item.get("parameters") or ()]
    operations: dict[str, Any] = {}
    for method, operation in item.items():
        if method in METHODS and isinstance(operation, dict):
            operations[method] = _operation(
                operation, common, operation.get("consumes") or document.get("consumes"), shared
            )
    return operations


def _operation(operation: dict[str, Any], common: list[Any], consumes: Any, shared: dict[str, Any]) -> dict[str, Any]:
    own = [_dereference(one, shared) for one in operation.get("parameters") or ()]
    merged = {(one.get("in"), one.get("name")): one for one in (*common, *own) if isinstance(one, dict)}
    converted = {name: value for name, value in operation.items() if name not in ("parameters", "consumes", "produces")}
    converted["parameters"] = [_parameter(one) for one in merged.values() if one.get("in") not in ("body", "formData")]
    if body := next((one for one in merged.values() if one.get("in") == "body"), None):
        types = consumes if isinstance(consumes, list) and consumes else ["application/json"]
        content = {type: {"schema": body.get("schema", {})} for type in types}
        converted["requestBody"] = {"required": body.get("required") is True, "content": content}
    elif fields := [one for one in merged.values() if one.get("in") == "formData"]:
        converted["requestBody"] = _form(fields, consumes)
    return converted


def _form(fields: list[dict[str, Any]], consumes: Any) -> dict[str, Any]:
    """A form with a file can only be sent as multipart."""
    is_multipart = any(one.get("type") == "file" for one in fields) or consumes == ["multipart/form-data"]
    required = [one["name"] for one in fields if one.get("required") is True]
    schema = {"type": "object", "properties": {one["name"]: _schema(one) for one in fields}, "required": required}
    media = "multipart/form-data" if is_multipart else "application/x-www-form-urlencoded"
    return {"required": bool(required), "content": {media: {"schema": schema}}}


def _dereference(one: Any, shared: dict[str, Any]) -> Any:
    """A parameter, or the shared one it refers to: body parameters must be known before they move."""
    reference = one.get("$ref") if isinstance(one, dict) else None
    if isinstance(reference, str) and reference.startswith("#/parameters/"):
        return shared.get(reference.removeprefix("#/parameters/"), one)
    return one


def _parameter(one: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in one:
        return one
    converted = {name: one[name] for name in PARAMETER_FIELDS if name in one} | {"schema": _schema(one)}
    if (
        one.get("type") == "array"
        and one.get("in") == "query"
        and (separator := one.get("collectionFormat")) != "multi"
    ):
        converted |= {"style": STYLES.get(str(separator), "form"), "explode": False}
    return converted


def _schema(one: dict[str, Any]) -> dict[str, Any]:
    if isinstance(one.get("schema"), dict):
        schema: dict[str, Any] = one["schema"]
        return schema
    return {name: value for name, value in one.items() if name not in ("name", "in", "required", "collectionFormat")}


def _move_references(value: Any) -> Any:
    """References to the new locations."""
    match value:
        case {"$ref": str(reference)}:
            moved = reference.replace("#/definitions/", "#/components/schemas/", 1)
            return value | {"$ref": moved.replace("#/parameters/", "#/components/parameters/", 1)}
        case dict():
            return {name: _move_references(inner) for name, inner in value.items()}
        case list():
            return [_move_references(inner) for inner in value]
        case _:
            return value


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
