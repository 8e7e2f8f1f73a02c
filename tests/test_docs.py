"""The documentation is current: the recipes page comes from the code, and every link in it leads somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_recipes_page_is_what_the_code_says() -> None:
    generator = runpy.run_path(str(ROOT / "docs/generate_recipes.py"))
    assert generator["PAGE"].read_text(encoding="utf-8") == generator["render"](), (
        "run: python docs/generate_recipes.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r"^\s*- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES if (ROOT / "docs") in page.parents}


def test_every_room_has_a_page() -> None:
    rooms = {folder.name for folder in (ROOT / "src/overland").iterdir() if (folder / "__init__.py").exists()}
    assert rooms == {page.stem for page in (ROOT / "docs/rooms").glob("*.md")} - {"index"}
