"""The body of POST /v1/chat/completions. Fields that change nothing here (user, metadata, store ...) are ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Wire(BaseModel):
    """Strict (no text for a number), finite, tolerant of fields it does not know."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class ImageUrl(Wire):
    url: str
    detail: str | None = None


class ContentPart(Wire):
    type: Literal["text", "refusal", "image_url"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None


class CalledFunction(Wire):
    name: str = Field(min_length=1)
    arguments: str


class AssistantCall(Wire):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[AssistantCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionSpec(Wire):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Wire):
    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Wire):
    name: str


class NamedToolChoice(Wire):
    type: Literal["function"]
    function: NamedFunction


class AllowedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Wire):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool] = Field(min_length=1)


class AllowedToolChoice(Wire):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class StreamOptions(Wire):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(Wire):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Wire):
    """vLLM's field of this name: exactly one of these."""

    json_: dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)


class Explore(Wire):
    """Several paths to one answer, at max effort; `pick` says who chooses among them."""

    paths: int = Field(ge=1)
    pick: Literal["vote", "verifier"] | None = None


class ChatRequest(Wire):
    """What a chat completion may ask for; what it may not is refused by name, never silently dropped."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    thinking_token_budget: int | None = Field(default=None, ge=0)
    explore: Explore | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    n: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    min_p: float | None = Field(default=None, ge=0, le=1)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = Field(default=None, max_length=256)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None


class ChatTokensRequest(ChatRequest):
    """A chat completion that brings its prompt's ids."""

    tokens: list[int] = Field(min_length=1)
