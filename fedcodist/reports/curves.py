"""Values over the rounds of recorded runs: means and single runs round by round, who taught whom, and the gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from fedcodist.reports.arms import Arm, by_seed, dig, headline, number, pools_of, rounds_done, rows_of
from fedcodist.reports.statistics import mean, paired

Read = Callable[[dict[str, Any]], Any]  # reads a value from the row of a round
Line = list[tuple[int, float, float, float]]  # (round, mean, lowest, highest)


def series(runs: Iterable[Any], read: Read) -> Line:
    """The mean over runs of the value that `read` returns, round by round, in rounds that as many runs have as any: otherwise the mean
    would jump."""
    return _over([_by_round(run, read) for run in runs])


def each_series(runs: Iterable[Any], read: Read) -> list[list[tuple[int, float]]]:
    """The values that `read` returns, round by round, for each run that has any."""
    return [sorted(line.items()) for run in runs if (line := _by_round(run, read))]


def each_paired(a_runs: Iterable[Any], b_runs: Iterable[Any], read: Read) -> list[list[tuple[int, float]]]:
    """b minus a round by round, for each seed that both have."""
    a, b = by_seed(a_runs), by_seed(b_runs)
    pairs = [(_by_round(a[seed], read), _by_round(b[seed], read)) for seed in a if seed in b]
    return [line for x, y in pairs if (line := [(t, y[t] - x[t]) for t in sorted(y) if t in x])]


def paired_series(a_runs: Iterable[Any], b_runs: Iterable[Any], read: Read) -> Line:
    """The mean of b minus a over the seeds that both have, round by round."""
    return _over([dict(line) for line in each_paired(a_runs, b_runs, read)])


def codistilled(runs: Iterable[Any], pool: str) -> list[int]:
    """The rounds in which this pool was a student, in any of the runs."""
    return sorted({row["round"] for run in runs for row in rows_of(run) if dig(row, "pools", pool, "codistilled")})


def taught(arm: Arm, twin: Arm | None, split: str = "test") -> list[dict[str, Any]]:
    """Which pool taught which: a row for each teacher and student, with the agreement before and after (the last quarter of the run) and
    the student's gain over its twin."""
    gains = {(row["pool"], row["domain"]): row for row in (paired(twin.runs, arm.runs, split) if twin else ())}
    pools, domain = pools_of(arm.runs), headline(arm.runs)
    rows = []
    for student in pools:
        weights: dict[str, Any] = {}
        for run in arm.runs:
            weights |= {j: None for row in rows_of(run) for j in dig(row, "pools", student, "agreement") or () if j not in weights}
            weights |= dig(run.result, "table", student) or {}
        for teacher in (name for name in pools if name in weights):
            seen = [pair for run in arm.counted if (pair := _agreement(run, student, teacher)) is not None]
            temperature = number(dig(arm.runs[0].config, "pools", teacher, "teaches", "temperature"))
            rows.append(
                {"teacher": teacher, "student": student, "weight": number(weights[teacher]), "temperature": temperature}
                | {"before": mean(before for before, _ in seen), "after": mean(after for _, after in seen)}
                | {"gain": gains.get((student, domain))}
            )
    return rows


def gradients_of(arm: Arm) -> list[dict[str, Any]]:
    """For each pool the mean length of the clients' gradient, of the distillation gradient, their cosine, and how often it codistilled."""
    rows = []
    for pool in pools_of(arm.runs):
        infos = [info for run in arm.counted for row in rows_of(run) if isinstance(info := dig(row, "pools", pool), dict)]
        if not infos:
            continue
        means = {what: mean(number(info.get(what)) for info in infos) for what in ("grad_norm", "dist_norm", "cosine", "alpha")}
        refused = sum("guard" in info and not info.get("codistilled") for info in infos)
        counts = {"codistilled": sum(bool(info.get("codistilled")) for info in infos), "refused": refused}
        rows.append({"pool": pool, "rounds": len(infos), **counts, **means})
    return rows


def lost_of(arm: Arm) -> list[dict[str, Any]]:
    """For each pool the mean number of clients that counted in a round, of those that did not by reason, and the share of rounds without a
    quorum. A pool whose clients always counted is left out."""
    rows = []
    for pool in pools_of(arm.runs):
        infos = [info for run in arm.counted for row in rows_of(run) if isinstance(info := dig(row, "pools", pool), dict)]
        counts: Counter[str] = Counter()
        for info in infos:
            said = info.get("reasons")
            counts.update({str(why): int(known) for why, n in (said if isinstance(said, dict) else {}).items() if (known := number(n))})
        skipped = sum("skipped" in info for info in infos)
        if counts or skipped:
            reasons = ", ".join(f"{why} {n / len(infos):.3g}" for why, n in sorted(counts.items())) or "none"
            used = mean(number(info.get("clients")) for info in infos)
            rows.append({"pool": pool, "clients": used, "reasons": reasons, "skipped": skipped / len(infos)})
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


def _by_round(run: Any, read: Read) -> dict[int, float]:
    return {row["round"]: value for row in rows_of(run) if (value := number(read(row))) is not None}


def _over(lines: Sequence[dict[int, float]]) -> Line:
    seen: dict[int, list[float]] = {}
    for line in lines:
        for t, value in line.items():
            seen.setdefault(t, []).append(value)
    most = max(map(len, seen.values()), default=0)
    return [(t, fmean(v), min(v), max(v)) for t, v in sorted(seen.items()) if len(v) == most]
