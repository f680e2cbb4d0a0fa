"""What is wrong with a cluster, why, and what to type: the answers behind ``bookspark why``.

===================  ===========================================================================================================
``facts``            what was seen, and what is concluded: plain values
``words``            names, counts and times in sentences
``bookie_troubles``  what one bookie tells of itself
``troubles``         every trouble that the facts show, the worst first
``answers``          an answer to a question about one ledger, bookie, disk or log
``gathering``        looks at a cluster: one pass over ZooKeeper and the bookies' statuses
``questions``        the words of a question
``picture``          a line for each bookie, for a terminal that is looked at
``telling``          answers a question about a cluster that lives; answers as text
===================  ===========================================================================================================

Law: looking changes nothing, and ends in time. Answers are functions of the facts and use the decisions of the protocol
(``protocol.changes.safety``, ``protocol.ledger.quorum``) instead of rules of their own. Every command that is named exists.

Example::

    health = health_of(gather(bookkeeper))
    print(health.sentence)
    for trouble in health.troubles:
        print(trouble.verdict, trouble.command)
"""
