"""The bodies of the routes that take token ids: /v1/completions, /inference/v1/generate, /tokenize, /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from overland.serve.openai_schema import ChatMessage, FunctionTool, ReasoningEffort, StreamOptions, Wire

Id = Annotated[int, Field(ge=0)]


class CompletionRequest(Wire):
    """OpenAI's legacy completion, with prompts as text or as token ids."""

    model: str
    prompt: str | list[str] | list[Id] | list[list[Id]]
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    n: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stop_token_ids: list[Id] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = Field(default=None, max_length=256)


class SamplingParams(Wire):
    """vLLM's names."""

    n: int = Field(default=1, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop_token_ids: list[Id] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    thinking_token_budget: int | None = Field(default=None, ge=0)
    return_routed_experts: bool | None = None
    routed_experts_prompt_start: int | None = Field(default=None, ge=0)


class GenerateRequest(Wire):
    """Token ids in, token ids out."""

    model: str | None = None
    token_ids: list[Id] = Field(min_length=1)
    sampling_params: SamplingParams = SamplingParams()
    cache_salt: str | None = Field(default=None, max_length=256)
    priority: int = 0


class TokenizeRequest(Wire):
    """Text, or a conversation as a chat completion would render it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    tools: list[FunctionTool] | None = None
    reasoning_effort: ReasoningEffort | None = None


class DetokenizeRequest(Wire):
    model: str | None = None
    tokens: list[Id]


class UpdateInfo(Wire):
    """Where new weights are: a model folder under the server's weights root, or a safetensors file, base64."""

    path: str | None = None
    safetensors: str | None = None
    checksum: str | None = None


class UpdateRequest(Wire):
    update_info: UpdateInfo
    weight_version: str | int | None = None


class FinishRequest(Wire):
    weight_version: str | int | None = None
    checksum: str | None = None


class VersionRequest(Wire):
    new_version: str | int


class AbortRequest(Wire):
    request_ids: list[str] | None = None


class CheckRequest(Wire):
    action: str
    baseline: dict[str, Any] | None = None
