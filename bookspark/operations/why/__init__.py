"""Troubles of a cluster, their causes and remedies: the answers of ``bookspark why``.

===================  ===========================================================================================================
``facts``            plain values: the facts of one look, and answers
``words``            names, counts and times in sentences
``bookie_troubles``  troubles of one bookie
``troubles``         all troubles of a cluster, the worst first
``answers``          answers to questions about one ledger, bookie, disk or log
``gathering``        looks at a cluster: one pass over ZooKeeper and the bookies' statuses
``questions``        the words of a question
``picture``          a line for each bookie, for a terminal
``telling``          answers questions about a live cluster; answers as text
===================  ===========================================================================================================

Law: a look changes nothing and ends in time. Answers are functions of the facts and use the protocol's decisions
(``protocol.changes.safety``, ``protocol.ledger.quorum``) instead of rules of their own. Every named command exists.

Example::

    health = health_of(gather(bookkeeper))
    print(health.sentence)
    for trouble in health.troubles:
        print(trouble.verdict, trouble.command)
"""
