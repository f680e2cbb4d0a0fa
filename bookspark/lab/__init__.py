"""Experiments with the protocol and the product. Only the command line imports them.

==============  ===================================================================================
``simulation``  the protocol's machines through every order of events, and through failures
``replay``      recorded decisions, repeated and judged
``bench``       measurements, alone and beside other systems
``demo``        ``bookspark run``: real data through Spark into ledgers and back
==============  ===================================================================================
"""
