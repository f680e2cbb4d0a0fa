"""Audits: SQL over a snapshot that answers where each entry lies, and whether it should lie there.

===================  =============================================================================
``runner``           runs the audit queries over a snapshot, and prints what they find
``report``           writes the findings as one HTML page
``integrity_check``  marks for autorecovery what bookies lack
===================  =============================================================================

The audit queries are the ``*.sql`` files here; the comment at the head of each is its title and explanation. The folder ``views``
has views that they share, and ``questions`` has queries that other functions ask.

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
