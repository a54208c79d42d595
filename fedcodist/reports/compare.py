"""What recorded runs say about each other: arms, paired differences with intervals, teaching, cost, and a verdict in plain words.

A run and its FedAvg twin share the seed, and with it the initial models, the cohorts and the batches, so differences are taken seed by
seed and only then averaged; most of what varies between seeds cancels. Intervals are Student's t over these paired differences. A run
is anything with `path`, `config`, `rounds`, `timing`, `result` and `notes`; whatever is missing in them (a run that crashed, a file that
is not ours) is missing in the answer too, and never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedcodist.errors import ConfigError

LABELS = {"fedavg": "FedAvg", "periodic": "PeriodicCodist", "merged": "MergedCodist"}
TWIN = "fedavg"
ONE_SEED = "one seed: no interval"
COSTS = ("client_bytes", "client_flops", "server_flops", "server_steps")


@dataclass(frozen=True)
class Arm:
    """All runs of one method in one experiment, by seed."""

    name: str
    kind: str
    label: str  # the method's name; with the experiment's in front where there is more than one
    runs: tuple[Any, ...]

    @property
    def finished(self) -> tuple[Any, ...]:
        return tuple(run for run in self.runs if finished(run))

    @property
    def told(self) -> tuple[Any, ...]:
        """The runs that means are taken over: those that finished; if none did, all, as far as they got."""
        return self.finished or self.runs

    @property
    def short(self) -> str:
        """The label without the word that all of these methods share: for the narrow places of a plot."""
        return self.label.removesuffix("Codist") or self.label


def arms(runs: Iterable[Any]) -> list[Arm]:
    """The runs as arms: the twin first, then the methods of this package, then others. Of two runs with one seed the last counts."""
    groups: dict[tuple[str, str], dict[Any, Any]] = {}
    for run in runs:
        groups.setdefault((name_of(run), kind_of(run)), {})[seed_of(run)] = run
    known, several = list(LABELS), len({name for name, _ in groups}) > 1

    def place(group: tuple[str, str]) -> tuple[str, int, str]:
        name, kind = group
        return name, known.index(kind) if kind in known else len(known), kind

    found = []
    for name, kind in sorted(groups, key=place):
        by_seed = groups[name, kind]
        label = LABELS.get(kind, kind)
        ordered = tuple(by_seed[seed] for seed in sorted(by_seed, key=lambda s: (isinstance(s, str), s)))
        found.append(Arm(name, kind, f"{name}: {label}" if several else label, ordered))
    return found


def twin_of(arm: Arm, among: Iterable[Arm]) -> Arm | None:
    """The FedAvg arm of the same experiment."""
    return next((other for other in among if other.name == arm.name and other.kind == TWIN and arm.kind != TWIN), None)


def dig(table: Any, *keys: Any) -> Any:
    """The value under nested keys, or None where there is none.

    >>> dig({"a": {"b": 1}}, "a", "b"), dig({"a": 3}, "a", "b")
    (1, None)
    """
    for key in keys:
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def mean(values: Iterable[float | None]) -> float | None:
    """Over the values that are there."""
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def finished(run: Any) -> bool:
    """Whether the run got to its end."""
    return isinstance(run.result, dict)


def name_of(run: Any) -> str:
    return str(dig(run.config, "name") or "run")


def kind_of(run: Any) -> str:
    return str(dig(run.config, "method", "kind") or dig(run.result, "method") or run.path.parent.name or "unknown")


def seed_of(run: Any) -> int | str:
    """The seed that the result or the directory says; the directory's name where neither does."""
    said = dig(run.result, "seed")
    if isinstance(said, int):
        return said
    match = re.fullmatch(r"seed-(\d{1,19})", run.path.name)
    return int(match[1]) if match else run.path.name


def rows_of(run: Any) -> list[dict[str, Any]]:
    """The recorded rounds that can be read as such, in order."""
    rows = (row for row in run.rounds or () if isinstance(row, dict) and isinstance(row.get("round"), int))
    return sorted(rows, key=lambda row: row["round"])


def rounds_done(run: Any) -> int:
    return max((row["round"] for row in rows_of(run)), default=0)


def rounds_planned(run: Any) -> int | None:
    planned = dig(run.config, "rounds")
    return planned if isinstance(planned, int) else dig(run.result, "rounds")


