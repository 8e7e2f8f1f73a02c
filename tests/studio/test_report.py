"""The report of a run: complete, self-contained, honest about what is missing, and deaf to scripts in trajectories."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from overland.errors import UsageError
from overland.runs import write_json, write_jsonl_zst
from overland.studio import write_report
from tests.studio.made_up import DOMAINS, attack, make_run

VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """The parsed page: open tags must close in order; tags, attributes and visible text are collected."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    def having(self, cls: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.tags if cls in (attrs.get("class") or "").split()]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "quickstart")


@pytest.fixture(scope="module")
def page(finished: Path) -> Page:
    return Page(write_report(finished).read_text("utf-8"))


def test_the_headline_gives_success_by_stage_with_its_interval(page: Page) -> None:
    for figures in ("53% held-out tasks solved after SFT", "87% held-out tasks solved after RL", "when served"):
        assert figures in page.text
    assert "95% interval 84% to 89%, 900 tasks; +34 points over SFT" in page.text
    assert "2.37 bits per byte of held-out text, after pretraining gzip -9 2.03; KN 5-gram 1.79" in page.text


def test_every_domain_and_stage_has_an_interval(page: Page) -> None:
    for line in ("after SFT 43% 38–49%, n 300", "after RL 88% 84–91%, n 300", "after MXFP4", "when served"):
        assert line in page.text.replace("\xa0", " ")
    by_stage, by_effort, by_level = 4 * 4, 3, 4 * 3
    assert len(page.having("ibar")) == by_stage + by_effort + by_level


def test_every_section_has_content_and_is_linked(page: Page) -> None:
    targets = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert targets == {"#solved", "#learning", "#rl", "#effort", "#experts", "#alarms", "#costs", "#read"}
    assert {"#" + str(attrs["id"]) for tag, attrs in page.tags if tag == "section"} >= targets
    assert "stored nothing" not in page.text
    assert "incomplete" not in page.text


def test_efforts_levels_and_control_runs_are_not_drawn_as_domains_or_stages(finished: Path) -> None:
    source = (finished / "report.html").read_text("utf-8")
    learning = source[source.index('id="rl"') : source.index('id="effort"')]
    labels = re.findall(r'class="endlabel[^>]*>([^<]*)<', learning)
    assert set(labels) == set(DOMAINS)
    assert "reinforced for 60 steps" in source
    sft = source[source.index("SFT loss") : source.index("Held-out text")]
    highest = max(float(t) for t in re.findall(r'class="ytick"[^>]*>([\d.]+)<', sft))
    assert highest == 3


def test_an_alarm_is_shown_with_its_step_and_its_advice(page: Page) -> None:
    assert "pretrain step 141 : step 141: loss 5.2 is 9.1 deviations above" in page.text


def test_a_domain_has_one_colour_everywhere(finished: Path, page: Page) -> None:
    source = (finished / "report.html").read_text("utf-8")
    for colour, domain in enumerate(DOMAINS):
        labels = re.findall(rf'<(?:h3|span) class="([^"]*)"[^>]*>{domain}\b', source)
        assert len(labels) >= 8
        assert {re.findall(r"c-\w+", classes)[0] for classes in labels} == {f"c-{colour}"}


def test_at_least_ten_trajectories_of_every_kind_can_be_read(page: Page) -> None:
    episodes = page.having("episode")
    assert len(episodes) >= 10
    kinds = Counter((e["data-domain"], e["data-outcome"]) for e in episodes)
    assert set(kinds) == {(d, o) for d in DOMAINS for o in ("solved", "failed")}
    assert sum("open" in e for e in episodes) == 2
    assert "select" in page.text  # a call's arguments
    assert len(page.having("sampled")) > 500
    assert len(page.having("forced")) > 5
    assert page.having("said think")[:1] or page.having("think")


def test_tokens_are_coloured_by_the_mask_and_spell_the_message(finished: Path, page: Page) -> None:
    source = (finished / "report.html").read_text("utf-8")
    turns = [s for s in re.findall(r'<div class="strip">(.*?)</div>', source, re.S) if "tok sampled" in s]
    assert len(turns) > 20
    header = html.escape('<|open|>message role="assistant"<|sep|>')
    for strip in turns:
        tokens = re.findall(r'<span class="(tok[^"]*)"[^>]*>(.*?)</span>', strip, re.S)
        read = "".join(words for kind, words in tokens if kind == "tok")
        assert read == header
        assert tokens[-1] == ("tok sampled", html.escape("<|end_of_msg|>"))


