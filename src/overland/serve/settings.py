"""The `serve` section of a recipe: where the server listens and what it admits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from overland.config import Section


class ServeSection(Section):
    """How a model is served over HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback unless you choose otherwise; set an API key before opening it to a network."""

    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and the ready line names it."""

    api_key_env: str = "OVERLAND_API_KEY"
    """Environment variable that holds the API key. Unset or empty: no key is asked for."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """In which weights are kept and computed with, and caches are kept. bfloat16 takes half the memory and time."""

    packed: bool = False
    """Whether a quantised folder's MXFP4 matrices stay packed in memory, rather than being decoded to `dtype`."""

    prefill_chunk: int = Field(default=512, ge=0)
    """Prompt tokens run between two decoding steps, so that a long prompt holds nobody up. 0: whole prompts."""

    page_size: int = Field(default=512, ge=1)
    """Tokens of a page of the prefix cache; prompts run in pieces leave checkpoints at their ends."""

    prefix_tokens: int = Field(default=1_000_000, ge=0)
    """Tokens of stored prefixes, shared beginnings counted each time."""

    cache_mib: int = Field(default=0, ge=0)
    """Memory of running requests and stored prefixes together; beyond it prefixes are dropped, then the least urgent
    requests are put aside until there is room. 0: no limit."""

    max_request_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """A request body larger than this is refused with 413 before it is read to its end."""

    max_in_flight: int = Field(default=256, ge=1)
    """Generations admitted at once, running and waiting together; beyond it a client gets 429 with Retry-After."""

    max_tokens_in_flight: int = Field(default=0, ge=0)
    """Tokens (prompts and all that may be generated) admitted at once; beyond it 429. 0: no such limit."""

    short_tokens: int = Field(default=8192, ge=1)
    """Prompt and answer up to which a request is short: it may use the whole budget and runs before long ones."""

    long_share: float = Field(default=0.75, gt=0, le=1)
    """Share of `max_tokens_in_flight` that long requests may have together."""

    log_to: str = ""
    """Where conversations are logged: a folder, or s3://BUCKET/PREFIX. Empty: nowhere."""

    log_endpoint: str = ""
    """Address of the S3 interface, where it is not Amazon's."""

    log_spool: str = ""
    """Folder for what is not yet in its place; what a crash left there is taken along at the next start. Empty: beside
    `log_to` where that is a folder, else `.overland-log-spool` in the working folder."""

    log_thinking: bool = True
    """Whether the log keeps the model's thinking."""

    log_personal: bool = False
    """Whether the log keeps e-mail addresses, phone numbers, machine addresses and keys, which else are replaced."""

    log_redact: list[str] = Field(default_factory=list)
    """Regular expressions whose matches are replaced before anything is written."""

    log_retention_days: int = Field(default=0, ge=0)
    """Days after which logged conversations are deleted. 0: never."""

    log_batch_seconds: float = Field(default=60.0, gt=0)
    """Age at which a batch is compressed and put in its place; until then it is safe in the spool."""

    max_seconds: float = Field(default=0.0, ge=0)
    """Time after which a request is ended with 504; a client may ask for less in X-Request-Timeout. 0: no limit."""

    api_keys_file: str = ""
    """File with the SHA-256 (hex) of one API key a line, and optionally a name behind it. The keys are in no file."""

    effort_controller: bool = False
    """Whether default effort and budgets are lowered under pressure (see the thresholds below) and raised again."""

    effort_cache_usage: float | None = Field(default=0.9, gt=0, le=1)
    """Share of the cache taken by running requests from which effort is lowered. None: not looked at."""

    effort_first_token_seconds: float | None = Field(default=2.0, gt=0)
    """95th percentile of the time to the first token from which effort is lowered. None: not looked at."""

    effort_memory_usage: float | None = Field(default=0.95, gt=0, le=1)
    """Share of the device's memory in use from which effort is lowered. None: not looked at."""

    effort_prefix_hit_rate: float | None = Field(default=None, gt=0, lt=1)
    """Share of prompt tokens found in the prefix cache below which effort is lowered. None: not looked at."""

    effort_raise_seconds: float = Field(default=5.0, ge=0)
    """How long a threshold must be passed before effort goes down by one level."""

    effort_lower_seconds: float = Field(default=30.0, gt=0)
    """How long everything must be calm before effort goes up by one level."""

    effort_budget: int = Field(default=4096, ge=1)
    """Thinking budget that the controller halves at each level where a tier has none of its own."""

    retry_after_seconds: int = Field(default=2, ge=1)
    """What Retry-After says when the server is full or draining."""

    max_choices: int = Field(default=16, ge=1)
    """Generations of one request at most: `n` of a chat completion, times the paths explored for each."""

    explore_paths: int = Field(default=1, ge=1)
    """Paths that a request at max effort explores where it does not say (and its temperature is above 0); a vote or
    the verifier picks one. Costs that many generations."""

    verifier_url: str = ""
    """Address that scores the answers of explored paths: given model, messages, tools and answers, it returns
    {"scores": [...]}. Empty: a vote picks."""

    verifier_seconds: float = Field(default=30.0, gt=0)
    """How long the verifier may take; then the vote decides."""

    max_images: int = Field(default=16, ge=0)
    """Pictures of one request, where the model takes any. Their bytes count against `max_request_bytes`."""

    max_image_pixels: int = Field(default=7168 * 7168, ge=1)
    """Pixels of one picture, as its file declares them; checked before any is decoded."""

    max_tokens: int = Field(default=4096, ge=1)
    """Tokens generated at most when a request names no limit; the room left in the context bounds it as well."""

    default_effort: Literal["low", "high", "max"] = "max"
    """Effort of a request that names none."""

    think_budget_low: int | None = Field(default=None, ge=0)
    """Thinking tokens at most at low effort; a request may ask for less, never for more. None: no limit."""

    think_budget_high: int | None = Field(default=None, ge=0)
    """Thinking tokens at most at high effort. None: no limit."""

    think_budget_max: int | None = Field(default=None, ge=0)
    """Thinking tokens at most at max effort. None: no limit."""

    answer_reserve: int = Field(default=0, ge=0)
    """Tokens of a request's limit kept for the answer: thinking is closed when only these are left. 0: none."""

    sampled_turn_tokens: int = Field(default=4_000_000, ge=0)
    """Token ids of sampled turns kept in memory (4 bytes each), so that a history sent back is never re-encoded."""

    trainer_routes: bool = False
    """Whether trainers may pause the engine, replace its weights and abort requests (/pause, /update_weights ...)."""

    return_routed_experts: bool = False
    """Whether /inference/v1/generate says which experts each token went to, also where a request does not ask."""

    weights_root: str = ""
    """Folder under which /update_weights may name model folders. Empty: weights come only inside the request."""

    max_weight_bytes: int = Field(default=4 * 1024**3, ge=1024)
    """Largest body of /update_weights."""

    stored_response_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """JSON of responses kept in memory for `previous_response_id`; the least recently used are forgotten first."""

    drain_seconds: int = Field(default=30, ge=0)
    """On SIGTERM or Ctrl-C: how long running requests may take to finish before they are cancelled."""

    def engine_options(self) -> dict[str, Any]:
        """What an engine is told of these settings."""
        return {
            "prefill_chunk": self.prefill_chunk or None,
            "page_size": self.page_size,
            "prefix_tokens": self.prefix_tokens,
            "pool_bytes": self.cache_mib * 2**20 or None,
        }

    def think_budget(self, effort: str) -> int | None:
        """Thinking tokens allowed at an effort tier (low, high, max); None means no limit."""
        return {"low": self.think_budget_low, "high": self.think_budget_high, "max": self.think_budget_max}[effort]
