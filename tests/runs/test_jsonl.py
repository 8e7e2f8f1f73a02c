"""Compressed JSON lines: whole, or noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from overland.errors import BrokenFileError
from overland.runs import read_jsonl_zst, write_jsonl_zst

ROWS = [{"n": n, "text": f"line {n * 7919 % 1000}\n\u2028" * (n % 7)} for n in range(3000)]


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    assert write_jsonl_zst(tmp_path / "a.jsonl.zst", iter(ROWS)) == len(ROWS)
    assert list(read_jsonl_zst(tmp_path / "a.jsonl.zst")) == ROWS


def test_frames_written_one_after_another_are_all_read(tmp_path: Path) -> None:
    one, two, both = (tmp_path / name for name in ("1", "2", "both"))
    write_jsonl_zst(one, ROWS[:10])
    write_jsonl_zst(two, ROWS[10:20])
    both.write_bytes(one.read_bytes() + two.read_bytes())
    assert list(read_jsonl_zst(both)) == ROWS[:20]


def test_an_ordinary_zstd_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(zstandard.compress(b'{"a": 1}\n{"a": 2}'))
    assert list(read_jsonl_zst(tmp_path / "a")) == [{"a": 1}, {"a": 2}]


@given(cut=st.floats(0.0, 0.999))
def test_a_cut_file_is_noticed_wherever_it_was_cut(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    whole = tmp_path_factory.getbasetemp() / "whole.zst"
    write_jsonl_zst(whole, ROWS[:200])
    data = whole.read_bytes()
    broken = whole.with_name("cut.zst")
    broken.write_bytes(data[: max(1, int(cut * len(data)))])
    with pytest.raises(BrokenFileError, match=r"cut\.zst"):
        list(read_jsonl_zst(broken))


def test_a_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    write_jsonl_zst(path, ROWS)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match=r"a\.zst"):
        list(read_jsonl_zst(path))


def test_rows_that_fail_half_way_leave_no_file(tmp_path: Path) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield {"a": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl_zst(tmp_path / "a.zst", rows())
    assert list(tmp_path.iterdir()) == []
