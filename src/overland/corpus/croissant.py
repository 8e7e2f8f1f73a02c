"""Croissant metadata (MLCommons, version 1.1): what a corpus holds, under which licences, derived from what.

The tables are files with hashes, their rows a record set; the shards are a file set. A reader of Croissant can load
`documents` and `decisions` from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overland import runs
from overland.corpus.parts import decisions_schema, documents_schema

CROISSANT = "croissant.json"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_ABOUT = {
    "id": "Stable name: where the document came from and what it held.",
    "licence": "The part of the licence expression that is relied upon.",
    "licence_evidence": "What says so.",
    "decision": "kept, trimmed or dropped.",
    "sha256_in": "Of the bytes that were read.",
    "sha256_out": "Of the text that was tokenised.",
    "stage": "What decided.",
    "threshold": "What the value was held against.",
}


def describe(folder: Path, lineage: dict[str, Any]) -> dict[str, Any]:
    """croissant.json for the corpus in `folder`, whose tables are written."""
    licences = lineage["licences"]
    urls = [url for entry in licences.values() for url in entry["urls"]] or list(licences)
    sources = sorted({source for entry in licences.values() for source in entry["sources"]})
    tables = {"documents": documents_schema(), "decisions": decisions_schema()}
    shards = {
        "@type": "cr:FileSet",
        "@id": "shards",
        "name": "shards",
        "description": "Tokens, little-endian; index.json says which documents lie where.",
        "containedIn": {"@id": "folder"},
        "encodingFormat": "application/octet-stream",
        "includes": "shards/*.bin",
    }
    files = [_file(folder, f"{name}.parquet", "application/x-parquet") for name in tables]
    files += [_file(folder, name, "application/json") for name in ("index.json", "tokenizer.json")]
    container = {
        "@type": "cr:FileObject",
        "@id": "folder",
        "name": "folder",
        "description": "The corpus folder.",
        "contentUrl": "./",
        "encodingFormat": "inode/directory",
        "sha256": runs.sha256_file(folder / "index.json"),
    }
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": "overland-corpus",
        "description": f"Tokenised text under {', '.join(licences)}, with one row for every document and decision.",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "version": "1.0.0",
        "license": urls,
        "url": f"urn:sha256:{lineage['recipe_sha256']}",
        "prov:wasDerivedFrom": sources,
        "distribution": [container, *files, shards],
        "recordSet": [_record_set(name, schema) for name, schema in tables.items()],
    }


def _file(folder: Path, name: str, kind: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "encodingFormat": kind,
        "sha256": runs.sha256_file(folder / name),
    }


def _record_set(name: str, schema: Any) -> dict[str, Any]:
    import pyarrow as pa

    fields = []
    for column in schema:
        if pa.types.is_nested(column.type):  # spans and counts: their columns are read with pyarrow
            continue
        kind = "sc:Integer" if pa.types.is_integer(column.type) else "sc:Text"
        fields.append(
            {
                "@type": "cr:Field",
                "@id": f"{name}/{column.name}",
                "name": column.name,
                "description": _ABOUT.get(column.name, column.name.replace("_", " ")),
                "dataType": kind,
                "source": {"fileObject": {"@id": f"{name}.parquet"}, "extract": {"column": column.name}},
            }
        )
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}
