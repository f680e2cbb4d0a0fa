"""Ledger storage: bytes, disks, connections and records, driven by the protocol's decisions (docs/architecture.md).

====================  ==============================================================================================
``wire``              frames between clients and bookies: headers, entry batches, digests
``metadata``          ledgers, cookies and registrations in ZooKeeper, or in memory
``bookie``            a bookie's disk and its server
``client``            ``BookKeeper``, its handles and connections
``autorecovery``      the auditor, the replication workers and the healing of a bookie
``decisions``         the record of the machines' events and actions
``cluster_view``      registrations, cookies and answers of the bookies
``settings``          settings files and environment variables
``changes_config``    the options of a change of the cluster
====================  ==============================================================================================
"""
