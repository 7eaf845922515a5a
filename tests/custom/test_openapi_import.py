"""Operations of an API description become http tools, or are skipped with a reason."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.custom_tools import NAME, HttpDefinition, Placement, SecretHeader, Skipped
from app.custom.openapi.importer import read

Json = dict[str, Any]
SERVER = "https://api.example/v1"
TEXT = {"type": "string"}


def described(paths: Json, **more: Any) -> Json:
    return {"openapi": "3.0.3", "info": {}, "servers": [{"url": SERVER}], "paths": paths} | more


def one(operation: Json, path: str = "/things", method: str = "get", **more: Any) -> HttpDefinition:
    [made], skipped = read(described({path: {method: operation}}, **more))
    assert skipped == []
    return made


def why(operation: Json, path: str = "/things", method: str = "get", **more: Any) -> str:
    """The reason why it became no tool."""
    made, [skipped] = read(described({path: {method: operation}}, **more))
    assert made == []
    assert skipped.operation == f"{method.upper()} {path}"
    return skipped.reason


def param(name: str, place: str = "query", **more: Any) -> Json:
    return {"name": name, "in": place, "schema": {"type": "string"}} | more


def body(schema: Json, media: str = "application/json", **more: Any) -> Json:
    return {"requestBody": {"content": {media: {"schema": schema}}, "required": True} | more}


def test_an_operation_becomes_a_definition() -> None:
    operation = {
        "operationId": "listThings",
        "summary": "List things",
        "description": "All of them.",
        "parameters": [
            param("kind", "path", description="Which."),
            param("limit", schema={"type": "integer", "minimum": 1, "exclusiveMinimum": True}, required=True),
            param("X-Request-Id", "header"),
            param("Accept", "header"),
            param("Authorization", "header"),
        ],
    }

    assert one(operation, "/{kind}/things") == HttpDefinition(
        kind="http",
        name="listThings",
        title="List things",
        description="List things\n\nAll of them.",
        method="GET",
        url="https://api.example/v1/{kind}/things",
        parameters={
            "type": "object",
            "properties": {
                "kind": {"type": "string", "description": "Which."},
                "limit": {"type": "integer", "exclusiveMinimum": 1},
                "X-Request-Id": {"type": "string"},
            },
            "required": ["kind", "limit"],
            "additionalProperties": False,
        },
        places={"kind": "path", "limit": "query", "X-Request-Id": "header"},
    )


@pytest.mark.parametrize(
    ("operation", "path", "prefix", "name"),
    [
        ({"operationId": "get_it"}, "/x", "", "get_it"),
        ({"operationId": "get it / now!"}, "/x", "", "get_it_now"),
        ({"operationId": "repos/list-all"}, "/x", "gh", "gh_repos_list-all"),
        ({"operationId": "list"}, "/x", "gh-", "gh-list"),
        ({"operationId": "2nd"}, "/x", "", "op_2nd"),
        ({"operationId": "über"}, "/x", "", "ber"),
        ({}, "/users/{id}/items", "", "get_users_id_items"),
        ({"operationId": " "}, "/", "", "get"),
    ],
)
def test_names_are_legal_for_every_provider(operation: Json, path: str, prefix: str, name: str) -> None:
    operation = operation | {"parameters": [param("id", "path")]} if "{id}" in path else operation

    [made], _ = read(described({path: {"get": operation}}), prefix=prefix)

    assert made.name == name
    assert re.match(NAME, made.name)


def test_names_that_are_the_same_or_too_long_are_told_apart_for_good() -> None:
    paths = {f"/{letter}": {"get": {"operationId": "same"}} for letter in "ab"}
    paths["/long"] = {
        "get": {"operationId": "x" * 100},
        "put": {"operationId": "x" * 101},
        "post": {"operationId": "é"},
    }

    made, _ = read(described(paths))
    again, _ = read(described(dict(reversed(paths.items()))), exclude=["GET /a"])

    names = {definition.url + definition.method: definition.name for definition in made}
    assert len(set(names.values())) == 5
    assert all(re.match(NAME, name) for name in names.values())
    assert {one.url + one.method: one.name for one in again}.items() <= names.items()


def test_parameters_of_the_path_are_inherited_and_overridden() -> None:
    item = {
        "parameters": [param("a"), param("b"), {"$ref": "#/components/parameters/C"}],
        "get": {"parameters": [param("b", schema={"type": "integer"})]},
    }
    components = {"parameters": {"C": param("c")}}

    [made], _ = read(described({"/x": item}, components=components))

    types = {name: schema["type"] for name, schema in made.parameters["properties"].items()}
    assert types == {"a": "string", "b": "integer", "c": "string"}


def test_what_has_the_same_name_in_several_places_keeps_its_name_on_the_wire() -> None:
    operation = {"parameters": [param("id", "path"), param("id"), param("filter[name]")]}
    operation |= body({"type": "object", "properties": {"id": {}, "x": {}}, "required": ["x"]})

    made = one(operation, "/{id}", "post")

    assert made.places == {
        "id": "path",
        "id_query": Placement(place="query", name="id"),
        "filter_name": Placement(place="query", name="filter[name]"),
        "id_body": Placement(place="body", name="id"),
        "x": "body",
    }
    assert made.parameters["required"] == ["id", "x"]


@pytest.mark.parametrize(
    ("more", "style"),
    [
        ({"schema": {"type": "array"}}, "repeat"),
        ({"schema": {"type": "array"}, "explode": False}, "comma"),
        ({"schema": {"type": "array"}, "style": "spaceDelimited", "explode": False}, "space"),
        ({"schema": {"type": "array"}, "style": "pipeDelimited"}, "pipe"),
        ({"schema": {"type": "object"}, "style": "deepObject"}, "deep"),
        ({"schema": {"type": "object"}}, "members"),
        ({"schema": None, "content": {"application/json": {"schema": {"type": "object"}}}}, "json"),
    ],
)
def test_the_style_of_a_parameter_is_kept(more: Json, style: str) -> None:
    place = one({"parameters": [param("f", **more)]}).places["f"]

    assert place == ("query" if style == "repeat" else Placement(place="query", name="f", style=style))


def test_a_body_that_is_an_object_becomes_arguments() -> None:
    schema = {
        "allOf": [
            {"$ref": "#/components/schemas/Base"},
            {"type": "object", "properties": {"own": {"type": "integer", "nullable": True}}, "required": ["own"]},
        ]
    }
    base = {"properties": {"id": {"readOnly": True}, "name": {"type": "string"}}, "required": ["id", "name"]}

    made = one(body(schema), method="post", components={"schemas": {"Base": base}})

    assert made.parameters == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "own": {"type": ["integer", "null"]}},
        "required": ["name", "own"],
        "additionalProperties": False,
    }
    assert (made.encoding, made.places) == ("json", {"name": "body", "own": "body"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object"},
        {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]},
        {"type": "string"},
    ],
)
def test_any_other_body_is_one_argument(schema: Json) -> None:
    made = one(body(schema), method="put")

    assert made.places == {"body": "whole_body"}
    assert made.parameters["properties"] == {"body": schema}
    assert made.parameters["required"] == ["body"]


def test_a_form_is_sent_as_one() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}

    made = one(body(schema, "application/x-www-form-urlencoded"), method="post")

    assert (made.encoding, made.places) == ("form", {"a": "body"})


def test_json_is_preferred_among_several_bodies() -> None:
    content = {media: {"schema": {"type": "string"}} for media in ("multipart/form-data", "application/vnd.x+json")}

    assert one({"requestBody": {"content": content, "required": True}}, method="post").encoding == "json"


def test_an_operation_that_cannot_be_a_tool_is_skipped_with_its_reason(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Json, str]] = [
        ({"parameters": [param("sid", "cookie", required=True)]}, "cookie"),
        ({"parameters": [param("x", "header", style="matrix")]}, "matrix"),
        ({"parameters": [{"$ref": "other.yaml#/x"}]}, "another document"),
        ({"parameters": [{"$ref": "#/components/parameters/Gone"}]}, "leads nowhere"),
        ({"parameters": [{"name": "x"}]}, "no `in`"),
        ({"parameters": [param("x", schema={"type": "wrong"})]}, "not a JSON Schema"),
        ({"parameters": {"a": 1}}, "not a list"),
        (body({"type": "object"}, "multipart/form-data"), "multipart/form-data"),
        (body({"$ref": "#/components/schemas/Gone"}), "leads nowhere"),
        ({"requestBody": {"content": {"application/json": [1]}}}, "not valid OpenAPI"),
    ]
    for operation, reason in cases:
        with subtests.test(operation=operation, reason=reason):
            assert reason in why(operation, method="post")


def test_one_broken_operation_costs_only_itself() -> None:
    paths = {"/a": {"get": {"parameters": [7]}, "options": {}, "post": {}}, "x-more": {"get": {}}, "/{id}": {"get": {}}}

    made, skipped = read(described(paths))

    assert [definition.url for definition in made] == [f"{SERVER}/a"]
    assert skipped == [
        Skipped("GET /a", "a reference in it leads nowhere"),
        Skipped("OPTIONS /a", "OPTIONS requests are not sent"),
        Skipped("GET /{id}", "url: {id} is not among the parameters."),
    ]


def test_optional_cookies_and_bodies_that_cannot_be_sent_are_left_out() -> None:
    operation = {"parameters": [param("sid", "cookie")]} | body({"type": "object"}, "image/png", required=False)

    assert one(operation, method="post").parameters["properties"] == {}


# Schemas


def converted(schema: Json, **schemas: Json) -> tuple[Json, Json]:
    """A schema as the tool has it, and its `$defs`."""
    made = one(body({"type": "array", "items": schema}), method="post", components={"schemas": schemas})
    return made.parameters["properties"]["body"]["items"], made.parameters.get("$defs", {})


def test_schemas_are_said_in_one_dialect(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Json, Json]] = [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"oneOf": [TEXT], "nullable": True}, {"anyOf": [{"oneOf": [TEXT]}, {"type": "null"}]}),
        ({"$ref": "#/components/schemas/T", "nullable": True}, {"type": ["string", "null"]}),
        ({"$ref": "#/components/schemas/T", "description": "here"}, {"type": "string", "description": "here"}),
        ({"type": "number", "maximum": 5, "exclusiveMaximum": True}, {"type": "number", "exclusiveMaximum": 5}),
        ({"type": "number", "minimum": 5, "exclusiveMinimum": False}, {"type": "number", "minimum": 5}),
        ({"type": "number", "exclusiveMinimum": 5}, {"type": "number", "exclusiveMinimum": 5}),
        ({"type": "string", "example": "x", "xml": {}, "x-more": 1}, {"type": "string", "examples": ["x"]}),
        ({"type": "string", "pattern": r"^\p{L}+$"}, {"type": "string"}),
        ({"required": True, "properties": {"example": {}}}, {"properties": {"example": {}}}),
        ({"enum": [{"$ref": "#/nothing", "nullable": True}]}, {"enum": [{"$ref": "#/nothing", "nullable": True}]}),
        (
            {"type": "object", "properties": {"a": {"readOnly": True}, "b": {}}, "required": ["a", "b"]},
            {"type": "object", "properties": {"b": {}}, "required": ["b"]},
        ),
    ]
    for schema, becomes in cases:
        with subtests.test(schema=schema, becomes=becomes):
            assert converted(schema, T={"type": "string"}) == (becomes, {})


def test_what_is_referred_to_stands_in_its_place() -> None:
    inner = {"type": "object", "properties": {"t": {"$ref": "#/components/schemas/T"}}}

    assert converted({"$ref": "#/components/schemas/Inner"}, T={"type": "string"}, Inner=inner) == (
        {"type": "object", "properties": {"t": {"type": "string"}}},
        {},
    )


def test_what_holds_itself_stays_apart() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/components/schemas/Tree"}}}

    assert converted({"$ref": "#/components/schemas/Tree"}, Tree=tree) == (
        {"$ref": "#/$defs/Tree"},
        {"Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}},
    )


def test_two_that_hold_each_other_stay_apart_too() -> None:
    a = {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/B"}}}
    b = {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}}

    schema, defs = converted({"$ref": "#/components/schemas/A"}, A=a, B=b)

    assert schema == {"$ref": "#/$defs/A"}
    assert defs == {
        "A": {
            "type": "object",
            "properties": {"b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}},
        }
    }


def test_what_would_grow_without_bounds_in_place_stays_apart() -> None:
    schemas = {
        f"S{i}": {"type": "object", "properties": {n: {"$ref": f"#/components/schemas/S{i + 1}"} for n in "abcd"}}
        for i in range(12)
    }

    schema, defs = converted({"$ref": "#/components/schemas/S0"}, **schemas, S12={"type": "string"})

    assert schema == {"$ref": "#/$defs/S0"}
    assert sorted(defs) == sorted([*schemas, "S12"])


# Servers


@pytest.mark.parametrize(
    ("servers", "options", "url"),
    [
        ([{"url": "https://a.example/v1/"}], {}, "https://a.example/v1/x"),
        ([{"url": "/v1"}], {"url": "https://b.example/docs/openapi.json"}, "https://b.example/v1/x"),
        ([{"url": "../v2"}], {"url": "https://b.example/docs/a/openapi.json"}, "https://b.example/docs/v2/x"),
        (None, {"url": "https://b.example/docs/openapi.json"}, "https://b.example/x"),
        ([{"url": "https://a.example"}], {"server": "http://127.0.0.1:8080/api"}, "http://127.0.0.1:8080/api/x"),
        (
            [
                {
                    "url": "https://{region}.a.example/{v}",
                    "variables": {"region": {"default": "eu"}, "v": {"default": 3}},
                }
            ],
            {},
            "https://eu.a.example/3/x",
        ),
    ],
)
def test_where_the_api_is_comes_from_the_document_or_the_caller(
    servers: list[Json] | None, options: Json, url: str
) -> None:
    [made], _ = read(described({"/x": {"get": {}}}) | {"servers": servers}, **options)

    assert made.url == url


def test_a_path_or_an_operation_can_have_a_server_of_its_own() -> None:
    paths = {
        "/x": {"servers": [{"url": "https://b.example"}], "get": {}, "put": {"servers": [{"url": "https://c.example"}]}}
    }

    made, _ = read(described(paths))

    assert [definition.url for definition in made] == ["https://b.example/x", "https://c.example/x"]


# Auth

SCHEMES = {
    "Basic": {"type": "http", "scheme": "Basic"},
    "Bearer": {"type": "http", "scheme": "bearer"},
    "Head": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "Query": {"type": "apiKey", "in": "query", "name": "key"},
    "Cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "OAuth": {"type": "oauth2", "flows": {}},
    "Digest": {"type": "http", "scheme": "digest"},
}


def fixed(auth: Json, operation: Json | None = None, **more: Any) -> Json:
    document = described({"/x": {"get": operation or {}}}, components={"securitySchemes": SCHEMES}, **more)
    [made], _ = read(document, auth=auth)
    return {name: getattr(made, name) for name in ("headers", "query", "cookies") if getattr(made, name)}


PLAIN = SecretHeader(secret="S")
BEARER = SecretHeader(secret="S", form="bearer")
BASIC = SecretHeader(secret="S", form="basic")


def test_auth_becomes_secrets_by_name(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Json, Json]] = [
        ({"secret": "S"}, {"headers": {"Authorization": BEARER}}),
        ({"secret": "S", "form": "basic"}, {"headers": {"Authorization": BASIC}}),
        ({"secret": "S", "name": "X-Token"}, {"headers": {"X-Token": PLAIN}}),
        ({"secret": "S", "in": "query", "name": "key"}, {"query": {"key": PLAIN}}),
        ({"secret": "S", "in": "cookie", "name": "sid"}, {"cookies": {"sid": PLAIN}}),
        ({"Basic": "S"}, {"headers": {"Authorization": BASIC}}),
        ({"Bearer": "S"}, {"headers": {"Authorization": BEARER}}),
        ({"OAuth": "S"}, {"headers": {"Authorization": BEARER}}),
        ({"Head": "S"}, {"headers": {"X-Key": PLAIN}}),
        ({"Query": "S"}, {"query": {"key": PLAIN}}),
        ({"Cookie": "S"}, {"cookies": {"sid": PLAIN}}),
        ({"Head": "S", "Query": "S"}, {"headers": {"X-Key": PLAIN}, "query": {"key": PLAIN}}),
    ]
    for auth, becomes in cases:
        with subtests.test(auth=auth, becomes=becomes):
            assert fixed(auth) == becomes


def test_an_operation_gets_the_secrets_it_asks_for_and_no_others() -> None:
    auth = {"Basic": "S", "Head": "S", "Query": "S"}

    assert fixed(auth, {"security": [{"Digest": []}, {"Head": [], "Query": []}]}) == fixed({"Head": "S", "Query": "S"})
    assert fixed(auth, security=[{"Basic": []}]) == fixed({"Basic": "S"})
    assert fixed(auth, {"security": [{"Head": []}]}, security=[{"Basic": []}]) == fixed({"Head": "S"})
    assert fixed(auth, {"security": [{}]}) == {}
    assert fixed(auth, {"security": []}, security=[{"Basic": []}]) == {}
    assert fixed({"secret": "S"}, {"security": []}) == {}


def test_an_operation_that_needs_what_nobody_named_is_skipped() -> None:
    document = described({"/x": {"get": {"security": [{"Bearer": []}]}}}, components={"securitySchemes": SCHEMES})

    made, [skipped] = read(document, auth={"Basic": "S"})

    assert made == []
    assert "security scheme Bearer" in skipped.reason


def test_a_parameter_that_is_a_secret_is_no_argument() -> None:
    assert fixed({"Query": "S"}, {"parameters": [param("key"), param("q")]}) == {"query": {"key": PLAIN}}


@pytest.mark.parametrize(
    "auth",
    [
        {"Unknown": "S"},
        {"Digest": "S"},
        {"Basic": 3},
        {"Basic": "no name"},
        {"secret": "S", "in": "body"},
        {"secret": "S", "in": "query"},
        {"secret": "S", "form": "digest"},
        {"secret": "S", "more": 1},
    ],
)
def test_auth_that_cannot_be_followed_is_refused(auth: Json) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        fixed(auth)


# What is wanted, and what is none


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        ([], [], ["list_pets", "add_pet", "get_user"]),
        (["list_*"], [], ["list_pets"]),
        (["listPets"], [], []),
        (["POST /pets"], [], ["add_pet"]),
        (["* /pets*"], [], ["list_pets", "add_pet"]),
        (["users"], [], ["get_user"]),
        ([], ["pets"], ["get_user"]),
        (["GET *"], ["users"], ["list_pets"]),
    ],
)
def test_patterns_choose_by_name_method_and_path_or_tag(
    include: list[str], exclude: list[str], names: list[str]
) -> None:
    paths = {
        "/pets": {
            "get": {"operationId": "list_pets", "tags": ["pets"]},
            "post": {"operationId": "add_pet", "tags": ["pets"]},
        },
        "/users": {"get": {"operationId": "get_user", "tags": ["users"]}},
    }

    made, skipped = read(described(paths), include=include, exclude=exclude)

    assert [definition.name for definition in made] == names
    assert skipped == []


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"openapi": "2.0", "paths": {}},
        {"openapi": 3.0, "paths": {}},
        {"openapi": "3.1.0"},
        {"openapi": "3.1.0", "paths": {"/x": {"get": {}}}},
        described({"/x": {"get": {}}}, servers=[{"url": "/only"}]),
        described({"/x": {"get": {}}}, servers={"url": "x"}),
        described({"/x": {"get": {}}}, components=[]),
    ],
)
def test_what_is_no_description_is_refused_with_a_sentence(document: Json) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        read(document)


RICH = described(
    {
        "/a/{id}": {
            "parameters": [param("id", "path")],
            "get": {"parameters": [param("q", schema={"$ref": "#/components/schemas/T"})], "tags": ["t"]},
            "post": body({"allOf": [{"$ref": "#/components/schemas/T"}]}) | {"security": [{"Basic": []}]},
        }
    },
    components={
        "schemas": {
            "T": {"type": "object", "properties": {"t": {"$ref": "#/components/schemas/T"}}, "required": ["t"]}
        },
        "securitySchemes": SCHEMES,
    },
)
JUNK = st.sampled_from([None, True, 0, "", "x", [], [7], {}, {"$ref": "#"}, {"$ref": 5}, {"a": 1}, "#/paths"])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, one in inner for place in places(one, (*path, name)))]


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(places(RICH)[1:]), JUNK), min_size=1, max_size=4))
def test_a_description_with_anything_wrong_is_read_or_refused_but_never_breaks(changes: list[Any]) -> None:
    document = copy.deepcopy(RICH)
    for path, junk in changes:
        holder: Any = document
        try:
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = copy.deepcopy(junk)
        except (KeyError, IndexError, TypeError):
            continue

    refused = "."
    try:
        read(document, auth={"Basic": "S"})
    except ValueError as error:
        refused = str(error)

    assert refused.endswith(".")


# Swagger 2.0


def test_swagger_2_is_read_too() -> None:
    pet = {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}}
    document = {
        "swagger": "2.0",
        "host": "old.example",
        "basePath": "/api",
        "schemes": ["http", "https"],
        "consumes": ["application/json"],
        "parameters": {"Page": {"name": "page", "in": "query", "type": "integer"}},
        "securityDefinitions": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}, "b": {"type": "basic"}},
        "security": [{"key": []}],
        "definitions": {"Pet": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
        "paths": {
            "/pets/{id}": {
                "parameters": [{"name": "id", "in": "path", "type": "integer", "required": True}],
                "get": {
                    "operationId": "getPet",
                    "parameters": [
                        {"$ref": "#/parameters/Page"},
                        {"name": "tags", "in": "query", "type": "array", "items": {"type": "string"}},
                        {"name": "ids", "in": "query", "type": "array", "items": {}, "collectionFormat": "multi"},
                        {"name": "p", "in": "query", "type": "array", "items": {}, "collectionFormat": "pipes"},
                    ],
                },
                "put": {
                    "operationId": "putPet",
                    "parameters": [pet],
                },
                "post": {
                    "operationId": "form",
                    "consumes": ["application/x-www-form-urlencoded"],
                    "parameters": [{"name": "name", "in": "formData", "type": "string", "required": True}],
                },
                "patch": {
                    "operationId": "upload",
                    "parameters": [{"name": "photo", "in": "formData", "type": "file", "required": True}],
                },
            }
        },
    }

    [get, put, form], skipped = read(document, auth={"key": "S"})

    assert get.url == "https://old.example/api/pets/{id}"
    assert get.headers == {"X-Key": PLAIN}
    assert get.places == {
        "id": "path",
        "page": "query",
        "tags": Placement(place="query", name="tags", style="comma"),
        "ids": "query",
        "p": Placement(place="query", name="p", style="pipe"),
    }
    assert put.places == {"id": "path", "name": "body"}
    assert put.parameters["required"] == ["id", "name"]
    assert (form.encoding, form.places) == ("form", {"id": "path", "name": "body"})
    assert skipped == [
        Skipped("PATCH /pets/{id}", "its body is multipart/form-data; only JSON and forms are supported")
    ]