def parameters(runs: Iterable[Any]) -> dict[str, int]:
    """{pool: size of its model}, as far as results say."""
    return {p: n for run in runs for p, n in (dig(run.result, "parameters") or {}).items() if number(n) is not None}


def pools(runs: Iterable[Any]) -> list[str]:
    """The pools of these runs, by the size of their models, then as declared."""
    runs = list(runs)
    declared: dict[str, None] = {}
    for run in runs:
        said = (dig(run.config, "pools"), dig(run.result, "parameters"), dig(run.result, "test"))
        for table in (*said, *(table for row in rows_of(run) for table in (row.get("pools"), row.get("held_out")))):
            declared |= dict.fromkeys(table if isinstance(table, dict) else ())
    size = parameters(runs)
    return sorted(declared, key=lambda pool: size.get(pool, math.inf))


def domains(runs: Iterable[Any]) -> list[str]:
    """The domains that these runs were measured on, `all` first."""
    seen: dict[str, None] = {}
    for run in runs:
        tables = [dig(run.result, "test"), dig(run.result, "held_out"), *(row.get("held_out") for row in rows_of(run))]
        for table in tables:
            for of_pool in table.values() if isinstance(table, dict) else ():
                seen |= dict.fromkeys(of_pool if isinstance(of_pool, dict) else ())
    return sorted(seen, key=lambda domain: domain != "all")


def headline(runs: Iterable[Any]) -> str | None:
    """The domain that a verdict speaks of: all of them together, where that was measured."""
    return next(iter(domains(runs)), None)


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; of one value there is none."""
    return stdev(values) if len(values) > 1 else None


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; of one value there is none.

    >>> low, high = t_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # jax brings scipy; loaded only here to keep the command line quick

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def by_seed(runs: Iterable[Any]) -> dict[Any, Any]:
    """{seed: run} of the runs that finished."""
    return {seed_of(run): run for run in runs if finished(run)}


def paired(a_runs: Iterable[Any], b_runs: Iterable[Any], split: str = "test", metric: str = "accuracy") -> list[dict[str, Any]]:
    """b against a, for each pool and domain: means over the seeds that both have, and the mean difference with its 95 % interval."""
    a, b = by_seed(a_runs), by_seed(b_runs)
    both = [(a[seed], b[seed]) for seed in a if seed in b]
    everyone = [run for pair in both for run in pair]
    rows = []
    for pool in pools(everyone):
        for domain in domains(everyone):
            values = [tuple(number(dig(run.result, split, pool, domain, metric)) for run in pair) for pair in both]
            known = [(x, y) for x, y in values if x is not None and y is not None]
            if not known:
                continue
            gains = [y - x for x, y in known]
            low, high = t_interval(gains) or (None, None)
            rows.append(
                {"pool": pool, "domain": domain, "metric": metric, "a": fmean(x for x, _ in known), "b": fmean(y for _, y in known)}
                | {"difference": fmean(gains), "spread": spread(gains), "low": low, "high": high, "seeds": len(known)}
                | {"note": ONE_SEED if len(known) == 1 else ""}
            )
    return rows


def results(runs: Iterable[Any], split: str = "test") -> list[dict[str, Any]]:
    """What each arm reached: a row for each arm, pool and domain, with the paired gain over its twin where there is one."""
    everyone = arms(runs)
    rows = []
    for arm in everyone:
        twin = twin_of(arm, everyone)
        gains = {(row["pool"], row["domain"]): row for row in (paired(twin.runs, arm.runs, split) if twin else ())}
        for pool in pools(arm.finished):
            for domain in domains(arm.finished):
                known = [v for run in arm.finished if (v := number(dig(run.result, split, pool, domain, "accuracy"))) is not None]
                if known:
                    gain = gains.get((pool, domain)) or dict.fromkeys(("difference", "low", "high"))
                    rows.append(
                        {"method": arm.label, "pool": pool, "domain": domain, "seeds": len(known), "accuracy": fmean(known)}
                        | {"spread": spread(known), "gain": gain["difference"], "low": gain["low"], "high": gain["high"]}
                    )
    return rows


def for_eyes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `results` in percent and points.

    >>> row = {"method": "FedAvg", "pool": "small", "domain": "all", "seeds": 2, "accuracy": 0.5, "spread": 0.01}
    >>> for_eyes([row | {"gain": 0.02, "low": -0.01, "high": 0.05}])[0]["gain, points"]
    '+2.0 [-1.0, 5.0]'
    """
    told = []
    for row in rows:
        gain = "" if row["gain"] is None else points(row["gain"], sign=True)
        interval = "" if row["low"] is None else f" [{points(row['low'])}, {points(row['high'])}]"
        accuracy = points(row["accuracy"]) + ("" if row["spread"] is None else f" +- {points(row['spread'])}")
        names = {key: row[key] for key in ("method", "pool", "domain", "seeds")}
        told.append(names | {"test accuracy, %": accuracy, "gain, points": gain + interval})
    if all(row["domain"] == "all" for row in told):
        for row in told:
            del row["domain"]
    return told


