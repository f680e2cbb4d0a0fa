"""The tables of docs/performance.md, written from what the benches kept.

===========  ==================================================================================================================
``tables``   the tables, and the page with them
===========  ==================================================================================================================

The words about a row, such as what limits it, are the page's own and are written by hand; ``tests/docs`` sees that none lacks.

Example::

    page.write_text(with_tables(page.read_text(), kept_runs(cache)))
"""
