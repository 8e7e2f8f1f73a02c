"""The routes of the Responses API: create, retrieve, delete, input items, input tokens."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from overland.serve.answering import known_model, plan_headers, read, respond, stamped
from overland.serve.body import read_body
from overland.serve.errors import ApiError
from overland.serve.generation import Ask, Generator
from overland.serve.responses import ResponseAnswer
from overland.serve.responses_read import read_request
from overland.serve.responses_schema import Item, ResponsesRequest
from overland.serve.responses_store import ResponseStore, Stored
from overland.serve.signature import ThinkingSigner


def add_to(app: FastAPI, generator: Generator, signer: ThinkingSigner, model_name: str) -> None:
    """Declare the routes."""
    store = ResponseStore(generator.settings.stored_response_bytes)

    async def read_items(body: ResponsesRequest) -> tuple[Ask, list[dict[str, Any]]]:
        """The request in neutral terms, and its whole input as items, for those who go on from it."""
        earlier: list[dict[str, Any]] = []
        if body.previous_response_id is not None:
            before = find(body.previous_response_id, "previous_response_id")
            earlier = [*before.items, *before.response["output"]]
        said = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
        items = [_resolve(store, item) for item in said]
        before_it = [Item.model_validate(item) for item in earlier]
        ask = await read(read_request, body, generator, signer, before_it, items)
        return ask, [*earlier, *(item.model_dump(exclude_none=True) for item in items)]

    def find(response_id: str, param: str | None = None) -> Stored:
        stored = store.get(response_id)
        if stored is None:
            status = 400 if param else 404
            message = f"there is no stored response {response_id!r}"
            raise ApiError(status, f"{param}: {message}" if param else message, param=param, code="response_not_found")
        return stored

    @app.post("/v1/responses")
    async def create(request: Request) -> Response:
        body = await read_body(request, ResponsesRequest, generator.settings.max_request_bytes)
        known_model(body.model, model_name)
        ask, items = await read_items(body)
        plan = await generator.plan(stamped(ask, request, generator))
        answer = ResponseAnswer(
            generator, plan, body, signer, request.state.request_id, lambda response: store.put(response, items)
        )
        return await respond(
            request, generator, answer, plan.load, stream=bool(body.stream), headers=plan_headers(plan)
        )

    @app.post("/v1/responses/input_tokens")
    async def input_tokens(request: Request) -> dict[str, Any]:
        """Exactly the prompt tokens the same request would have to /v1/responses."""
        body = await read_body(request, ResponsesRequest, generator.settings.max_request_bytes)
        known_model(body.model, model_name)
        prompt = await generator.prompt((await read_items(body))[0])
        return {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}

    @app.get("/v1/responses/{response_id}")
    async def retrieve(response_id: str) -> dict[str, Any]:
        return find(response_id).response

    @app.delete("/v1/responses/{response_id}")
    async def delete(response_id: str) -> dict[str, Any]:
        find(response_id)
        store.delete(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @app.get("/v1/responses/{response_id}/input_items")
    async def input_items(response_id: str) -> dict[str, Any]:
        items = [
            {"id": f"{response_id}_{place}", **item} for place, item in enumerate(reversed(find(response_id).items))
        ]
        ends = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
        return {"object": "list", "data": items, "has_more": False, **ends}


def _resolve(store: ResponseStore, item: Item) -> Item:
    """What an item reference stands for; any other item as it is."""
    if item.type != "item_reference":
        return item
    found = store.item(item.id or "")
    return item if found is None else Item.model_validate(found)