def of_paths(paths: Sequence[Path], split: str = "test") -> list[dict[str, Any]]:
    """Paired rows of every path's runs against the first one's. A path is a run directory, or holds some."""
    from fedcodist import runs

    first, *others = [(path, [runs.read(found) for found in runs.find_all([path])]) for path in paths]
    if not others:
        raise ConfigError("compare: got one run; allowed two or more: every run is compared with the first")
    for path, found in (first, *others):
        kinds = sorted({kind_of(run) for run in found})
        if len(kinds) > 1:
            raise ConfigError(f"compare: got {path}, which holds {' and '.join(kinds)}; allowed one method, as in {path / kinds[0]}")
    rows = []
    for path, found in others:
        if len({run.config.get("data") for run in (*first[1], *found)}) > 1:
            raise ConfigError(f"compare: {first[0]} and {path} were trained on different data; allowed runs on the same data")
        compared = paired(first[1], found, split)
        if not compared:
            raise ConfigError(f"compare: {first[0]} and {path} have no finished seed in common; allowed runs that share seeds")
        rows += [{"run": str(path), "against": str(first[0]), **row} for row in compared]
    return rows


def pairs_for_eyes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `of_paths` in percent and points.

    >>> row = {"run": "x/merged", "against": "x/fedavg", "pool": "small", "domain": "all", "a": 0.5, "b": 0.52, "seeds": 2, "note": ""}
    >>> told = pairs_for_eyes([row | {"difference": 0.02, "low": -0.01, "high": 0.05}])[0]
    >>> told["against, %"], told["run, %"], told["difference, points"]
    ('50.0', '52.0', '+2.0 [-1.0, 5.0]')
    """
    told = []
    for row in rows:
        interval = "" if row["low"] is None else f" [{points(row['low'])}, {points(row['high'])}]"
        seen = {key: row[key] for key in ("run", "against", "pool", "domain")}
        seen |= {"run, %": points(row["b"]), "against, %": points(row["a"])}
        told.append(
            seen | {"difference, points": points(row["difference"], sign=True) + interval, "seeds": row["seeds"], "note": row["note"]}
        )
    return told


def outcome(row: dict[str, Any] | None) -> str:
    """What one paired row shows: gain, loss, unclear (the interval holds zero), hint (one seed) or none."""
    if row is None:
        return "none"
    if row["low"] is None:
        return "hint"
    return "gain" if row["low"] > 0 else "loss" if row["high"] < 0 else "unclear"


def points(value: float, sign: bool = False) -> str:
    """A share in percentage points. One decimal, or two where one would hide on which side of zero it is.

    >>> points(0.0192, sign=True), points(0.0004), points(-0.00001)
    ('+1.9', '0.04', '0.0')
    """
    value = 100 * value
    digits = 2 if 0.005 <= abs(value) < 0.05 else 1
    value = round(value, digits) + 0.0  # no minus zero
    return f"{value:{'+' if sign else ''}.{digits}f}"


def verdict(a_runs: Iterable[Any], b_runs: Iterable[Any], split: str = "test") -> str:
    """In plain words: how b did against a, pool by pool, whether that is above zero, and what it cost."""
    a_runs, b_runs = list(a_runs), list(b_runs)
    if not b_runs:
        return "No runs."
    label = LABELS.get(kind_of(b_runs[0]), kind_of(b_runs[0]))
    if not a_runs:
        return f"{alone(b_runs, split)} No twin: run with --twin."
    domain = headline([*a_runs, *b_runs])
    rows = [row for row in paired(a_runs, b_runs, split) if row["domain"] == domain]
    other = LABELS.get(kind_of(a_runs[0]), kind_of(a_runs[0]))
    against = f"its {other} twin" if kind_of(a_runs[0]) == TWIN else other
    if not rows:
        return f"{label} against {against}: no seed is finished in both, so nothing can be said yet."
    counts = sorted({row["seeds"] for row in rows})
    seeds = "one seed" if counts == [1] else f"{'-'.join(map(str, counts))} paired seeds"
    where = "" if domain == "all" else f" on {domain}"
    told = [_told(row, first=i == 0) for i, row in enumerate(rows)]
    said = f"{label} against {against}, {split.replace('_', '-')} accuracy{where} over {seeds}: {', '.join(told)}."
    return " ".join(filter(None, (said, _judge(rows), extra_words(a_runs, b_runs))))


def alone(runs: Sequence[Any], split: str = "test") -> str:
    """What an arm reached, without anything to compare it with."""
    label, done = LABELS.get(kind_of(runs[0]), kind_of(runs[0])), by_seed(runs)
    domain = headline(runs)
    reached = []
    for pool in pools(runs):
        value = mean(number(dig(run.result, split, pool, domain, "accuracy")) for run in done.values())
        if value is not None:
            reached.append(f"{pool} {points(value)} %")
    if not reached:
        return f"{label}: no run has finished."
    return f"{label}, {split.replace('_', '-')} accuracy over {_count(len(done), 'seed')}: {', '.join(reached)}."


def _told(row: dict[str, Any], first: bool) -> str:
    unit = " points" if first else ""
    interval = f" [{points(row['low'])}, {points(row['high'])}]" if row["low"] is not None else ""
    return f"{row['pool']} {points(row['difference'], sign=True)}{unit}{interval}"


def _judge(rows: Sequence[dict[str, Any]]) -> str:
    """The sentence after the numbers."""
    found = {kind: [row["pool"] for row in rows if outcome(row) == kind] for kind in ("gain", "loss", "unclear", "hint")}
    if found["hint"] and len(found["hint"]) == len(rows):
        return "One seed: a hint, not evidence."
    for kind, one, many in (
        ("gain", "The gain is above zero.", "gains are above zero."),
        ("loss", "This is a loss: the interval is below zero.", "are losses: the intervals are below zero."),
        ("unclear", "Not told apart from zero: the interval holds it.", "intervals hold zero: no difference is shown."),
    ):
        if len(found[kind]) == len(rows):
            return one if len(rows) == 1 else f"{'Both' if len(rows) == 2 else f'All {len(rows)}'} {many}"
    words = {"gain": "Above zero", "loss": "A loss, below zero", "unclear": "Not told apart from zero", "hint": "One seed, a hint only"}
    return " ".join(f"{words[kind]}: {', '.join(names)}." for kind, names in found.items() if names)


def cost_of(run: Any, what: str) -> float | None:
    """One cost of a run, summed over its pools."""
    value = dig(run.result, "cost", what)
    if isinstance(value, dict):
        known = [number(v) for v in value.values()]
        return sum(v for v in known if v is not None) if known else None
    return number(value)


def extra(a_runs: Iterable[Any], b_runs: Iterable[Any], what: str) -> tuple[float, float] | None:
    """What b costs more than a, as the mean over the seeds that both have, and the mean cost of a."""
    a, b = by_seed(a_runs), by_seed(b_runs)
    pairs = [(cost_of(a[seed], what), cost_of(b[seed], what)) for seed in a if seed in b]
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not known:
        return None
    more, base = fmean(y - x for x, y in known), fmean(x for x, _ in known)
    return (0.0 if abs(more) <= 1e-9 * base else more), base  # sums of many floats: equal work may differ in the last bits


def extra_words(a_runs: Iterable[Any], b_runs: Iterable[Any]) -> str:
    """The extra cost in words, such as "No extra client bytes; +1,280 server steps."."""
    a_runs, b_runs = list(a_runs), list(b_runs)
    sent, steps = extra(a_runs, b_runs, "client_bytes"), extra(a_runs, b_runs, "server_steps")
    said = []
    if sent is not None:
        more, base = sent
        share = f"{100 * more / base:+.1f} % client bytes" if base else f"{more:+,.0f} client bytes"
        said.append(share if abs(more) >= 0.5 else "no extra client bytes")
    if steps is not None:
        said.append(f"{steps[0]:+,.0f} server steps" if abs(steps[0]) >= 0.5 else "no extra server steps")
    sentence = "; ".join(said)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def taught(arm: Arm, twin: Arm | None, split: str = "test") -> list[dict[str, Any]]:
    """Who taught whom: one row a teacher and student, with the agreement before and after (the last quarter of the run) and the
    student's gain over its twin."""
    gains = {(row["pool"], row["domain"]): row for row in (paired(twin.runs, arm.runs, split) if twin else ())}
    domain = headline(arm.runs)
    rows = []
    for student in pools(arm.runs):
        weights: dict[str, Any] = {}
        for run in arm.runs:
            weights |= {j: None for row in rows_of(run) for j in dig(row, "pools", student, "agreement") or () if j not in weights}
            weights |= dig(run.result, "table", student) or {}
        for teacher in (name for name in pools(arm.runs) if name in weights):
            seen = [pair for run in arm.told if (pair := _agreement(run, student, teacher)) is not None]
            temperature = number(dig(arm.runs[0].config, "pools", teacher, "teaches", "temperature"))
            rows.append(
                {"teacher": teacher, "student": student, "weight": number(weights[teacher]), "temperature": temperature}
                | {"before": mean(before for before, _ in seen), "after": mean(after for _, after in seen)}
                | {"gain": gains.get((student, domain))}
            )
    return rows


