"""What /metrics shows: vLLM's names where vLLM has one, so that its dashboards and autoscalers work unchanged.

Names beginning with `overland:` are ours. Counters count a request once, at its admission or at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from overland.serve.memory import memory_bytes

# OpenTelemetry's buckets for gen_ai.server.time_to_first_token and time_per_output_token, in seconds.
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


class _EngineMeters(Collector):
    """The engine's own counters and levels, read when they are asked for."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.stats: Mapping[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        labels, stats = ["model_name"], self.stats
        for name, key, text in (
            ("vllm:num_preemptions", "preemptions", "Rows put aside for want of room"),
            ("overland:prefix_evictions", "evictions", "Stored prefixes that were dropped for want of room"),
            ("overland:log_records", "log_written", "Conversations logged"),
            ("overland:log_dropped", "log_dropped", "Conversations that the log had no room for"),
            ("overland:log_failed_puts", "log_failed", "Batches that the log's place refused at first"),
            ("overland:engine_steps", "steps", "Steps of the engine"),
        ):
            if key in stats:
                counter = CounterMetricFamily(name, text, labels=labels)
                counter.add_metric([self._model], stats[key])
                yield counter
        for name, key, text in (
            ("vllm:kv_cache_usage_perc", "cache_usage", "Share of the cache in use, 0 to 1"),
            ("overland:cache_bytes", "cache_bytes", "Bytes of rows and stored prefixes"),
            ("overland:swapped_bytes", "swapped_bytes", "Bytes of rows that were put aside"),
            ("overland:prefix_checkpoints", "prefix_checkpoints", "Stored prefixes"),
            ("overland:prefix_pages", "prefix_pages", "Full pages of stored prefixes"),
        ):
            if key in stats:
                gauge = GaugeMetricFamily(name, text, labels=labels)
                gauge.add_metric([self._model], stats[key])
                yield gauge
        memory = GaugeMetricFamily("overland:memory_bytes", "Memory of the device", labels=[*labels, "kind"])
        for kind, value in memory_bytes().items():
            memory.add_metric([self._model, kind], value)
        yield memory


class Metrics:
    """The server's meters, in a registry of their own (two apps in one process do not collide)."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model = model_name
        self._engine = _EngineMeters(model_name)
        self.registry.register(self._engine)
        self.running = self._gauge("vllm:num_requests_running", "Generations the engine is working on")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Generations admitted and not yet in the batch")
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens, cached ones included")
        self.cached_tokens = self._counter("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache")
        self.cache_queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self.cache_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated")
        self.success = self._counter("vllm:request_success", "Finished generations", ("finished_reason",))
        self.rejected = self._counter("vllm:admission_rejections", "Requests refused at the door", ("reason",))
        self.first_token = self._histogram("vllm:time_to_first_token_seconds", "Admission to first token", FIRST_TOKEN)
        self.between_tokens = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens", PER_TOKEN)
        self.per_token = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time a token after the first", PER_TOKEN
        )
        self.latency = self._histogram("vllm:e2e_request_latency_seconds", "Admission to last token", WHOLE)
        self.request_prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens a request", TOKENS)
        self.request_generation = self._histogram("vllm:request_generation_tokens", "Tokens out a request", TOKENS)
        self.thinking_tokens = self._counter("overland:thinking_tokens", "Tokens sampled while thinking", ("effort",))
        self.budget_exhausted = self._counter(
            "overland:thinking_budget_exhausted", "Generations whose thinking was closed at its budget", ("tier",)
        )
        self.budget_tokens = self._gauge("overland:thinking_budget_tokens", "Thinking budget of a tier", ("tier",))
        self.turns = self._counter(
            "overland:history_turns", "Assistant turns of a history, by how their ids were found", ("source",)
        )
        self.signatures = self._counter(
            "overland:thinking_signatures", "Thinking signatures sent back by clients", ("result",)
        )
        self.queue_time = self._histogram("vllm:request_queue_time_seconds", "Submission to first work", FIRST_TOKEN)
        self.prefill_time = self._histogram(
            "vllm:request_prefill_time_seconds", "Work before the first token", FIRST_TOKEN
        )
        self.decode_time = self._histogram("vllm:request_decode_time_seconds", "First token to last", WHOLE)
        by_effort = ("model_name", "effort")
        self.first_token_by_effort = Histogram(
            "overland:time_to_first_token_seconds",
            "Submission to first token",
            by_effort,
            registry=self.registry,
            buckets=FIRST_TOKEN,
        )
        self.first_response_by_effort = Histogram(
            "overland:time_to_first_response_token_seconds",
            "Submission to the first token behind the thinking",
            by_effort,
            registry=self.registry,
            buckets=FIRST_TOKEN,
        )
        self.explored_paths = self._counter("overland:explored_paths", "Paths explored at max effort", ("picked_by",))
        self.agreeing_paths = self._counter(
            "overland:agreeing_paths", "Explored paths that said what the picked one says", ("picked_by",)
        )
        self.verifier_failures = self._counter("overland:verifier_failures", "Picks that the verifier could not make")
        self.effort_level = self._gauge("overland:effort_level", "Levels by which the controller lowers effort now")
        self.effort_reduced = self._counter("overland:effort_reduced", "Requests whose effort was lowered", ("reason",))
        self.cancelled = self._counter("overland:requests_cancelled", "Generations cancelled by a client leaving")

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        counter = Counter(name, text, ("model_name", *labels), registry=self.registry)
        return counter if labels else counter.labels(self.model)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        gauge = Gauge(name, text, ("model_name", *labels), registry=self.registry)
        return gauge if labels else gauge.labels(self.model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("model_name",), registry=self.registry, buckets=buckets).labels(self.model)

    def count(self, counter: Counter, label: str, amount: float = 1) -> None:
        """Adds to a counter that has one label besides the model's name."""
        counter.labels(self.model, label).inc(amount)

    def measure(self, prompt: int, cached: int, generated: int, finish: str) -> None:
        """Counts one finished generation's tokens."""
        self.prompt_tokens.inc(prompt)
        self.cached_tokens.inc(cached)
        self.cache_queries.inc(prompt)
        self.cache_hits.inc(cached)
        self.generation_tokens.inc(generated)
        self.request_prompt.observe(prompt)
        self.request_generation.observe(generated)
        self.count(self.success, "length" if finish == "length" else "stop")

    def level(self, gauge: Gauge, label: str, value: float) -> None:
        """Sets a gauge that has one label besides the model's name."""
        gauge.labels(self.model, label).set(value)

    def render(self, stats: Mapping[str, float], in_flight: int) -> bytes:
        """The page for a scraper. `stats` is the engine's own (what it lacks is derived from requests in flight)."""
        running = stats.get("running", in_flight)
        self.running.set(running)
        self.waiting.set(stats.get("waiting", max(0, in_flight - running)))
        self._engine.stats = stats
        return generate_latest(self.registry)
