"""Blocks of the documentation on what was measured of real devices, of a Ray cluster, and computed of privacy."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from fedcodist.reports import tables

WIDTH = 140
SAID = {"poisson": "drawn singly, in secret", "without_replacement": "cohorts of 20, in secret", "none": "cohorts are public"}


def privacy(file: Path) -> str:
    """Epsilon by noise and assumption."""
    found = json.loads(file.read_text("utf-8"))
    said = (
        f"{found['rounds']:,} rounds, delta {found['delta']:g}, cohorts of {found['cohort']}, {found['clients']['small']} clients in the "
        f"small pool and {found['clients']['large']} of them in the large one too ({found['accountant']}):"
    )
    rows = [
        {
            "assumed": SAID[row["sampling"]],
            "noise": f"{row['noise']:g}",
            "epsilon, only in the small pool": f"{row['small']:,.1f}",
            "only in the large pool": f"{row['large']:,.1f}",
            "in both": f"{row['both']:,.1f}",
        }
        for row in found["rows"]
    ]
    first = {row["sampling"]: row["small"] for row in reversed(found["rows"])}
    end = f"So at noise {found['rows'][0]['noise']:g} one run may be called {_listed([f'{e:,.0f}' for e in sorted(first.values())])}."
    return "\n".join([textwrap.fill(said, WIDTH), "", tables.render(rows, "md"), "", end])


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def deploy(file: Path) -> str:
    """What `make test-deploy` measured last of each of its parts."""
    found = json.loads(file.read_text("utf-8"))
    on = found["on"]
    lines = [
        f"Six devices over loopback on {on['cores']} cores of an {on['cpu']}, which other work used meanwhile "
        f"(Python {on['python']}, jax {on['jax']}):",
        "",
    ]
    if small := found.get("small"):
        lines.append(
            f"- Gaussian classes, {small['rounds']} rounds, from `deploy local` to its end: {small['seconds']} s ({small['date']})."
        )
    for method, label in (("merged", "MergedCodist"), ("periodic", "PeriodicCodist")):
        if one := found.get(method):
            lines.append(
                f"- {label} on the embedded images, {one['rounds']} rounds of {_range(one['round_seconds'])} s: "
                f"{_same(one)} ({one['date']}). Of {one['tensors_to_low']} tensors in {one['messages_to_low']} messages to devices of low "
                f"capacity {one['of_them_to_low']} were among the {one['large_tensors']} that the large model had; a message to one had "
                f"{one['bytes_to_low'] / 1e6:.2f} MB, to one of high capacity {one['bytes_to_high'] / 1e6:.2f} MB."
            )
    if one := found.get("offenders"):
        said = "; ".join(", ".join(reasons) for reasons in one["reasons"])
        lines.append(
            f"- {one['offences']} offences by two of the six in four rounds, dropped as: {said}. {_same(one).capitalize()} without the two "
            f"({one['date']})."
        )
    if one := found.get("kills"):
        rows = ", ".join(
            f"{name} (back after {times['back_seconds']} s, the next round over "
            f"{times['next_round_seconds'] - times['back_seconds']} s later)"
            for name, times in one["killed"].items()
        )
        lines.append(f"- Killed with `kill -9`, each once: {rows}; {_same(one)} ({one['date']}).")
    if one := found.get("random"):
        rows = ", ".join(f"{many} {name}" for name, many in sorted(one["killed"].items()))
        lines.append(
            f"- {sum(one['killed'].values())} kills at random times within {one['seconds']} s ({rows}): the run went on, "
            f"{one['rounds']} rounds, {one['rounds_in_full']} of them with all clients of both cohorts ({one['date']})."
        )
    return "\n".join(line if not line.startswith("- ") else textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)


def _same(one: dict[str, Any]) -> str:
    if "same_bits" not in one:
        return "whether the models equal those of the simulation was not shown by this run"
    return "byte-equal to the simulation" if one["same_bits"] else "NOT equal to the simulation"


def _range(seconds: list[int]) -> str:
    return f"{min(seconds)} to {max(seconds)}"


def ray(file: Path) -> str:
    """What `make test-ray` measured last."""
    found = json.loads(file.read_text("utf-8"))
    on, over, memory = found["on"], found["overhead"], found["memory"]
    cases, sides = ", ".join(found.get("identical", ())), memory["after"]
    low, high = over["times"]
    grown = [f"{1 + (b - a) / a:.2f}" for a, b in zip(sides[0]["rss"], sides[1]["rss"], strict=True)]
    lines = [
        f"Two actors on {on['cores']} cores of an {on['cpu']}, in a network namespace ({found['date']}, Python {on['python']}, "
        f"jax {on['jax']}):",
        "",
        *([f"- The bytes of `compiled` with one and with two workers: {cases}."] if cases else []),
        f"- {found['lost']['killed']} actors killed in the middle of a round: {_same_bytes(found['lost']['same'])}.",
        f"- {memory['rounds']} rounds: resident memory of this process and the two actors in the end, over that after 20 rounds: "
        f"{', '.join(grown)}; in the object store {sides[1]['store'] / 2**20:.1f} MiB, after 20 rounds {sides[0]['store'] / 2**20:.1f}.",
        f"- Overhead, rounds of 20 clients and the paper's small CNN by turns with two threads of `compiled`: "
        f"{over['cpu']:.3f} times the work of the processor, {over['time']:.3f} times the time (medians of {over['turns']} turns; time "
        f"{low:.2f} to {high:.2f}; a round took {over['ms']} ms with a load of {over['load']:g} on the machine).",
        f"- A cluster that was there before, by its address: {_same_bytes(found['address']['same'])}, and it stays.",
        f"- {found['trials']['trials']} trials of `tune` and {found['cells']['runs']} runs of `reproduce` spread over it: equal to "
        f"those of one process, {found['cells']['files']} files byte by byte.",
    ]
    return "\n".join(line if not line.startswith("- ") else textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)


def _same_bytes(same: bool) -> str:
    return "the same bytes" if same else "OTHER bytes"