def _agreement(run: Any, student: str, teacher: str) -> tuple[float, float] | None:
    """The mean agreement before and after, over the codistillations in the last quarter of the run; or its last one."""
    pairs = []
    for row in rows_of(run):
        pair = dig(row, "pools", student, "agreement", teacher)
        if isinstance(pair, list | tuple) and len(pair) == 2 and all(number(v) is not None for v in pair):
            pairs.append((row["round"], *pair))
    late = [pair for pair in pairs if pair[0] > 0.75 * rounds_done(run)] or pairs[-1:]
    return (fmean(p[1] for p in late), fmean(p[2] for p in late)) if late else None


def steps_of(arm: Arm) -> list[dict[str, Any]]:
    """For each pool the mean length of the clients' gradient, of the distillation gradient, their cosine, and how often it codistilled."""
    rows = []
    for pool in pools(arm.runs):
        infos = [info for run in arm.told for row in rows_of(run) if isinstance(info := dig(row, "pools", pool), dict)]
        if not infos:
            continue
        means = {what: mean(number(info.get(what)) for info in infos) for what in ("grad_norm", "dist_norm", "cosine", "alpha")}
        rows.append({"pool": pool, "rounds": len(infos), "codistilled": sum(bool(info.get("codistilled")) for info in infos), **means})
    return rows


