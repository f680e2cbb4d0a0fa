"""Figures in the form that ``prometheus_client`` writes. It is imported only here, so only who tells metrics needs it.

Law: what is told is described, and has its labels. Anything else is an error of the code, and the scrape fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bookspark.support.metrics.described import Described, Figures, Form, Value
from bookspark.support.metrics.histogram import Distribution
from bookspark.support.metrics.web import Page


class FiguresCollector(Collector):
    """Asks for figures at each scrape."""

    def __init__(
        self,
        described: Sequence[Described],
        figures: Callable[[], tuple[Figures, Mapping[str, str]]],
    ) -> None:
        """``figures``: makes the figures, and the labels that all of them have. Called in the thread of the scrape."""
        self._described = {one.name: one for one in described}
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that to register this asks nobody."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The families of this moment."""
        figures, common = self._figures()
        for name, found in figures.items():
            yield family(self._described[name], found, common)


def family(one: Described, found: Value | Mapping[tuple[str, ...], Value], common: Mapping[str, str]) -> Metric:
    """One metric with its samples. Raises ValueError if these have not the labels of the metric."""
    names = (*common, *one.labels)
    samples = found if isinstance(found, Mapping) else {(): found}
    made: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    match one.form:
        case Form.COUNTER:
            made = CounterMetricFamily(one.name, one.help, labels=names)
        case Form.GAUGE:
            made = GaugeMetricFamily(one.name, one.help, labels=names)
        case Form.HISTOGRAM:
            made = HistogramMetricFamily(one.name, one.help, labels=names)
    for labels, value in samples.items():
        if len(labels) != len(one.labels):
            raise ValueError(f"{one.name} has the labels {one.labels}, not {labels}")
        values = (*common.values(), *labels)
        if isinstance(value, Distribution):
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            buckets = list(zip(bounds, value.cumulated, strict=True))
            made.add_metric(values, buckets, value.total)  # type: ignore[arg-type]
        else:
            made.add_metric(values, float(value))  # type: ignore[call-arg, arg-type]
    return made


def page_of(*collectors: Collector) -> Callable[[], Page]:
    """What makes the page ``/metrics`` of these."""
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    return lambda: Page(200, generate_latest(registry), CONTENT_TYPE_LATEST)
