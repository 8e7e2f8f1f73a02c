"""Taking documents out of a finished corpus: shards are rewritten, absence is proven, the request is kept.

A new folder is made beside the old one (what does not change is linked, not copied) and takes its place whole. Rows of
removed documents stay in documents.parquet, without their tokens and with the reason: what was decided can be shown.
What had been dropped as a copy of a removed document does not come back; the report counts it. The tokenizer stays.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from overland import runs
from overland.corpus.croissant import CROISSANT, describe
from overland.corpus.document import DROPPED
from overland.corpus.earlier import FOLDER
from overland.corpus.lookup import read_documents_table
from overland.corpus.parts import decisions_schema, documents_schema
from overland.corpus.personal_vault import VAULT
from overland.corpus.publish import REJECTED, ROWS, attribution_page, file_hashes
from overland.corpus.shards import open_shard, read_index, write_index
from overland.errors import BrokenFileError, OverlandError, UsageError
from overland.licences import BillLine, bill_of_materials, profile


@dataclass(frozen=True)
class Removal:
    """One request and what was done about it; kept in lineage.json under `removed`."""

    number: int
    date: str
    who: str
    reason: str
    selection: dict[str, Any]
    documents: int
    tokens: int
    shards_rewritten: int
    copies_not_restored: int
    proof: dict[str, Any]
    index_deleted: bool = False
    ids: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The same for a person."""
        out = [
            f"removed    {self.documents} documents, {self.tokens} tokens; {self.shards_rewritten} shards rewritten",
            f"proof      {self.proof['documents_checked']} remaining documents in {self.proof['shards_checked']} "
            "shards were read again: none has the tokens of a removed one",
            f"recorded   request {self.number} of {self.date} in lineage.json",
        ]
        if self.copies_not_restored:
            out.append(
                f"note       {self.copies_not_restored} documents were once dropped as copies of removed ones; "
                "build again without these sources to have them"
            )
        if self.index_deleted:
            out.append(
                "note       duplicates/ knew the removed text and is deleted; later builds cannot compare with this one"
            )
        return out


def remove(
    corpus_dir: str | Path,
    *,
    source: str | None = None,
    ids: Sequence[str] = (),
    matching: str | None = None,
    who: str = "",
    reason: str = "",
    date: str = "",
) -> Removal:
    """Take out the documents of `source` (a name or shell pattern), those named, and those whose path, address or
    author matches the regular expression `matching`.

    Raises UsageError where nothing is asked for, nothing matches, or nothing would be left; BrokenFileError where a
    shard is not what the index says; OverlandError where the proof fails (the old corpus then still stands).
    """
    folder = Path(corpus_dir)
    index, table = read_index(folder), read_documents_table(folder)
    lineage = runs.read_json(folder / "lineage.json")
    chosen = _select(table, source, ids, matching)
    present = {
        entry[0] for split in index["splits"].values() for shard in split["shards"] for entry in shard["documents"]
    }
    gone = chosen & present
    if not gone:
        raise UsageError(
            f"corpus remove: no document of {folder} is chosen that is still in its shards; nothing was done"
        )
    if gone == present:
        raise UsageError(f"corpus remove: this would leave nothing of {folder}; delete the folder instead")
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with runs.explain_disk_errors(folder):
            (fresh / "shards").mkdir(parents=True)
            _link_rest(folder, fresh)
            rewritten, tokens, hashes = _rewrite_shards(folder, fresh, index, gone)
            proof = _prove(fresh, index, gone, hashes)
            request = Removal(
                number=len(lineage.get("removed", ())) + 1,
                date=date or datetime.date.today().isoformat(),
                who=who,
                reason=reason,
                selection={"source": source, "ids": list(ids), "matching": matching},
                documents=len(gone),
                tokens=tokens,
                shards_rewritten=rewritten,
                copies_not_restored=_copies_of(table, gone),
                proof=proof,
                index_deleted=(folder / FOLDER).exists(),
                ids=sorted(gone),
            )
            _rewrite_tables(folder, fresh, table, gone, request)
            _rewrite_samples(folder, fresh, chosen)
            _rewrite_lineage(fresh, lineage, index, request)
            runs.replace_folder(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return request


def _select(table: Any, source: str | None, ids: Sequence[str], matching: str | None) -> set[str]:
    if not source and not ids and not matching:
        raise UsageError("corpus remove: say what to remove with --source, --id or --matching")
    try:
        pattern = re.compile(matching, re.IGNORECASE) if matching else None
    except re.error as error:
        raise UsageError(f"--matching '{matching}' is no regular expression: {error}") from error
    known = table["id"].to_pylist()
    chosen = set(ids)
    for unknown in sorted(chosen - set(known)):
        raise UsageError(f"--id {unknown}: the corpus has no such document; overland corpus inspect names them")
    if source:
        names = table["source"].to_pylist()
        if not any(fnmatchcase(name, source) for name in set(names)):
            raise UsageError(f"--source {source}: the corpus has {', '.join(sorted(set(names)))}")
        chosen |= {key for key, name in zip(known, names, strict=True) if fnmatchcase(name, source)}
    if pattern:
        columns = [table[name].to_pylist() for name in ("path", "url", "attribution")]
        for key, *values in zip(known, *columns, strict=True):
            if any(pattern.search(value) for value in values if value):
                chosen.add(key)
    return chosen


def _link_rest(folder: Path, fresh: Path) -> None:
    """Everything that is not written anew, as hard links (copies where the file system has none)."""
    new = {
        *("index.json", "documents.parquet", "decisions.parquet", "lineage.json", "ATTRIBUTION.md"),
        *(CROISSANT, VAULT, REJECTED),
    }
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and str(relative) not in new and relative.parts[0] not in ("shards", FOLDER):
            (fresh / relative).parent.mkdir(parents=True, exist_ok=True)
            _link(path, fresh / relative)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)


