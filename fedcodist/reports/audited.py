"""An audit of public data in words: the rows of audit/audit.py as tables, then the warnings."""

from __future__ import annotations

from typing import Any

from fedcodist.audit.audit import Audit
from fedcodist.audit.lessons import Probe
from fedcodist.reports import tables
from fedcodist.reports.units import percent, plural


def words(name: str, found: Audit, probe: Probe | None, seeds: int = 1) -> str:
    """An audit, as the screen shows it."""
    lines = [
        f"{name}: the public data",
        "",
        "Rows of the public data that are in another part, exactly or nearly:",
        tables.render(found.repeated),
        "",
        "How often a linear classifier tells rows from the clients' rows (50 % is chance), and what they look like:",
        tables.render([_apart(row) for row in found.distance]),
    ]
    over = plural(seeds, "seed") if seeds > 1 else "the held-out rows of one seed"
    if probe is not None:
        lines += [
            "",
            f"What the models say after {plural(probe.rounds, 'round')} of FedAvg, of public rows and of held-out ones:",
            tables.render([_teacher(row) for row in found.teachers]),
            f"They disagree on {percent(found.teachers[0]['disagreement'])} of the public predictions.",
            "",
            f"What a lesson of {plural(probe.steps, 'step')} gives in held-out accuracy, in points: right after it, and as a mean over",
            f"{plural(probe.after, 'round')} of FedAvg after it, against the same rounds without it (95 % intervals over {over}):",
            tables.render([_gain(row) for row in found.gains]),
        ]
    lines += ["", *(f"warning: {line}" for line in found.warnings)] if found.warnings else ["", "No warnings."]
    return "\n".join(lines)


def _apart(row: dict[str, Any]) -> dict[str, Any]:
    what, value, low, high, *looks = row
    apart = "" if row[value] is None else f"{percent(row[value])} [{percent(row[low])}, {percent(row[high])}]"
    return {what: row[what], value: apart} | {look: f"{row[look]:.4g}" for look in looks}


def _teacher(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "pool": row["pool"],
        "confidence, public": f"{row['confidence_public']:.2f}",
        "held out": f"{row['confidence_held_out']:.2f}",
        "entropy in nats, public": f"{row['entropy_public']:.2f}",
        "held out ": f"{row['entropy_held_out']:.2f}",
        "held-out accuracy": percent(row["accuracy"]),
        "calibration error": f"{row['calibration']:.3f}",
    }


def _gain(row: dict[str, Any]) -> dict[str, Any]:
    def change(what: str) -> str:
        return f"{row[f'gain_{what}']:+.1f} [{row[f'low_{what}']:+.1f}, {row[f'high_{what}']:+.1f}]"

    return {"public rows": f"{row['public_rows']:,}", "pool": row["pool"], "at once": change("at_once"), "later": change("later")}
