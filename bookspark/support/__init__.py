"""Small helpers without knowledge of ledgers.

=====================  =====================================================================
``arguments``          types, bounds and choices of arguments and options
``metrics``            every metric for Prometheus, and the counters behind them
``addresses``          ``host:port``, with IPv6 in brackets
``threads``            client threads, and waits that an interrupt may break into
``extras``             extras of the package, and the error for a missing one
``packaged_files``     jobs for spark-submit and settings files of the package
``command_line``       exit statuses, and the end of commands and jobs
``plain_text``         short texts shared by commands, jobs and the demo
``printed_tables``     tables for a terminal of any width
``protobuf_messages``  messages of Protocol Buffers, made from tables
``snapshot_commits``   versions of Delta tables that make one snapshot
``cache_folder``       place of files that can be made again
``certificates``       TLS certificates and keys: loaded, and their last moments
``private_files``      files and directories that are private to this user
``password_option``    the option of commands and jobs for a password
=====================  =====================================================================
"""
