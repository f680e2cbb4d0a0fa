"""The tests that judge a promise: whether rows or entries were lost, doubled, denied or contradicted.

They get the mark ``promise``, and ``tests.gate`` never tries one again: if it fails once, the run fails.
"""

from __future__ import annotations

import functools
from pathlib import Path

TESTS = Path(__file__).resolve().parent

_PLACES = """
acceptance/test_chaos.py acceptance/test_checkpoint_matrix.py acceptance/test_many_writers.py
acceptance/test_mixed_versions.py acceptance/test_offload_changed_tables.py acceptance/test_offload_kills.py
acceptance/test_promises.py acceptance/test_query_kill.py acceptance/test_query_kills.py
autorecovery/test_auditor_in_memory.py autorecovery/test_exact_check.py autorecovery/test_healing_defects.py
autorecovery/test_repair_schedules.py autorecovery/test_worker_in_memory.py
befell_bookkeeper
bookie/test_boots.py bookie/test_checkpoint.py bookie/test_collection.py bookie/test_crash.py
bookie/test_directories_apart.py bookie/test_directories_in_turn.py bookie/test_durable_before_answered.py
bookie/test_each_sync.py bookie/test_emptied_directories.py bookie/test_every_bit.py bookie/test_every_crash.py
bookie/test_every_crash_reclaiming.py bookie/test_histories.py bookie/test_index_twins.py bookie/test_kill.py
bookie/test_losses_at_boot.py bookie/test_lossy_boot.py bookie/test_lost_entries.py bookie/test_older_copies.py
bookie/test_planted_in_histories.py bookie/test_rewriting.py bookie/test_rot.py bookie/test_scenarios.py
bookie/test_storage_model.py bookie/test_sync_modes.py bookie/test_volatile_ledgers.py
bookkeeper/test_fuzzed_door.py bookkeeper/test_requests.py
cluster/test_chaos.py cluster/test_close_race.py cluster/test_durability_page.py cluster/test_durability_rounds.py
cluster/test_ensemble_changes_under_faults.py cluster/test_failed_disks.py cluster/test_guaranteed_protections.py
cluster/test_guaranteed_write_quorum.py cluster/test_lossy_boot.py cluster/test_published_counterexamples.py
cluster/test_recovery_under_faults.py cluster/test_relaxed_durability.py cluster/test_self_healing_rounds.py
cluster/test_writers_lac.py
compatibility
logs/test_alter_races.py logs/test_append_history.py logs/test_ended_lanes.py logs/test_follow_races.py
logs/test_made_anew.py logs/test_producer_faults.py logs/test_retention.py logs/test_schedules.py logs/test_shared_lanes.py
moving porcupine protocol reading replay/test_logs.py replay/test_replay.py scenarios simulation wire
spark/test_checkpoint_copies.py spark/test_checkpoint_states.py spark/test_deleted_ledgers.py spark/test_fingerprints.py
spark/test_logs_committer.py spark/test_lost_entries.py spark/test_lost_rows.py spark/test_offload.py
spark/test_offloaded_rows.py spark/test_query_place.py spark/test_several_logs.py
spark/test_sink_and_source.py spark/test_txn_versions.py spark/test_where_truth.py
"""
PLACES = tuple(TESTS / place for place in _PLACES.split())
"""Folders and modules."""


@functools.cache
def judges_a_promise(module: Path) -> bool:
    return not set(PLACES).isdisjoint((module, *module.parents))