Read = Callable[[dict[str, Any]], Any]  # finds a value in a round's row
Line = list[tuple[int, float, float, float]]  # (round, mean, lowest, highest)


def series(runs: Iterable[Any], read: Read) -> Line:
    """The mean over runs of what `read` finds, round by round; only rounds that most of the runs have, or the mean would jump."""
    return _over([_by_round(run, read) for run in runs])


def paired_series(a_runs: Iterable[Any], b_runs: Iterable[Any], read: Read) -> Line:
    """The same of b minus a, seed by seed."""
    a, b = by_seed(a_runs), by_seed(b_runs)
    pairs = [(_by_round(a[seed], read), _by_round(b[seed], read)) for seed in a if seed in b]
    return _over([{t: y[t] - x[t] for t in y if t in x} for x, y in pairs])


def _by_round(run: Any, read: Read) -> dict[int, float]:
    return {row["round"]: value for row in rows_of(run) if (value := number(read(row))) is not None}


def _over(lines: Sequence[dict[int, float]]) -> Line:
    seen: dict[int, list[float]] = {}
    for line in lines:
        for t, value in line.items():
            seen.setdefault(t, []).append(value)
    most = max(map(len, seen.values()), default=0)
    return [(t, fmean(v), min(v), max(v)) for t, v in sorted(seen.items()) if len(v) == most]


def codistilled(runs: Sequence[Any], pool: str) -> list[int]:
    """The rounds in which this pool was a student, in any of the runs."""
    return sorted({row["round"] for run in runs for row in rows_of(run) if dig(row, "pools", pool, "codistilled")})


def _count(n: int, what: str) -> str:
    return f"one {what}" if n == 1 else f"{n} {what}s"