def _rewrite_shards(folder: Path, fresh: Path, index: dict[str, Any], gone: set[str]) -> tuple[int, int, set[bytes]]:
    """Shards without the documents in `gone`; (shards rewritten, tokens removed, hashes of the removed documents)."""
    rewritten, removed, hashes = 0, 0, set()
    for split in index["splits"].values():
        shards = []
        for shard in split["shards"]:
            if not any(entry[0] in gone for entry in shard["documents"]):
                _link(folder / shard["file"], fresh / shard["file"])
                shards.append(shard)
                continue
            rewritten += 1
            tokens = open_shard(folder, shard)
            pieces, documents, at = [], [], 0
            for name, start, end, n_bytes in shard["documents"]:
                piece = tokens[start:end]
                if name in gone:
                    removed += end - start
                    hashes.add(hashlib.sha256(piece.tobytes()).digest())
                    continue
                documents.append([name, at, at + end - start, n_bytes])
                pieces.append(piece)
                at += end - start
            if not documents:
                continue
            data = np.concatenate(pieces).tobytes()
            runs.atomic_write(fresh / shard["file"], data)
            shards.append(
                {
                    **shard,
                    "tokens": at,
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "text_bytes": sum(entry[3] for entry in documents),
                    "documents": documents,
                }
            )
        split["shards"] = shards
        split["tokens"] = sum(shard["tokens"] for shard in shards)
        split["text_bytes"] = sum(shard["text_bytes"] for shard in shards)
        split["documents"] = sum(len(shard["documents"]) for shard in shards)
    write_index(fresh, index)
    return rewritten, removed, hashes


def _prove(fresh: Path, index: dict[str, Any], gone: set[str], hashes: set[bytes]) -> dict[str, Any]:
    """Read every shard of the new corpus from the disk: no removed id, no document with a removed one's tokens."""
    checked = shards = 0
    everything = hashlib.sha256()
    for split in index["splits"].values():
        for shard in split["shards"]:
            tokens = open_shard(fresh, shard)  # its length and sha256 are checked here
            shards += 1
            everything.update(bytes.fromhex(shard["sha256"]))
            for name, start, end, _ in shard["documents"]:
                checked += 1
                if name in gone or hashlib.sha256(tokens[start:end].tobytes()).digest() in hashes:
                    raise OverlandError(
                        f"corpus remove: {name} in {shard['file']} still has removed text; nothing changed"
                    )
    return {"documents_checked": checked, "shards_checked": shards, "sha256_of_shards": everything.hexdigest()}


