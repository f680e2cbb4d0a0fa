"""Metrics for Prometheus: their names and meanings, and counters that cost the hot path next to nothing.

==============  =======================================================================================
``tables``      every metric: name, kind, help, labels
``described``   the description of a metric
``histogram``   counts by size, copied without a lock
``families``    figures in the form of ``prometheus_client``
``web``         pages over HTTP
==============  =======================================================================================

An example::

    from bookspark.support.metrics.histogram import Histogram

    seconds = Histogram()
    seconds.observe(0.003)
    print(seconds.copy().cumulated)
"""
