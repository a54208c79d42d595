"""From measured rounds to numbers and words: medians, paired ratios against ours, shares of the machine's limit, and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

OURS = "fedcodist"
STEADY = 0.9  # of its best is what the FMA loop reaches in three of four turns on a machine that nobody else uses
QUIET = 0.1  # the share of the cores that others may take during a round worth quoting
RSS_GOAL_MB, CLIENT_GOAL, OVERHEAD_GOAL = 200, 0.15, 0.05  # spread of memory, of the time of a client, and all that is not training
GOALS = {  # {benchmark: {workload: {side: how many times longer its round should take, or for us the share of the limit}}}
    "peers": {"w1-small-20": {"pfl": 3.5, "fedjax": 4.5, "flower": 5.0, OURS: 0.5}},
    "peers-portable": {
        "w1-small-20": {"torch": 2.5, "pfl": 1.7, "fedlab": 2.0, "fedjax": 2.5, "flower": 3.5},
        "w1-large-20": dict.fromkeys(("torch", "pfl", "fedlab", "fedjax", "flower"), 1.5),
    },
    "bench": {"w3": {"torch": 2.5}},
}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and range.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    {'median': 3.0, 'q1': 2.0, 'q3': 4.0, 'low': 1.0, 'high': 5.0}
    """
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "q1": q1, "q3": q3, "low": min(values), "high": max(values)}


def summary(rounds: Sequence[Mapping[str, Any]], flops: float, limit: float | None, done: float = 1.0) -> dict[str, Any]:
    """The measured rounds of one side. A GFLOP/s is of the median round, and of all that the model asks for; the share of the limit is of
    what was really done of it, `done`."""
    seconds = spread([r["seconds"] for r in rounds])
    speed = flops / seconds["median"] / 1e9
    return {
        "ms": {name: 1e3 * value for name, value in seconds.items()},
        "cpu_ms": 1e3 * statistics.median(r["cpu_seconds"] for r in rounds),
        "others": statistics.median(r["others"] for r in rounds),
        "gflops": speed,
        "done": done,
        "of_limit": done * speed / limit if limit else None,
    }


def ratios(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Their round time over ours, turn by turn: what disturbs the machine in a turn disturbs both."""
    return spread([a["seconds"] / b["seconds"] for a, b in zip(theirs, ours, strict=True)])


def limit_of(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The best of the samples that were taken between the rounds: what disturbs one only makes it lower."""
    return {name: max(s[name] for s in samples) for name in samples[0]} if samples else {}


def top_of(limit: Mapping[str, float]) -> float | None:
    """The limit of all cores of a side: the loop's, or where there is no compiler the matrix product's."""
    return limit.get("fma_all") or limit.get("sgemm_all")


def limits_said(limit: Mapping[str, float]) -> str:
    """The limits in a sentence.

    >>> limits_said({"fma_1": 120.4, "fma_all": 239.9})
    "The machine's limit in this run, GFLOP/s (1 core, all cores of a side): fma 1 120, fma all 240."
    """
    said = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in limit.items())
    return f"The machine's limit in this run, GFLOP/s (1 core, all cores of a side): {said}."


def table(results: Sequence[Mapping[str, Any]], absent: Mapping[str, str]) -> str:
    """All workloads as Markdown; a side that failed has its reason in its row."""
    lines = []
    for found in results:
        lines += [f"### {found['workload']}: {found['says']}; {found['turns']} turns", ""]
        lines.append("| side | ms median (quartiles) | ms best | times ours: median (quartiles; range) | CPU ms | GFLOP/s | of the limit |")
        lines[-1] += " peak RSS MB | first round s | left out |"
        lines.append("|---|---|---|---|---|---|---|---|---|---|")
        for side, s in found["sides"].items():
            lines.append(f"| {side} | {s['failed']} |" + " |" * 8 if "failed" in s else _row(side, s, absent.get(side, "nothing")))
        if found["limit"]:
            lines.append(f"\n{limits_said(found['limit'])} A round: {found['gflop']:.1f} GFLOP.")
        if found["limit"] and any(s.get("done", 1) < 1 for s in found["sides"].values()):
            lines[-1] += " GFLOP/s are of these; the share of the limit is of the multiplications that are really done."
        lines += [f"\nNOT QUIET: {why}. Do not quote this." for why in doubts(found)]
        lines.append("")
    return "\n".join(lines)


