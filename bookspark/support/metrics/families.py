"""Figures in the form of ``prometheus_client``. It is imported only here, so only processes with metrics need it.

Law: every figure is described, and has the labels of its description. Anything else is a defect, and the scrape fails.
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
    """Reads the figures at each scrape."""

    def __init__(
        self,
        described: Sequence[Described],
        figures: Callable[[], tuple[Figures, Mapping[str, str]]],
    ) -> None:
        """``figures`` returns the figures, and the labels common to all of them. Called in the thread of the scrape."""
        self._described = {one.name: one for one in described}
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registration reads no figures."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        figures, common = self._figures()
        for name, found in figures.items():
            yield family(self._described[name], found, common)


def family(one: Described, found: Value | Mapping[tuple[str, ...], Value], common: Mapping[str, str]) -> Metric:
    """One metric with its samples. Raises ValueError if their labels are not the metric's."""
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
    """The function that makes the page ``/metrics`` of these collectors."""
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    return lambda: Page(200, generate_latest(registry), CONTENT_TYPE_LATEST)
