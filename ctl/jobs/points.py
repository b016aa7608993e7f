"""Metrics of jobs: the points of all attempts, by name, and a plot that fits into a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fsworker.jobs import metrics
from fsworker.protocol import jobstate, layout
from fsworker.protocol.fsops import Store, storage_error

WIDTH, HEIGHT = 64, 12
_MARKS = "*+ox#@%&"


@dataclass
class Series:
    """One number over the steps of a job; what a later attempt said of a step holds."""

    values: dict[float, float] = field(default_factory=dict)
    count: int = 0

    @property
    def points(self) -> list[tuple[float, float]]:
        """(step, value) in the order of steps."""
        return sorted(self.values.items())

    @property
    def last(self) -> tuple[float, float] | None:
        """The point of the highest step."""
        return self.points[-1] if self.values else None


def read(store: Store, job: str) -> dict[str, Series]:
    """All that a job reported, by name."""
    found: dict[str, Series] = {}
    for attempt, _ in jobstate.attempts(store, job):
        rel = f"{layout.jobs.attempt_dir(job, attempt)}/{jobstate.METRICS_FILE}"
        try:
            data = store.read(rel)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise storage_error(error, "read", store.path(rel)) from None
        for step, _, values in metrics.parse(data):
            for name, value in values.items():
                series = found.setdefault(name, Series())
                series.count += 1
                if isinstance(value, (int, float)):
                    series.values[step] = float(value)
    return found


def plot(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    width: int = WIDTH,
    height: int = HEIGHT,
) -> list[str]:
    """Points as text: a mark for each label, the range of values and of steps beside it."""
    everything = [point for points in lines.values() for point in points]
    if not everything:
        return [f"{title}: no points"]
    left, right = min(p[0] for p in everything), max(p[0] for p in everything)
    low, high = min(p[1] for p in everything), max(p[1] for p in everything)
    grid = [[" "] * width for _ in range(height)]
    for number, points in enumerate(lines.values()):
        for step, value in points:
            column = _place(step, left, right, width)
            grid[height - 1 - _place(value, low, high, height)][column] = _MARKS[
                number % len(_MARKS)
            ]
    margin = max(len(f"{low:.4g}"), len(f"{high:.4g}"))
    edge = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    out = [title]
    out += [f"{edge.get(i, ''):>{margin}} |{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    out.append(f"{'':>{margin}} +{'-' * width}")
    end = f"{right:.6g}"
    out.append(f"{'':>{margin}}  {f'{left:.6g}':<{max(width - len(end), 1)}}{end}")
    if len(lines) > 1:
        marks = (f"{_MARKS[i % len(_MARKS)]} {label}" for i, label in enumerate(lines))
        out.append(f"{'':>{margin}}  {'   '.join(marks)}")
    return out


def _place(value: float, low: float, high: float, cells: int) -> int:
    if high <= low:
        return cells // 2
    return min(cells - 1, int((value - low) / (high - low) * cells))
