"""Formats the document as plain text. Control characters are escaped, so they cannot affect a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from backend.common.clean_text import escape
from backend.common.types import JsonObject

Document = JsonObject


def page(document: Document) -> str:
    """Return the page; its last line is the verdict."""
    sections = (_head, _findings, _devices, _hardware, _missing, _checks, _runtimes, _models, _to_do)
    lines = [line for section in sections for line in section(document)]
    lines += ["", f"Verdict: {document['verdict']['sentence']}"]
    return "\n".join(escape(line) for line in lines)


def missing_page(document: Document) -> str:
    """Return only the section on missing devices."""
    lines = [*_missing(document)][1:] or ["Each card has a ready device."]
    return "\n".join(escape(line) for line in lines)


def _head(document: Document) -> Iterator[str]:
    system, python, server, storage = (document[key] for key in ("system", "python", "server", "storage"))
    wsl = f"WSL {system['wsl']}" if system["wsl"] else "not WSL"
    container = f", in a container ({system['container']})" if system["container"] else ""
    yield f"Touchstone {document['touchstone']}, {document['at']}"
    yield f"System     {system['name']}, {system['machine']}, kernel {system['release']}, {wsl}{container}"
    if system["groups"]:
        yield f"Groups     {', '.join(system['groups'])}"
    yield f"Python     {python['version']}, {python['bits']}-bit, {_venv(python)}, at {python['path']}"
    yield f"Machine    {document['threads']} threads; memory {_size(document['memory_bytes'])}, " + (
        f"{_size(document['memory_free_bytes'])} free"
    )
    if server:
        yield f"Server     {_server(server)}"
    if storage:
        kind = f" ({storage['filesystem']})" if storage["filesystem"] else ""
        yield f"Data       {storage['data_dir']}{kind}, {_size(storage['free_bytes'])} free" + (
            "" if storage["exists"] else ", does not exist yet"
        )
    yield f"Settings   {_pairs(document['settings']) or 'all at their defaults'}"
    yield f"Variables  {_pairs(document['variables']) or 'none relevant'}"


def _findings(document: Document) -> Iterator[str]:
    findings = document["findings"]
    yield ""
    if not findings:
        yield "Findings: none."
        return
    yield f"Findings ({len(findings)}), the most severe first"
    for number, finding in enumerate(findings, 1):
        yield f"  {number}. {finding['level']}, {finding['layer']} [{finding['subject']}]: {finding['detail']}"
        for step in finding["steps"] if not document["system"]["wsl"] else ():
            yield f"     → {_step(step)}"


def _devices(document: Document) -> Iterator[str]:
    yield ""
    yield f"Devices ({len(document['devices'])})"
    if document["default"]:
        yield f"  auto is {document['default']}. {document['default_reason']}"
    for device in document["devices"]:
        runtimes = f", through {' and '.join(device['runtimes'])}" if device["runtimes"] else ""
        yield f"  {device['id']}: {device['state']}, {device['name']} ({device['kind']}{runtimes})"
        if proof := device["proof"]:
            figures = f"largest error {proof['max_abs_error']:g} of {proof['tolerance']:g} allowed, {proof['at']}"
            yield f"      proved by {proof['operation']} {proof['dtype']}: {figures}"
            if proof["evidence"]:
                yield f"      {proof['evidence']}"
        if device["versions"]:
            yield f"      with {_versions(device['versions'])}"
        if device["reason"]:
            yield f"      {device['layer'] + ': ' if device['layer'] else ''}{device['reason']}"
        yield from (f"      {device[key]}" for key in ("remedy", "note") if device[key])


def _hardware(document: Document) -> Iterator[str]:
    yield ""
    yield f"Hardware ({len(document['hardware'])})"
    for item in document["hardware"]:
        facts = [item["kind"], f"memory {_size(item['memory_bytes'])}", f"driver {item['driver'] or 'unknown'}"]
        facts += [item[key] for key in ("pci_ids", "architecture", "render_node") if item[key]]
        yield f"  {item['id']}: {item['name']} ({', '.join(facts)})"
        yield f"      devices: {', '.join(item['devices']) or 'none'}"
        yield from (f"      {note}" for note in (*item["hidden_by"], item["reason"], item["remedy"]) if note)


def _missing(document: Document) -> Iterator[str]:
    """Yield, for each card without a ready device, what bus, driver and runtimes reported and the first thing to do."""
    if document["missing"]:
        yield ""
        yield f"Why is my device missing? ({len(document['missing'])})"
    for item in document["missing"]:
        yield f"  {item['name']}"
        yield f"      Bus:      {item['bus']}"
        yield f"      Driver:   {item['driver']}"
        yield f"      Runtimes: {item['runtimes']}"
        yield f"      First:    {item['remedy']}"


def _checks(document: Document) -> Iterator[str]:
    """Yield the checks that passed; the others are findings."""
    passed = [check for check in document["checks"] if check["verdict"] == "ok"]
    if passed:
        yield ""
        yield f"Passed checks ({len(passed)})"
        yield from (f"  {check['layer']}: {check['detail']}" for check in passed)


def _runtimes(document: Document) -> Iterator[str]:
    yield ""
    yield f"Runtimes ({len(document['runtimes'])})"
    for runtime in document["runtimes"]:
        python = runtime["interpreter"]
        if python is None:
            yield f"  {runtime['name']}: {runtime['python']}: {runtime['trouble']}"
            continue
        about = f"{python['bits']}-bit, {_venv(python)}, at {runtime['python']}"
        yield f"  {runtime['name']}: Python {python['version']}, {about}"
        yield f"      {_versions(runtime['packages']) or 'no relevant package'}"
        if runtime["torch"]:
            built = [f"{kind} {word}" for kind, word in runtime["torch"].items() if word and kind != "version"]
            yield f"      torch {runtime['torch']['version']} was built for {', '.join(built) or 'the processor'}"


def _models(document: Document) -> Iterator[str]:
    yield ""
    yield f"Models ({len(document['models'])})"
    for model in document["models"]:
        default = ", a default" if model["default"] else ""
        yield f"  {model['id']}: {model['state']}, {_size(model['bytes'])}{default}"
        yield from (f"      {model[key]}" for key in ("reason", "remedy") if model[key])
    for notice in document["notices"]:
        yield f"  {notice['file']}: {notice['detail']}"
        yield f"      {notice['remedy']}"


def _to_do(document: Document) -> Iterator[str]:
    """Yield, under WSL only, one list of steps for Windows and one for Linux."""
    if not document["system"]["wsl"]:
        return
    for where, title in (("windows", "What to do in Windows"), ("here", "What to do in this Linux")):
        steps = [
            f"  {_step(step)}  (finding {number})"
            for number, finding in enumerate(document["findings"], 1)
            for step in finding["steps"]
            if step["where"] == where
        ]
        yield ""
        yield f"{title} ({len(steps)})"
        yield from steps or ["  No steps."]


def _step(step: JsonObject) -> str:
    return f"{step['do'].rstrip('.')}: {step['command']}" if step["command"] else str(step["do"])


def _server(server: JsonObject) -> str:
    if server["url"]:
        return f"runs at {server['url']}"
    states = {"free": "is free", "taken": "is taken", "forbidden": "is not permitted"}
    state = states.get(server["port_state"] or "", "was not checked")
    return f"none runs on this data; port {server['port']} of {server['host']} {state}"


def _venv(python: JsonObject) -> str:
    return "a virtual environment" if python["venv"] else "no virtual environment"


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def _pairs(values: JsonObject) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _size(size: int | None) -> str:
    return f"{size / 1e9:.1f} GB" if size is not None else "unknown"
