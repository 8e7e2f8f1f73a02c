"""What a client is told when a request fails, in the form of the API it speaks.

OpenAI: ``{"error": {"message", "type", "param", "code"}}``. Anthropic: ``{"type": "error", "error": {"type",
"message"}, "request_id"}``. Neither ever carries a traceback or a path of this machine.
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.requests import Request

log = logging.getLogger("overland.serve")

LONGEST = 600  # characters of a message: it may quote what the client sent
OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
OVERLOADED = 529  # what Anthropic's API says where others say 503


class ApiError(Exception):
    """A request that cannot be served: HTTP status, one line for a person, the field at fault, a stable code."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= LONGEST else message[:LONGEST] + " ..."
        self.param = param
        self.code = code
        self.retry_after = retry_after


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """What a client may know of any failure. One that we did not foresee goes to the log with its traceback."""
    if isinstance(error, ApiError):
        return error
    log.error("request %s failed", request_id, exc_info=error)
    return ApiError(500, f"internal error; the server's log has it under {request_id}", code="internal_error")


def bad_request(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 whose message starts with the field it is about."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def from_validation(error: ValidationError) -> ApiError:
    """The first thing pydantic found wrong, as ``messages.0.role: ...``; within it, the innermost field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [".".join(str(part) for part in one["loc"] if not _is_union_arm(str(part))) for one in found]
    field, first = max(
        (pair for pair in zip(fields, found, strict=True) if pair[0].startswith(fields[0])),
        key=lambda pair: pair[0].count("."),
    )
    return ApiError(400, f"{field or 'body'}: {first['msg']}", param=field or None, code=first["type"])


def _is_union_arm(part: str) -> bool:
    """Pydantic names the arm of a union inside the location (`content.str`, `content.list[Part]`): not a field."""
    return part in {"str", "int", "float", "bool"} or "[" in part or part[:1].isupper()


def is_anthropic(request: Request) -> bool:
    """Whether this request speaks the Messages API: by its path, or by the header its clients always send."""
    return request.url.path.startswith("/v1/messages") or "anthropic-version" in request.headers


def error_body(error: ApiError, *, anthropic: bool, request_id: str) -> dict[str, Any]:
    """The JSON body of an error in the client's own form (also the payload of a stream's terminal error event)."""
    if anthropic:
        kind = ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}
    kind = OPENAI_TYPES.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(request: Request, error: ApiError) -> JSONResponse:
    """The whole answer for a failed request, with Retry-After where waiting helps."""
    request_id = getattr(request.state, "request_id", "req_unknown")
    headers = {}
    if error.retry_after:
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    anthropic = is_anthropic(request)
    body = error_body(error, anthropic=anthropic, request_id=request_id)
    status = OVERLOADED if anthropic and error.status == 503 else error.status
    return JSONResponse(body, status_code=status, headers=headers)