def _copies_of(table: Any, gone: set[str]) -> int:
    reasons = table["reason"].to_pylist()
    copies = (re.search(r"duplicate of ([0-9a-f]{32})", reason) for reason in reasons if reason)
    return sum(match is not None and match[1] in gone for match in copies)


def _rewrite_tables(folder: Path, fresh: Path, table: Any, gone: set[str], request: Removal) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    mask = pc.is_in(table["id"], value_set=pa.array(sorted(gone)))
    empty, zero = pa.scalar(""), pa.scalar(0, pa.int64())
    said = f"removed on request {request.number}: {request.reason or 'no reason given'}"
    new: dict[str, Any] = {
        "decision": pa.scalar(DROPPED), "reason": pa.scalar(said), "split": empty, "sha256_out": empty,
        "tokens": zero, "bytes": zero,
    }  # fmt: skip
    schema = documents_schema()
    columns = [pc.if_else(mask, new[f.name], table[f.name]) if f.name in new else table[f.name] for f in schema]
    _write_parquet(fresh / "documents.parquet", pa.table(columns, schema=schema))
    try:
        decisions = pq.read_table(folder / "decisions.parquet")
    except (OSError, pa.ArrowException) as error:
        raise BrokenFileError(f"{folder}/decisions.parquet: cannot be read ({error})") from error
    who = request.who or "not stated"
    rows = [
        {"id": name, "stage": "removal", "outcome": "drop", "rule": f"request {request.number}", "value": who,
         "threshold": "", "detail": said, "sha256_before": "", "sha256_after": ""}
        for name in request.ids
    ]  # fmt: skip
    more = pa.Table.from_pylist(rows, schema=decisions_schema())
    _write_parquet(fresh / "decisions.parquet", pa.concat_tables([decisions, more]))
    if (folder / VAULT).exists():
        vault = pq.read_table(folder / VAULT)
        _write_parquet(fresh / VAULT, vault.filter(pc.invert(pc.is_in(vault["id"], value_set=pa.array(sorted(gone))))))


def _rewrite_samples(folder: Path, fresh: Path, chosen: set[str]) -> None:
    """rejected.jsonl without the beginnings of what was asked for, though it never was in a shard."""
    if (folder / REJECTED).exists():
        lines = (folder / REJECTED).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["id"] not in chosen]
        runs.atomic_write(fresh / REJECTED, "".join(kept))


def _write_parquet(path: Path, table: Any) -> None:
    import io

    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=ROWS)
    runs.atomic_write(path, sink.getvalue())


def _rewrite_lineage(fresh: Path, lineage: dict[str, Any], index: dict[str, Any], request: Removal) -> None:
    """The bill, the figures and the hashes as they are now; and the request."""
    columns = ("licence", "source", "tokens", "bytes", "attribution", "url", "decision")
    table = read_documents_table(fresh).select(columns).to_pydict()
    rows = zip(*(table[name] for name in columns), strict=True)
    lines = (BillLine(*row[:6]) for row in rows if row[6] != DROPPED)
    licences = lineage.get("recipe", {}).get("licences", "cc")
    try:
        rule = profile(licences).rule
    except UsageError:  # the policy file of the build is elsewhere by now; the licences' own terms count
        rule = profile("none").rule
    bill = bill_of_materials(lines, rule)
    figures = lineage.get("figures", {})
    for name, split in index["splits"].items():
        for unit in ("tokens", "documents"):
            if f"{name}_{unit}" in figures:
                figures[f"{name}_{unit}"] = split[unit]
        if f"{name}_bytes" in figures:
            figures[f"{name}_bytes"] = split["text_bytes"]
    runs.atomic_write(fresh / "ATTRIBUTION.md", attribution_page(bill))
    new = {**lineage, "licences": bill, "figures": figures}
    new["removed"] = [*lineage.get("removed", ()), json.loads(json.dumps(request.to_dict()))]
    runs.write_json(fresh / CROISSANT, describe(fresh, new))
    new["files"] = file_hashes(fresh)
    runs.write_json(fresh / "lineage.json", new)
