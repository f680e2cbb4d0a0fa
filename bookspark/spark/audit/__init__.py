"""Audits: SQL over a snapshot, which checks the place of each entry.

===================  ==================================================
``runner``           runs the audit queries and prints their findings
``report``           writes the findings as one HTML page
``integrity_check``  marks lacking copies for autorecovery
===================  ==================================================

The audit queries are the ``*.sql`` files here. The comment at the head of each is its title and explanation. Folder ``views`` has
their shared views, and ``questions`` has the queries of other functions.

::

    from bookspark.spark import audit, session

    findings = audit.run(session("audit"), "/tmp/snapshots", queries=["missing_entries", "orphans"])
    for finding in findings:
        print(finding.title, finding.total)
"""

from __future__ import annotations

from bookspark.spark.audit.report import write_report
from bookspark.spark.audit.runner import Finding, documents, left_out, names, run, safe_to_stop, show

__all__ = ["Finding", "documents", "left_out", "names", "run", "safe_to_stop", "show", "write_report"]
