"""Feeds: the rows of a log between two offsets, in all lanes, as the log grows.

===============  ============================================================
``log_feed``     the union of a log's lanes, between two offsets
``lane_feed``    one lane, between two rows
``times``        times that select rows, and the times of rows
``gaps``         unread rows, and their kinds
``lost_rows``    errors and counts of missing rows
===============  ============================================================

::

    from bookspark import BookKeeper
    from bookspark.logs.feeds.log_feed import LogFeed

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        feed = LogFeed(bookkeeper, "orders", b"", fail_on_data_loss=True)
        print(feed.earliest(), feed.newest())
"""
