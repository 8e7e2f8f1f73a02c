"""The OpenAPI document: the routes that FastAPI knows, with the bodies that they read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

REF = "#/components/schemas/{model}"
DECLARED = {
    "4XX": "The request is wrong, or there is no room for it; the body is in the API's own form.",
    "503": "The server is shutting down (529 in Anthropic's API).",
    "504": "The request's time was over.",
    "529": "The server is shutting down (503 in the other APIs).",
}


def describe(app: FastAPI, bodies: dict[str, type[BaseModel]]) -> None:
    """Have `app` serve a document that says what each POST route of `bodies` takes."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            for path, body in bodies.items():
                if path not in made["paths"]:
                    continue
                schema = body.model_json_schema(ref_template=REF)
                schemas.update(schema.pop("$defs", {}))
                schemas[body.__name__] = schema
                content = {"application/json": {"schema": {"$ref": REF.format(model=body.__name__)}}}
                made["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
            for methods in made["paths"].values():
                for operation in methods.values():
                    operation["responses"].pop("422", None)
                    operation["responses"] |= {code: {"description": text} for code, text in DECLARED.items()}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
