"""The documentation of the JSON API as one page, made from its OpenAPI description: no script, no network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tellapart.html import escaped, page

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_STYLE = """
code, pre { font: .9em ui-monospace, monospace; } pre { overflow-x: auto; white-space: pre-wrap; }
h2 code { color: var(--ink); font-size: 1em; } table { border-collapse: collapse; margin: .5rem 0; }
td, th { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; }
a { color: inherit; }
"""


def html(description: dict[str, Any]) -> bytes:
    sections = "".join(
        _section(method, path, operation)
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    )
    schemas = description.get("components", {}).get("schemas", {})
    sections += "".join(_schema(name, schema) for name, schema in schemas.items())
    info = description["info"]
    return page(f"{info['title']} {info['version']}", info["description"], sections, style=_STYLE)


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<h2><code>{escaped(method.upper())} {escaped(path)}</code></h2>", _text(operation)]
    parameters = operation.get("parameters", [])
    if parameters:
        parts.append(_table((one["name"], f"{one['in']}, {_type(one['schema'])}") for one in parameters))
    for type, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Request: {escaped(type)}, {_type(content['schema'])}</p>")
    for type, content in operation["responses"].get("200", {}).get("content", {}).items():
        parts.append(f"<p>Answer: {escaped(type)}, {_type(content.get('schema', {}))}</p>")
    return f"<section>{''.join(parts)}</section>\n"


def _schema(name: str, schema: dict[str, Any]) -> str:
    fields = _table((field, _type(value)) for field, value in schema.get("properties", {}).items())
    return f'<section id="{escaped(name)}"><h2>{escaped(name)}</h2>{_text(schema)}{fields}</section>\n'


def _text(found: dict[str, Any]) -> str:
    text = found.get("description") or found.get("summary") or ""
    return f"<p>{escaped(text)}</p>" if text else ""


def _table(rows: Iterator[tuple[str, str]]) -> str:
    lines = "".join(f'<tr><th scope="row">{escaped(name)}</th><td>{type}</td></tr>' for name, type in rows)
    return f"<table>{lines}</table>" if lines else ""


def _type(schema: dict[str, Any]) -> str:
    """As HTML."""
    if "$ref" in schema:
        name = escaped(schema["$ref"].rsplit("/", 1)[1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f"<code>{escaped(str(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escaped(str(schema['const']))}</code>"
    kind = escaped(str(schema.get("type", "any")))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    default = f", default {escaped(repr(schema['default']))}" if "default" in schema else ""
    return kind + default