def goals(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """What the benchmark is to show, and whether it did, in a table; nothing where there are no goals."""
    rows = []
    for found in results:
        for side, goal in GOALS.get(name, {}).get(found["workload"], {}).items():
            s = found["sides"].get(side, {})
            if side == OURS:
                reached, wanted, form, what = s.get("of_limit"), f"{goal:.0%}", ".0%", "of the limit"
            else:
                reached, wanted, form, what = s.get("ratio", {}).get("median"), f"{goal:g}", ".2f", "times ours"
            shown = "" if reached is None else f"{reached:{form}}"
            met = _met(reached is not None and reached >= goal)
            rows.append(f"| {found['workload']} | {side}, {what} | {wanted} | {shown} | {met} |")
    return "\n".join(["| workload | side | goal | median | |", "|---|---|---|---|---|", *rows, ""]) if rows else ""


def doubts(found: Mapping[str, Any]) -> list[str]:
    """Why a workload's numbers are worth nothing, if they are: somebody else used the machine."""
    said = []
    if loud := [f"{s['others']:.0%} in the rounds of {side}" for side, s in found["sides"].items() if s.get("others", 0) > QUIET]:
        said.append(f"others took more than {QUIET:.0%} of the cores: {', '.join(loud)}")
    limit = found["limit"]
    above = [side for side, s in found["sides"].items() if (s.get("of_limit") or 0) > 1]
    if limit.get("sgemm_all", 0) > limit.get("fma_all", float("inf")):
        above.append("the matrix product")
    if above:
        said.append(f"the machine's limit was measured beside others, and {', '.join(above)} is above it")
    return said


def in_short(found: Mapping[str, Any]) -> str:
    """A workload in a line.

    >>> ms = {"ms": {"median": 20.4}}
    >>> in_short({"turns": 3, "sides": {OURS: ms, "torch": {"ratio": {"median": 2.04}}, "pfl": {"failed": "no wheel"}}, "limit": {}})
    'ours 20 ms; torch 2.0 times that, pfl failed; 3 turns'
    """
    sides = dict(found["sides"])
    ours = sides.pop(OURS)
    said = [f"ours {ours['ms']['median']:.0f} ms" if "ms" in ours else "ours failed"]
    if others := [_times(side, s) for side, s in sides.items()]:
        said.append(", ".join(others))
    return "; ".join([*said, f"{found['turns']} turns", *(["NOT QUIET"] if doubts(found) else [])])


def _times(side: str, s: Mapping[str, Any]) -> str:
    return f"{side} {s['ratio']['median']:.1f} times that" if "ratio" in s else f"{side} failed" if "failed" in s else side


def _row(side: str, s: Mapping[str, Any], absent: str) -> str:
    ms, times = s["ms"], s.get("ratio")
    said = "1" if side == OURS else "" if times is None else f"**{times['median']:.2f}** ({times['q1']:.2f}-{times['q3']:.2f}; "
    if times is not None and side != OURS:
        said += f"{times['low']:.2f}-{times['high']:.2f})"
    share = "" if s["of_limit"] is None else f"{s['of_limit']:.0%}"
    numbers = (
        f"{ms['median']:.0f} ({ms['q1']:.0f}-{ms['q3']:.0f}) | {ms['low']:.0f} | {said} | {s['cpu_ms']:.0f} | {s['gflops']:.1f} | {share}"
    )
    return f"| {side} | {numbers} | {s['rss_mb']:.0f} | {s['first_seconds']:.1f} | {absent} |"


def versions(results: Sequence[Mapping[str, Any]]) -> str:
    """What ran, in one line a side."""
    seen: dict[str, str] = {}
    for found in results:
        for side, s in found["sides"].items():
            if "versions" in s:
                seen[side] = ", ".join(f"{name} {value}" for name, value in s["versions"].items())
    return "\n".join(f"- {side}: {said}" for side, said in seen.items())


def scaled(turns: Sequence[Mapping[int, Mapping[str, float]]], rss: Mapping[int, float]) -> dict[str, Any]:
    """Turns of rounds of different sizes in short. A time is compared with that of the fewest clients in the same turn.

    >>> turns = [{20: {"ms_a_client": 4.0, "others": 0.0}, 500: {"ms_a_client": ms, "others": 0.0}} for ms in (4.0, 4.4, 9.0)]
    >>> scaled(turns, {20: 300.0, 500: 310.0})["cohorts"][500]
    {'ms_a_client': 4.4, 'slower': 1.1, 'others': 0.0, 'rss_mb': 310.0}
    """
    least, cohorts = min(rss), {}
    for n in rss:
        ms, others = (statistics.median(turn[n][what] for turn in turns) for what in ("ms_a_client", "others"))
        slower = statistics.median(turn[n]["ms_a_client"] / turn[least]["ms_a_client"] for turn in turns)
        cohorts[n] = {"ms_a_client": ms, "slower": round(slower, 4), "others": others, "rss_mb": rss[n]}
    return {"cohorts": cohorts}


def loud(found: Mapping[str, Any]) -> bool:
    """Whether others used the machine in the rounds of different sizes."""
    return any(c["others"] > QUIET for c in found["cohorts"].values())


def scaling_table(found: Mapping[str, Any]) -> str:
    """Peak memory and the time of a client over the clients of a round."""
    lines = ["| clients of a round | ms a client, median | of the fewest's, paired | peak RSS MB |", "|---|---|---|---|"]
    for n, c in found["cohorts"].items():
        lines.append(f"| {n} | {c['ms_a_client']:.2f} | {c['slower']:.2f} | {c['rss_mb']:.0f} |")
    rss, client = ([c[what] for c in found["cohorts"].values()] for what in ("rss_mb", "slower"))
    memory, slower = max(rss) - min(rss), max(client) / min(client) - 1
    lines.append(
        f"\n{found['workload']}, most less least, {found['turns']} turns: {memory:.0f} MB ({_met(memory < RSS_GOAL_MB)}, goal below "
        f"{RSS_GOAL_MB} MB), a client's time {slower:.0%} ({_met(slower < CLIENT_GOAL)}, goal within {CLIENT_GOAL:.0%})"
    )
    if loud(found):
        lines.append(f"\nNOT QUIET: others took more than {QUIET:.0%} of the cores. Do not quote this.")
    return "\n".join(lines)


def overhead_table(found: Mapping[str, Any]) -> str:
    """What a round costs beside the clients' training, and what share of the machine's limit the training reaches."""
    share = found["overhead_ms"] / found["round_ms"]
    met = _met(share < OVERHEAD_GOAL)
    lines = [
        "| a W1 round | ms, median |",
        "|---|---|",
        f"| whole, with its journal | {found['round_ms']:.1f} |",
        f"| clients' training, with reading and folding | {found['clients_ms']:.1f} |",
        f"| the rest: sampling, server step, journal | {found['overhead_ms']:.1f} ({share:.1%}, {met}, goal below {OVERHEAD_GOAL:.0%}) |",
        f"| of which the journal | {found['journal_ms']:.2f} |",
        f"| a checkpoint, beside all this | {found['checkpoint_ms']:.1f} |",
        "",
    ]
    speed, goal = found["gflops"], GOALS["peers"][found["workload"]][OURS]
    said = f"The clients' training, {found['rounds']} rounds: {speed['median']:.0f} GFLOP/s ({speed['q1']:.0f}-{speed['q3']:.0f})"
    if "limit" not in found:
        return "\n".join([*lines, f"{said}. There is no compiler, so the machine's limit is not measured."])
    of, top = found["of_limit"], found["limit"]
    said += (
        f", and in multiplications really done {of['median']:.0%} ({of['q1']:.0%}-{of['q3']:.0%}) of what a loop of FMAs on the same "
        "cores reached right before each round "
    )
    said += f"({_met(of['median'] >= goal)}, goal {goal:.0%}). That loop: {top['median']:.0f} GFLOP/s ({top['q1']:.0f}-{top['q3']:.0f})."
    return "\n".join([*lines, said, *(f"\nNOT QUIET: {why}. Do not quote the share." for why in unsteady(found))])


def unsteady(found: Mapping[str, Any]) -> list[str]:
    """Why a share of the limit is worth nothing, if it is: the loop itself was disturbed in many of its turns."""
    top = found.get("limit")
    return (
        [f"in a quarter of its turns the loop had less than {STEADY:.0%} of its best"] if top and top["q1"] < STEADY * top["high"] else []
    )


def profile_table(found: Mapping[str, Any]) -> str:
    """Where the time of a round goes. Names that end with (threads) run beside the others, and processor time is of all threads."""
    names = list(dict.fromkeys(name for of in found["rounds"] for name in of["ms"]))
    lines = [
        "| ms, median of a round | " + " | ".join(of["workload"] for of in found["rounds"]) + " |",
        "|---" * (1 + len(found["rounds"])) + "|",
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{of['ms'][name]:.1f}" if name in of["ms"] else "" for of in found["rounds"]) + " |" for name in names
    ]
    told = [f"{of['share']:.0%} in {of['workload']}" for of in found["rounds"]]
    lines += ["", f"Of the cores' time in a round the process used {', '.join(told)}; the rest is waiting of any kind.", ""]
    for size, step in found["steps"].items():
        share = f"{step['see']:.0f} ({step['see'] / step['step']:.0%})"
        lines.append(f"A {size} client's step: {step['step']:.0f} us on one core, of which crop, flip and standardisation {share}.")
    return "\n".join(lines)


def _met(yes: bool) -> str:
    return "met" if yes else "MISSED"