def test_the_page_asks_the_network_for_nothing(finished: Path, page: Page) -> None:
    source = (finished / "report.html").read_text("utf-8")
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", source)
    for tag, attrs in page.tags:
        assert tag not in {"link", "iframe", "img", "object", "embed", "form", "base"}
        assert not {"src", "srcset", "action", "background"} & set(attrs)
        assert not [name for name in attrs if name.startswith("on")]
        assert str(attrs.get("href", "#")).startswith("#")


def test_only_our_own_script_may_run(finished: Path, page: Page) -> None:
    source = (finished / "report.html").read_text("utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", source, re.S)
    assert len(scripts) == 1
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}'" in str(policy)
    assert source.index("Content-Security-Policy") < source.index("<style>")


@pytest.mark.parametrize(
    "words",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onmouseover='alert(1)",
        "</pre></div></details></section><svg/onload=alert(1)>",
        "<!--",
        "]]><![CDATA[",
        "</script><script>alert(1)//",
        "javascript:alert(1)",
        "\x00\x1b[31m\u202etxt.exe\ud800",
        "&lt;script&gt;",
    ],
)
def test_an_attackers_words_are_shown_and_never_obeyed(words: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    calm, hostile = run.parent / "calm", run
    pages = []
    for folder, content in ((calm, "harmless"), (hostile, words)):
        folder.mkdir()
        clean = content.encode("utf-8", "replace").decode()
        write_jsonl_zst(folder / "episodes" / "rl.jsonl.zst", [attack(clean)])
        (folder / "metrics.jsonl").write_text(json.dumps({"step": content, "stage": content, "alarm": content}) + "\n")
        write_json(folder / "manifest.json", {clean: clean, "packages": {clean: clean}})
        (folder / "recipe.toml").write_text(f"# {clean.replace(chr(0), '').replace(chr(27), '')}\n")
        row = {"success": 0.5, "low95": 0.4, "high95": 0.6, "n": 10}
        write_json(folder / "summary.json", {
            "held_out": {clean: {"all": row, clean: row}}, "efforts": {clean: {**row, "tokens": 3}},
            "seconds": {clean: 1.0}, "levels": {clean: {clean: row}},
        })  # fmt: skip
        pages.append(Page(write_report(folder).read_text("utf-8")))
    skeletons = [[(tag, sorted(attrs)) for tag, attrs in page.tags] for page in pages]
    assert skeletons[0] == skeletons[1]
    if words.isprintable():
        assert words in "".join(pages[1].words)


def test_a_killed_run_still_gives_a_page_that_says_what_is_missing(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    run.mkdir()
    (run / "recipe.toml").write_bytes((finished / "recipe.toml").read_bytes())
    lines = (finished / "metrics.jsonl").read_bytes().split(b"\n")[:50]
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines)[:-20])
    shown = Page(write_report(run).read_text("utf-8"))
    assert "This page is incomplete" in shown.text
    for part in ("summary.json is absent", "manifest.json is absent", "metrics.jsonl: 1 line could not be read"):
        assert part in shown.text
    assert "Pretraining loss" in shown.text
    assert "No trajectories were stored." in shown.text


def test_an_empty_folder_gives_a_page_and_a_missing_one_an_error(tmp_path: Path) -> None:
    assert "nothing has been measured yet" in Page(write_report(tmp_path).read_text("utf-8")).text
    with pytest.raises(UsageError, match="no such run folder"):
        write_report(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_damaged_files_are_named_and_the_rest_is_shown(finished: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", episodes_each=3)
    (run / "summary.json").write_text('{"held_out": {')
    (run / "model" / "tokenizer.json").write_text("{}")
    whole = run / "episodes" / "rl-heldout.jsonl.zst"
    whole.write_bytes(whole.read_bytes()[:-400])
    shown = Page(write_report(run).read_text("utf-8"))
    for part in ("summary.json is damaged", "tokens are shown by number", "episodes/rl-heldout.jsonl.zst: was cut"):
        assert part in shown.text
    assert len(shown.having("episode")) >= 6
    assert "⟨" in shown.text


def test_figures_of_the_wrong_kind_are_left_out(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {
        "held_out": {"sft": {"all": {"success": "high", "low95": 0, "high95": 1}, "web": 3}, "rl": None},
        "efforts": [1], "bpb": {"after": None}, "seconds": {"rl": "long"}, "levels": {"rl": {"web": {"0": None}}},
    })  # fmt: skip
    rows: list[object] = [[1], {"step": None, "train/loss": 1}, {"stage": "rl", "moe/load/1": ["a"]}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert "stored nothing" in Page(write_report(tmp_path).read_text("utf-8")).text


def test_the_same_run_gives_the_same_page(finished: Path) -> None:
    assert write_report(finished).read_bytes() == write_report(finished).read_bytes()
