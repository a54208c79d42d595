"""Whether the paper's claims came out again: a verdict each, with the numbers and the rule that gave it. Pure: from result files alone.

All rules speak of the 95 % interval of paired differences over seeds, on the test set (claim v: on the held-out set, which the curves are
of). A gain is

- reproduced, if its interval lies above zero;
- not reproduced, if its interval does not, and ends below the paper's effect, so that one of that size is excluded too;
- not decidable otherwise, with fewer than two seeds, with settings that nobody has tuned, and where a run or its twin diverged: those
  that are left would be a choice.

A claim of several parts is reproduced if all parts are, not reproduced if one is not, and otherwise not decidable; one that was not run
is not decidable. "Reproduced" is said of the direction: where the paper's gain is above the whole interval, that is told beside it. The
rules of the parts that are no plain gains stand with them below. A budget on embedded data decides nothing, whatever its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedcodist.errors import data_error
from fedcodist.reports import statistics
from fedcodist.reports.arms import dig
from fedcodist.reports.arms import label as label_of
from fedcodist.reports.units import points
from fedcodist.reproduce import paper

HERE = " at this budget"
REPRODUCED, NOT, OPEN = "reproduced", f"not reproduced{HERE}", f"not decidable{HERE}"
SPEAKS_OF = {"table1": ("i", "ii", "iii"), "table2": ("iv",), "figure3": ("iv", "v"), "figure4": ("vi",), "studies": (), "rivals": ()}
SAID = (
    "A gain is reproduced if its 95 % interval lies above zero. This concerns the direction of the gain only; where the paper's gain is "
    "above the whole interval, the table says so. A gain is not reproduced if its interval does not lie above zero and ends below the "
    "paper's gain. Where the paper says that something hardly changes, the table gives a limit: this is reproduced if the whole interval "
    "is within the limit, and not reproduced if the whole interval is beyond it. Everything else is not decidable, as are results with a "
    "single seed, with untuned settings, or with a seed that diverged. A claim is reproduced if all of its parts are, and not reproduced "
    "if one of them is not."
)
OF_COLUMNS = ("i", "ii", "iii")  # claims on the central column: told of a balanced one too, which is what the paper's central one is
MOST = 0.5  # "most of the gain" is more than this share of it


class Verdict(NamedTuple):
    """The verdict on one claim."""

    claim: paper.Claim
    verdict: str
    why: str
    parts: tuple[Part, ...] = ()


class Part(NamedTuple):
    """One part of a claim, or a remark on it, which has no verdict. `paper` and `ours` are its numbers in short."""

    verdict: str
    why: str
    ran: bool = True
    paper: str = ""
    ours: str = ""


class Difference(NamedTuple):
    """A mean over seeds, with its interval if there are two or more."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.short}, {self.seeds} seed{'' if self.seeds == 1 else 's'}"

    @property
    def short(self) -> str:
        """The difference without the number of seeds."""
        interval = "" if self.low is None or self.high is None else f" [{points(self.low)}, {points(self.high)}]"
        return f"{points(self.mean, sign=True)}{interval}"


Cells = Mapping[str, Mapping[str, Any]]  # by id


