"""What the paper printed: the numbers of Tables 1 and 2, the sizes of its pools, its rounds, and six claims worth testing.

All accuracies are percent on the test set, as (small model, large model). The paper gives no seeds and no intervals, and Figures 3 and 4
come without numbers. Nothing here is ours but the sizes between 600 and 13,500 in FIGURE_4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Pair = tuple[float, float]  # small, large
POOLS = ("small", "large")
METHODS = ("fedavg", "periodic", "merged")  # the rows of its tables
TABLES = ("table1", "table2", "figure3", "figure4", "studies", "rivals")  # what `reproduce` makes; the last two are not the paper's

ROUNDS, PERIOD, PERIODIC_STEPS, MERGED_STEPS = 1_500, 200, 200, 32
IMAGES_DATA, LANGUAGE_DATA = "CIFAR-100", "Stack Overflow"
DATA = {"images": IMAGES_DATA, "language": LANGUAGE_DATA}

IMAGE_SIZES = {"3100": 31, "4700": 47, "6300": 63}  # {|P_H| in examples: clients}; the middle one is the central column
IMAGES: Mapping[tuple[str, str], Mapping[str, Pair]] = {  # (method, public data): Table 1, upper half
    ("fedavg", ""): {"3100": (31.84, 24.76), "4700": (31.84, 30.57), "6300": (31.84, 35.10)},
    ("periodic", "in-domain"): {"3100": (33.95, 31.09), "4700": (34.36, 35.08), "6300": (35.68, 37.20)},
    ("merged", "in-domain"): {"3100": (32.86, 31.98), "4700": (33.86, 33.15), "6300": (33.78, 33.96)},
    ("periodic", "out-of-domain"): {"3100": (33.75, 25.03), "4700": (34.02, 30.53), "6300": (33.37, 34.27)},
    ("merged", "out-of-domain"): {"3100": (33.02, 25.83), "4700": (33.45, 31.02), "6300": (33.03, 33.47)},
}
LANGUAGE_SIZES = {"143k": 342, "296k": 684, "612k": 1_369}
LANGUAGE: Mapping[tuple[str, str], Mapping[str, Pair]] = {  # Table 1, lower half
    ("fedavg", ""): {"143k": (26.29, 24.87), "296k": (26.29, 26.23), "612k": (26.29, 27.51)},
    ("periodic", "in-domain"): {"143k": (25.70, 26.26), "296k": (25.95, 26.68), "612k": (25.73, 27.06)},
    ("merged", "in-domain"): {"143k": (26.42, 26.63), "296k": (26.50, 26.72), "612k": (26.66, 27.55)},
    ("periodic", "out-of-domain"): {"143k": (25.72, 25.79), "296k": (25.57, 26.50), "612k": (25.77, 27.18)},
    ("merged", "out-of-domain"): {"143k": (26.55, 25.52), "296k": (26.51, 26.43), "612k": (26.59, 27.67)},
}
SHIFT: Mapping[str, Mapping[str, Pair]] = {  # Table 2: the small model learns answers only, the large one questions only
    "fedavg": {"answers": (26.00, 24.79), "questions": (22.62, 30.34), "mixed": (24.51, 27.25)},
    "periodic": {"answers": (25.56, 24.82), "questions": (22.51, 30.23), "mixed": (24.21, 27.23)},
    "merged": {"answers": (25.50, 25.29), "questions": (27.65, 30.75), "mixed": (26.45, 27.70)},
}
FIGURE_4 = (600, 1_350, 3_000, 6_750, 13_500)  # the paper names 600 and the whole; the others are ours
ENOUGH = 600  # images that "good performance can be reached with"


def in_place(columns: Sequence[str], balanced: str | None) -> list[str]:
    """The columns in the places of the paper's, which are all but a balanced one."""
    return [column for column in columns if column != balanced]


def central(columns: Sequence[str]) -> str:
    """The column in the middle, where the paper's two models do about equally well; nothing if there are none."""
    return columns[len(columns) // 2] if columns else ""


CENTRAL = {"images": "4700", "language": "296k"}
TABLE_1 = {"images": IMAGES, "language": LANGUAGE}


class Claim(NamedTuple):
    """One thing that the paper says, large enough to stand out of the noise of a test set."""

    name: str
    text: str


CLAIMS = (
    Claim("i", "PeriodicCodist with in-domain data lifts the starved large image model: +6.3 points with 31 clients, +4.5 with 47."),
    Claim("ii", "Both methods lift the small image model by about 2 points."),
    Claim("iii", "Out-of-domain public data helps the small image model, and hardly the large one."),
    Claim("iv", "Under domain shift MergedCodist gives the small language model +5.0 points on questions at -0.5 on answers."),
    Claim("v", "Under domain shift PeriodicCodist jumps on the other pool's domain at each codistillation, and falls back."),
    Claim("vi", "600 public images suffice for most of the gain."),
)


def gain(table: Mapping[tuple[str, str], Mapping[str, Pair]], method: str, public: str, column: str, pool: str) -> float:
    """The paper's gain over FedAvg, in points.

    >>> round(gain(IMAGES, "periodic", "in-domain", "4700", "large"), 2)
    4.51
    """
    place = POOLS.index(pool)
    return table[method, public][column][place] - table["fedavg", ""][column][place]


def shift_gain(method: str, domain: str, pool: str) -> float:
    """The same in Table 2.

    >>> round(shift_gain("merged", "questions", "small"), 2)
    5.03
    """
    place = POOLS.index(pool)
    return SHIFT[method][domain][place] - SHIFT["fedavg"][domain][place]
