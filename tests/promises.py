"""The tests that judge a promise: whether rows or entries were lost, duplicated, denied or contradicted.

They get the mark ``promise``, and ``tests.gate`` never tries such a test again: if it fails once, the run fails.
"""

from __future__ import annotations

import functools
from pathlib import Path

TESTS = Path(__file__).resolve().parent

_PLACES = """
system/acceptance/test_chaos.py system/acceptance/test_checkpoint_matrix.py system/acceptance/test_many_writers.py
system/acceptance/test_mixed_versions.py system/acceptance/test_offload_changed_tables.py
system/acceptance/test_offload_kills.py system/acceptance/test_promises.py system/acceptance/test_query_kill.py
system/acceptance/test_query_kills.py store/autorecovery/test_auditor_in_memory.py
store/autorecovery/test_exact_check.py store/autorecovery/test_healing_defects.py histories/test_repair_schedules.py
store/autorecovery/test_worker_in_memory.py befell_bookkeeper store/bookie/test_boots.py
store/bookie/test_checkpoint.py store/bookie/test_collection.py store/bookie/test_crash.py
store/bookie/test_directories_apart.py store/bookie/test_directories_in_turn.py
store/bookie/test_durable_before_answered.py store/bookie/test_each_sync.py store/bookie/test_emptied_directories.py
store/bookie/test_every_bit.py store/bookie/test_every_crash.py store/bookie/test_every_crash_reclaiming.py
store/bookie/test_histories.py store/bookie/test_index_twins.py store/bookie/test_kill.py
store/bookie/test_losses_at_boot.py store/bookie/test_lossy_boot.py store/bookie/test_lost_entries.py
store/bookie/test_older_copies.py store/bookie/test_planted_in_histories.py store/bookie/test_rewriting.py
store/bookie/test_rot.py store/bookie/test_scenarios.py store/bookie/test_storage_model.py
store/bookie/test_sync_modes.py store/bookie/test_volatile_ledgers.py servers/bookkeeper/test_fuzzed_door.py
servers/bookkeeper/test_requests.py system/cluster/test_chaos.py system/cluster/test_close_race.py
system/cluster/test_durability_page.py system/cluster/test_durability_rounds.py
system/cluster/test_ensemble_changes_under_faults.py system/cluster/test_failed_disks.py
system/cluster/test_guaranteed_protections.py system/cluster/test_guaranteed_write_quorum.py
system/cluster/test_lossy_boot.py system/cluster/test_published_counterexamples.py
system/cluster/test_recovery_under_faults.py system/cluster/test_relaxed_durability.py
system/cluster/test_self_healing_rounds.py system/cluster/test_writers_lac.py system/compatibility
logs/test_alter_races.py logs/test_append_history.py logs/test_ended_lanes.py logs/test_follow_races.py
logs/test_handled_rows.py logs/test_made_anew.py logs/test_producer_faults.py logs/test_producer_recovered.py
logs/test_retention.py logs/test_sessions_of_readers.py logs/test_shared_lanes.py histories/test_log_schedules.py
operations/moving histories/porcupine protocol histories/test_read_schedules.py lab/replay/test_logs.py
lab/replay/test_replay.py scenarios lab/simulation store/wire spark/test_checkpoint_copies.py
spark/test_checkpoint_states.py spark/test_deleted_ledgers.py spark/test_fingerprints.py spark/test_logs_committer.py
spark/test_lost_entries.py spark/test_lost_rows.py spark/test_offload.py spark/test_offloaded_rows.py
spark/test_query_place.py spark/test_several_logs.py spark/test_sink_and_source.py spark/test_txn_versions.py
spark/test_where_truth.py
"""
# folders and modules
PLACES = tuple(TESTS / place for place in _PLACES.split())


@functools.cache
def judges_a_promise(module: Path) -> bool:
    return not set(PLACES).isdisjoint((module, *module.parents))