def judge(results: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """A verdict on every claim that the result files of one budget speak of."""
    cells: dict[str, Mapping[str, Any]] = {}
    columns: dict[str, list[str]] = {}
    balanced = ""
    for result in results:
        for cell in result["cells"]:
            known = cells.get(cell["id"], {})
            if known and known["seeds"] and cell["seeds"] and known["run"] != cell["run"]:
                raise data_error(cell["id"], f"runs {known['run']} and {cell['run']}", "one experiment", "make all result files again")
            best = cell if len(cell["seeds"]) >= len(known.get("seeds", ())) else known
            spikes = cell.get("spikes") or known.get("spikes")  # Figure 3 has them, and Table 2 the same runs without
            cells[cell["id"]] = {**best, "spikes": spikes} if spikes else best
        for name, family in result["families"].items():
            if family["columns"]:
                columns[name] = paper.in_place(family["columns"], family.get("balanced"))
        balanced = dig(result["families"], "images", "balanced") or balanced
    domains = next((r["families"]["language"]["domains"] for r in results if dig(r["families"], "language", "domains")), {})
    decides = all(result["decides"] for result in results)
    spoken_of = {name for result in results for name in SPEAKS_OF[result["table"]]}
    found = []
    for claim in paper.CLAIMS:
        if claim.name not in spoken_of:
            continue
        found.append(_verdict(claim, RULES[claim.name](cells, columns.get("images", []), domains), decides))
        if balanced and claim.name in OF_COLUMNS:
            again = paper.Claim(f"{claim.name}, balanced", f"The same with |P_H| = {int(balanced):,}, where our two models are balanced.")
            found.append(_verdict(again, RULES[claim.name](cells, [balanced], domains), decides))
    return found


def _verdict(claim: paper.Claim, parts: Sequence[Part], decides: bool) -> Verdict:
    if not decides:
        return Verdict(claim, OPEN, f"embedded data decides nothing; {'; '.join(part.why for part in parts)}", tuple(parts))
    why = "; ".join(f"{part.why}: {part.verdict.removesuffix(HERE)}" if part.ran else part.why for part in parts)
    return Verdict(claim, combine([part.verdict for part in parts if part.verdict]), why, tuple(parts))


def combine(verdicts: Sequence[str]) -> str:
    """The verdict on a claim of several parts.

    >>> combine([REPRODUCED, REPRODUCED]), combine([REPRODUCED, NOT, OPEN])
    ('reproduced', 'not reproduced at this budget')
    >>> combine([REPRODUCED, OPEN]), combine([])
    ('not decidable at this budget', 'not decidable at this budget')
    """
    if NOT in verdicts:
        return NOT
    return REPRODUCED if verdicts and all(verdict == REPRODUCED for verdict in verdicts) else OPEN


def over(values: Sequence[float]) -> Difference | None:
    """The mean of some values with its interval; None if there are none."""
    low, high = statistics.t_interval(values) or (None, None)
    return Difference(fmean(values), low, high, len(values)) if values else None


def lifts(gain: Difference | None, effect: float) -> str:
    """The rule of a plain gain; `effect` is the paper's, as a share of 1.

    >>> lifts(Difference(0.03, 0.01, 0.05, 3), 0.045), lifts(Difference(0.0, -0.01, 0.01, 3), 0.045)
    ('reproduced', 'not reproduced at this budget')
    >>> lifts(Difference(0.01, -0.03, 0.05, 3), 0.045), lifts(Difference(0.03, None, None, 1), 0.045)
    ('not decidable at this budget', 'not decidable at this budget')
    """
    if gain is None or gain.low is None or gain.high is None:
        return OPEN
    if gain.low > 0:
        return REPRODUCED
    return NOT if gain.high < effect else OPEN


def stays_below(gain: Difference | None, limit: float) -> str:
    """The rule of "hardly": the whole interval is below the limit. Not reproduced if it is wholly above.

    >>> stays_below(Difference(0.0, -0.01, 0.01, 3), 0.02), stays_below(Difference(0.03, 0.021, 0.04, 3), 0.02)
    ('reproduced', 'not reproduced at this budget')
    """
    if gain is None or gain.low is None or gain.high is None:
        return OPEN
    return REPRODUCED if gain.high < limit else NOT if gain.low > limit else OPEN


def is_positive(difference: Difference | None) -> str:
    """The rule where the paper gives no number: above zero, below zero, or open."""
    return lifts(difference, 0.0)


def values_of(cell: Mapping[str, Any] | None, pool: str, domain: str) -> dict[int, float]:
    """{seed: test accuracy}."""
    seeds, found = (cell or {}).get("seeds", []), dig(dict(cell or {}), "accuracy", pool, domain, "test") or []
    return {seed: value for seed, value in zip(seeds, found, strict=False) if value is not None}


def gains(cells: Cells, name: str, pool: str, domain: str = "all") -> dict[int, float]:
    """{seed: gain over the twin that was trained beside it}; files of old leave it to be found from the twin's own cell."""
    cell = cells.get(name)
    if (each := dig(dict(cell or {}), "accuracy", pool, domain, "over_twin")) is not None:
        return {int(seed): value for seed, value in each.items()}
    mine, twin = values_of(cell, pool, domain), values_of(cells.get(str((cell or {}).get("twin"))), pool, domain)
    return {seed: value - twin[seed] for seed, value in mine.items() if seed in twin}


def _part(cells: Cells, name: str, verdict: str, what: str, gain: Difference | None, printed: float, limit: str = "") -> Part:
    """A part that is about one gain; `printed` is the paper's, in points, and `limit` in words what the gain is held to, if not to zero."""
    if gain is None:
        return Part(OPEN, f"{what}: not run", ran=False)
    more = gain.high is not None and gain.high < printed / 100 and verdict == REPRODUCED
    beside = f"paper {points(printed / 100, sign=True)}" + (", which is more" if more else "") + (f"; limit: {limit}" if limit else "")
    short = {"printed": points(printed / 100, sign=True), "ours": f"{what} {gain.short}"}
    return _decided([cells[name]], cells, verdict, f"{what}: {gain}", f" ({beside})", **short)


def _decided(
    mine: Sequence[Mapping[str, Any]], cells: Cells, verdict: str, why: str, more: str = "", printed: str = "", ours: str = ""
) -> Part:
    """Settings that nobody has tuned decide nothing, and neither does what is left when a run diverged."""
    against = [*mine, *(cells[cell["twin"]] for cell in mine if cell["twin"] in cells)]
    lost = sorted({seed for cell in against for seed in cell.get("diverged", {})})
    doubts = [*(f"seed {seed} diverged" for seed in lost), *([] if all(cell["tuned"] for cell in against) else ["untuned"])]
    return Part(OPEN if doubts else verdict, ", ".join([why, *doubts]) + more, paper=printed, ours=", ".join([ours, *doubts]))


def _lift(cells: Cells, name: str, pool: str, effect: float, what: str, domain: str = "all") -> Part:
    gain = over(list(gains(cells, name, pool, domain).values()))
    return _part(cells, name, lifts(gain, effect / 100), what, gain, effect)


def _claim_1(cells: Cells, columns: Sequence[str], domains: Mapping[str, str]) -> list[Part]:
    """The central column and the smaller one; beside them what is left at rates that are the large model's own best."""
    lifted = [
        _lift(
            cells,
            f"images/periodic/{column}/in-domain",
            "large",
            paper.gain(paper.IMAGES, "periodic", "in-domain", place, "large"),
            f"large, |P_H| = {int(column):,}",
        )
        for column, place in zip(columns[:2], ("3100", "4700")[-len(columns) :], strict=False)  # a single one is central
    ]
    own = over(list(gains(cells, f"images/periodic-rates/{paper.central(columns)}/in-domain", "large").values()))
    said = f"with rates that are the large model's own best, a study below: {own}"
    return [*lifted, Part("", said, ran=False)] if own else lifted


def _claim_2(cells: Cells, columns: Sequence[str], domains: Mapping[str, str]) -> list[Part]:
    """Both methods in the central column."""
    column = paper.central(columns)
    return [
        _lift(
            cells,
            f"images/{method}/{column}/in-domain",
            "small",
            paper.gain(paper.IMAGES, method, "in-domain", "4700", "small"),
            f"small, {label_of(method)}",
        )
        for method in ("periodic", "merged")
    ]


def _claim_3(cells: Cells, columns: Sequence[str], domains: Mapping[str, str]) -> list[Part]:
    """Both methods in the central column: the small model gains, and the large one gains less than the small one does in the paper."""
    column, parts = paper.central(columns), []
    for method in ("periodic", "merged"):
        name, label = f"images/{method}/{column}/out-of-domain", label_of(method)
        helped = paper.gain(paper.IMAGES, method, "out-of-domain", "4700", "small")
        parts.append(_lift(cells, name, "small", helped, f"small, {label}"))
        gain = over(list(gains(cells, name, "large").values()))
        printed = paper.gain(paper.IMAGES, method, "out-of-domain", "4700", "large")
        limit = f"below the small one's {points(helped / 100, sign=True)} in the paper"
        parts.append(_part(cells, name, stays_below(gain, helped / 100), f"large, {label}", gain, printed, limit))
    return parts


def _claim_4(cells: Cells, columns: Sequence[str], domains: Mapping[str, str]) -> list[Part]:
    """A gain on questions, and on answers a loss of less than half of the paper's gain on questions."""
    name = f"{_text(cells)}/merged/shift"
    effect = paper.shift_gain("merged", "questions", "small")
    asked = _lift(cells, name, "small", effect, "small on questions", domains.get("questions", ""))
    gain = over(list(gains(cells, name, "small", domains.get("answers", "")).values()))
    cost = None if gain is None else Difference(-gain.mean, _minus(gain.high), _minus(gain.low), gain.seeds)
    printed = paper.shift_gain("merged", "answers", "small")
    limit = f"above {points(-effect / 200, sign=True)}, half of the paper's gain on questions"
    return [asked, _part(cells, name, stays_below(cost, effect / 200), "small on answers", gain, printed, limit), *_knows(cells, domains)]


def _text(cells: Cells) -> str:
    """The family that claims on language are judged by: the paper's own data where it was run."""
    return "stackoverflow" if (cells.get("stackoverflow/fedavg/shift") or {}).get("seeds") else "language"


def _knows(cells: Cells, domains: Mapping[str, str]) -> list[Part]:
    """What claim (iv) takes for granted: that of the two FedAvg models the large one, which learns questions, knows them better. Said where
    it is not so, and changes no verdict."""
    small, large = (values_of(cells.get(f"{_text(cells)}/fedavg/shift"), pool, domains.get("questions", "")) for pool in paper.POOLS)
    if not small or not large or fmean(large.values()) > fmean(small.values()):
        return []
    theirs = paper.SHIFT["fedavg"]["questions"]
    said = (
        f"the large model, which is to teach questions, knows them less well than the small one under FedAvg, "
        f"{points(fmean(large.values()))} and {points(fmean(small.values()))} % (paper {theirs[1]:.1f} and {theirs[0]:.1f})"
    )
    return [Part("", said, ran=False)]


def _claim_5(cells: Cells, columns: Sequence[str], domains: Mapping[str, str]) -> list[Part]:
    """For each model on the other pool's domain, held-out accuracy less what FedAvg gained in the same rounds: above the round before at
    the codistillation, and less than half of that jump left at the last round that is looked at."""
    parts, cell = [], dict(cells.get(f"{_text(cells)}/periodic/shift") or {})
    for pool, domain in (("small", "questions"), ("large", "answers")):
        changes = dig(cell, "spikes", pool, domains.get(domain, "")) or {}
        if not changes:
            parts.append(Part(OPEN, f"{pool} on {domain}: not run", ran=False))
            continue
        last = max(changes, key=int)
        jump, kept = changes["0"], changes[last]
        fades = [up / 2 - rest for up, rest in zip(jump, kept, strict=True)]
        verdict = combine([is_positive(over(jump)), is_positive(over(fades))])
        why = f"{pool} on {domain}: {over(jump)} at once, {points(fmean(kept), sign=True)} {last} rounds later"
        told = f"{pool} on {domain} {points(fmean(jump), sign=True)} at once, {points(fmean(kept), sign=True)} {last} rounds later"
        parts.append(_decided([cell], cells, verdict, f"{why}; half of the jump less what is left {over(fades)}", ours=told))
    return parts


def _claim_6(cells: Cells, columns: Sequence[str], domains: Mapping[str, str]) -> list[Part]:
    """The mean gain of both models with the fewest images is more than half of that with all of them, seed by seed; where all of them give
    no gain that is above zero, there is nothing to keep."""
    column, parts = paper.central(columns), []
    for method in ("periodic", "merged"):
        label, start = label_of(method), f"images/{method}/{column}/"
        sizes = sorted(
            (name for name in cells if name.startswith(start) and name[len(start) :].isdigit()), key=lambda n: int(n[len(start) :])
        )
        all_of_them = _both(cells, f"{start}in-domain")
        few = _both(cells, sizes[0]) if sizes else {}
        if not few or not all_of_them:
            parts.append(Part(OPEN, f"{label}: not run", ran=False))
            continue
        most = over([few[seed] - MOST * all_of_them[seed] for seed in few if seed in all_of_them])
        whole, some = over(list(all_of_them.values())), over(list(few.values()))
        verdict = is_positive(most) if lifts(whole, 0.0) == REPRODUCED else OPEN
        why = (
            f"{label}, both models: {some} with {int(sizes[0][len(start) :]):,} images, {whole} with all; the first less half of the second"
        )
        kept, of = (points(fmean(gain.values()), sign=True) for gain in (few, all_of_them))
        told = f"{label} {kept} with {int(sizes[0][len(start) :]):,}, {of} with all"
        mine = [cells[sizes[0]], cells[f"{start}in-domain"]]
        parts.append(_decided(mine, cells, verdict, f"{why} {most or 'not paired'}", ours=told))
    return parts


def _both(cells: Cells, name: str) -> dict[int, float]:
    """{seed: the mean gain of the two models}."""
    small, large = (gains(cells, name, pool) for pool in paper.POOLS)
    return {seed: (small[seed] + large[seed]) / 2 for seed in small if seed in large}


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


RULES: dict[str, Callable[[Cells, Sequence[str], Mapping[str, str]], list[Part]]] = {
    "i": _claim_1,
    "ii": _claim_2,
    "iii": _claim_3,
    "iv": _claim_4,
    "v": _claim_5,
    "vi": _claim_6,
}
