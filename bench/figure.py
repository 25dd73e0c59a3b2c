"""What a benchmark ends in: figures, what they are held against, and whether they hold."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

Cpu = dict[str, float]


class Verdict(StrEnum):
    """OPEN is for a figure that is held against nothing."""

    PASS = "pass"
    FAIL = "FAIL"
    OPEN = "–"
    MISSING = "not measured"


@dataclass(frozen=True)
class Target:
    """What a figure has to reach: by its ratio to the reference, or by its own value."""

    of: Literal["ratio", "value"]
    sense: Literal["≥", "≤"]
    bound: float
    words: str = ""

    def holds(self, value: float) -> bool:
        return operator.ge(value, self.bound) if self.sense == "≥" else operator.le(value, self.bound)

    def text(self, unit: str) -> str:
        """As the table has it: `≥ 1.50 ×`, `≤ 80 ms`."""
        if self.words:
            return self.words
        return f"{self.sense} {self.bound:.2f} ×" if self.of == "ratio" else f"{self.sense} {number(self.bound)} {unit}"


def ratio_at_least(bound: float) -> Target:
    """At least so many times the reference, in the same run."""
    return Target("ratio", "≥", bound)


def ratio_at_most(bound: float, words: str = "") -> Target:
    """At most so many times the reference, in the same run."""
    return Target("ratio", "≤", bound, words)


def at_least(bound: float, words: str = "") -> Target:
    """At least this, in the figure's own unit."""
    return Target("value", "≥", bound, words)


def at_most(bound: float, words: str = "") -> Target:
    """At most this, in the figure's own unit."""
    return Target("value", "≤", bound, words)


@dataclass
class Figure:
    """One row of the table: trucker's values, and the reference's of the same rounds where there is one.

    Made before anything is measured and filled as the rounds go by, so that a round that fails loses none before it.
    `trucker_cpu` and `reference_cpu` have what each round cost, in CPU seconds by group of processes; `rows` is what
    a round moved. `missing` is why there is no value, `note` what a reader has to know.
    """

    measure: str
    name: str
    unit: str
    target: Target | None = None
    against: str = ""
    rows: int = 0
    trucker: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    trucker_cpu: list[Cpu] = field(default_factory=list)
    reference_cpu: list[Cpu] = field(default_factory=list)
    missing: str = ""
    note: str = ""
    at: str = ""
    commit: str = ""

    @property
    def value(self) -> float | None:
        """trucker's median."""
        return statistics.median(self.trucker) if self.trucker else None

    @property
    def reference_value(self) -> float | None:
        """The reference's median."""
        return statistics.median(self.reference) if self.reference else None

    @property
    def ratios(self) -> list[float]:
        """trucker's value over the reference's, round by round."""
        return [
            measured / baseline for measured, baseline in zip(self.trucker, self.reference, strict=False) if baseline
        ]

    @property
    def ratio(self) -> float | None:
        """The median over the rounds: what slows a machine down for a while slows both down."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def verdict(self) -> Verdict:
        """A target that could not be held against anything is not measured, never passed."""
        if not self.trucker:
            return Verdict.MISSING
        if self.target is None:
            return Verdict.OPEN
        judged = self.ratio if self.target.of == "ratio" else self.value
        if judged is None:
            return Verdict.MISSING
        return Verdict.PASS if self.target.holds(judged) else Verdict.FAIL

    @property
    def target_text(self) -> str:
        return self.target.text(self.unit) if self.target else ""

    def per_million(self, side: Literal["trucker", "reference"]) -> Cpu:
        """CPU seconds per million rows by group of processes: the median over the rounds, the largest first."""
        rounds = self.trucker_cpu if side == "trucker" else self.reference_cpu
        if not rounds or not self.rows:
            return {}
        groups = {group for spent in rounds for group in spent}
        medians = {
            group: statistics.median(spent.get(group, 0.0) for spent in rounds) * 1e6 / self.rows for group in groups
        }
        return dict(sorted(medians.items(), key=lambda item: -item[1]))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all that is here, and what follows from it for those who only read."""
        return {
            **asdict(self),
            "median": self.value,
            "reference_median": self.reference_value,
            "ratio": self.ratio,
            "spread": spread(self.trucker),
            "reference_spread": spread(self.reference),
            "ratio_spread": spread(self.ratios),
            "verdict": self.verdict.value,
            "cpu_seconds_per_million_rows": {
                "trucker": self.per_million("trucker"),
                "reference": self.per_million("reference"),
            },
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Figure:
        values = {each.name: raw[each.name] for each in fields(cls) if each.name in raw}
        target = values.pop("target", None)
        return cls(**values, target=Target(**target) if target else None)


def spread(values: Sequence[float]) -> list[float] | None:
    """The least and the largest."""
    return [min(values), max(values)] if values else None


def number(value: float) -> str:
    """Three or four digits that mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
