//! Mainspring: a durable alarm-clock service.
//!
//! A business service says "wake me about this at that moment"; Mainspring keeps it in SQL and calls back at
//! the right second, through crashes, restarts and outages.
//!
//! # The life of a timer
//!
//! 1. **Register** ([`api`] → [`intake`] → [`cold`]). A request is checked and becomes a row of `timers`,
//!    committed in a group with whoever else waits; the answer follows the flush. Its *shard* is a hash of
//!    its owner; its `wake_at` says when somebody must look at it: at its due time.
//! 2. **Due** ([`sweep`]). Each shard is owned by one node ([`ownership`]: a lease, and an *epoch* that only
//!    rises). Four times a second the owner probes its shards for rows whose `wake_at` has passed and hands
//!    *pointers* to the dispatcher; a pointer holds no payload and may be stale.
//! 3. **Claim** ([`dispatch`]). When the receiver's lane has room, one SQL statement moves the row to
//!    `delivering`, if its generation and attempt are still the pointer's, it is due by the store's clock,
//!    and the shard's epoch is still this node's. Cancel and reschedule contend for the same row, so exactly
//!    one of them wins. `wake_at` becomes the moment at which the claim expires.
//! 4. **Attempt** ([`dispatch`]). The lease is looked at once more; then a CloudEvent goes out over HTTP,
//!    under the one delivery id of this firing.
//! 5. **End, or again** ([`model::timer::Life::step`]). Taken: the row moves to `history` in the statement
//!    that ends it. Not taken: it waits, as `retrying`, for its next attempt, until it is out of attempts and
//!    `dead`. Unknown (no answer, broken off, node killed): it is tried again, and from then on nobody is
//!    told that nothing was sent.
//! 6. **After a crash** nothing has to be repaired: the new owner of a shard makes what the old one had
//!    claimed due again; everything else still waits in SQL.
//!
//! # What is promised, and the test that proves it
//!
//! The tests are in `tests/it`, one module a file; `scripts/test` runs them all.
//!
//! 1. **Durable.** A 2xx to a registration, change or cancel is given only after it is flushed to the cold
//!    store. `crash::nothing_is_lost_on_sqlite`, `crash::nothing_is_lost_on_postgres`
//! 2. **No loss.** Every acknowledged timer ends in exactly one of `delivered`, `cancelled`, `expired`,
//!    `dead`; registered = those + pending, at any audit.
//!    `crash::nothing_is_lost_on_postgres_with_two_nodes`,
//!    `store::history_goes_after_its_retention_and_the_totals_stay`, `store::a_planted_loss_is_found_by_verify`
//! 3. **Never early.** No attempt starts before its due time by the store's clock.
//!    `store::a_timer_is_claimed_at_its_due_time_and_never_before`, `races::every_answer_is_true_on_postgres`
//! 5. **A cancel tells the truth.** `races::every_answer_is_true_on_sqlite`,
//!    `races::every_answer_is_true_on_postgres`, `store::of_a_claim_and_a_cancel_exactly_one_wins`
//! 6. **A change tells the truth.** Once a reschedule is acknowledged, the old due time never fires.
//!    `races::every_answer_is_true_on_postgres`, `store::a_claim_of_an_older_generation_gets_nothing`
//! 7. **One identity.** All attempts of one firing carry one delivery id; no two firings share one;
//!    duplicates happen only after a failure, a timeout or a crash in flight.
//!    `crash::nothing_is_lost_on_postgres_with_two_nodes`,
//!    `store::an_ended_id_stays_taken_and_again_starts_the_next_generation`
//! 8. **Fenced.** A node that lost a shard can no longer claim for it; a late result counts only for the
//!    attempt it belongs to. `store::a_claim_under_an_older_epoch_gets_nothing`,
//!    `store::a_late_result_counts_only_for_its_own_attempt`,
//!    `crash::a_node_that_slept_beyond_its_lease_fires_nothing_twice`
//!
//! The numbers are those of the public contract; 4 (the wheels in Redis may vanish), 9 (schedules) and 10
//! (isolation under load) are not promised yet, because what they speak of does not exist yet or is not
//! proven.
//!
//! Not promised: exactly-once effects at a receiver that ignores the delivery id; order between timers.
//!
//! # Rooms
//!
//! | room | what it is for |
//! |---|---|
//! | [`model`] | ids, time, state and its one transition, target, policies; no I/O |
//! | [`cold`] | the SQL truth, on PostgreSQL and SQLite |
//! | [`sweep`] | finds what is due |
//! | [`dispatch`] | lanes, claim, attempt, result |
//! | [`ownership`] | which shards are this node's |
//! | [`intake`] | group commit |
//! | [`housekeeping`] | partitions, retention, statistics |
//! | [`api`], [`cli`] | the doors |
//! | [`app`] | wiring, start and stop |
//! | [`bench`] | measures a server from outside, as its callers and receivers see it |
//! | [`config`], [`clock`], [`metrics`], [`telemetry`] | settings, time, series, log lines |

pub mod api;
pub mod app;
pub mod bench;
pub mod cli;
pub mod clock;
pub mod cold;
pub mod config;
pub mod dispatch;
pub mod housekeeping;
pub mod intake;
pub mod last_mile;
pub mod loader;
pub mod metrics;
pub mod model;
pub mod ownership;
pub mod positions;
pub mod promote;
pub mod replay;
pub mod sweep;
pub mod telemetry;
pub mod ticker;
pub mod wheel;

#[cfg(test)]
mod tests {
    /// A promise that names a test which is gone is no promise.
    #[test]
    fn every_promise_names_tests_that_exist() {
        let front = include_str!("lib.rs");
        let mut named = 0;
        for word in front.lines().filter(|line| line.starts_with("//!")).flat_map(|line| line.split('`')) {
            let Some((file, test)) =
                word.split_once("::").filter(|(file, _)| ["crash", "races", "store"].contains(file))
            else {
                continue;
            };
            let path = format!("{}/tests/it/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            let source = std::fs::read_to_string(&path).unwrap();
            assert!(source.contains(&format!("async fn {test}(")), "{path} has no {test}");
            named += 1;
        }
        assert!(named >= 12, "{named}");
    }
}
