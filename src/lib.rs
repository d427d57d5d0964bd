//! Mainspring: a durable alarm-clock service.
//!
//! A business service says "wake me about this at that moment"; Mainspring keeps it in SQL and calls back at
//! the right second, through crashes, restarts and outages.
//!
//! # The life of a timer
//!
//! 1. **Register** ([`api`] → [`writer`] → [`cold`]). A request is checked and becomes a row of `timers`. Requests
//!    that wait are committed together; the answer follows the flush. The *shard* of a timer is a hash of its
//!    owner; `wake_at` says when a node must look at it: at its due time. One node owns each shard
//!    ([`ownership`]: a lease, and an *epoch* that only rises).
//! 2. **Promotion** ([`promotion`], [`hot::loader`], [`hot::promoter`]). Far-future timers rest in SQL and cost
//!    nothing. A timer due within the window gets a *pointer* in a slot of the [`wheel`]s. The loader raises the
//!    shard's *watermark* and then scans below it; a timer that is written below the watermark is promoted after
//!    its commit. A pointer holds no payload and may be stale.
//! 3. **Its time comes** ([`hot::ticker`], [`hot::last_mile`]). A minute's slot is cascaded into seconds. A second's
//!    slot is taken half a second before it begins. The last mile keeps its pointers in order of their
//!    milliseconds.
//! 4. **Claim** ([`dispatch`]). 50 ms ahead, when the receiver's lane has room, one SQL statement moves the row to
//!    `delivering`, if its generation and attempt are still the pointer's and the shard's epoch is still this
//!    node's. Cancel and reschedule contend for the same row, so exactly one of them wins. `wake_at` becomes the
//!    moment at which the claim expires.
//! 5. **Attempt** ([`dispatch`] → [`sink`]). At the due millisecond by the store's clock the lease is checked once
//!    more. Then a sink sends a CloudEvent, under the one delivery id of this firing.
//! 6. **End, or retry** ([`model::timer::Life::step`]). Success: the row moves to `history` in the statement that ends
//!    it. Failure: it waits as `retrying` for its next attempt, through the wheels like the first, until it is out of
//!    attempts and `dead`. Unknown outcome (no answer, broken connection, killed node): it is tried again, and from
//!    then on no answer says that nothing was sent.
//! 7. **Recovery** ([`sweep`], [`hot::replay`]). SQL decides, the wheels only suggest. The sweep finds rows that are a
//!    second overdue and in no node's hands, so a lost pointer costs a second or two. After a restart, a take-over
//!    or a loss of the wheels, replay reads from SQL what is overdue and what belongs into the wheels. The claims of
//!    a dead owner are due again.
//!
//! # What is promised, and the test that proves it
//!
//! The tests are in `tests/it`, one module a file; `scripts/test` runs them all. Those that run on several
//! stores stand below modules named after them.
//!
//! 1. **Durable.** A 2xx to a registration, change or cancel is given only after it is flushed to the cold
//!    store. `durable::sqlite_flushes_what_is_acknowledged`,
//!    `durable::postgres_flushes_what_is_acknowledged_whatever_its_default`,
//!    `durable::what_postgres_waits_for_at_replicas_stays_as_it_was_set`,
//!    `crash::nothing_is_lost_on_sqlite`, `crash::nothing_is_lost_on_postgres`
//! 2. **No loss.** Every acknowledged timer ends in exactly one of `delivered`, `cancelled`, `expired`,
//!    `dead`; registered = those + pending, at any audit.
//!    `crash::nothing_is_lost_on_postgres_with_two_nodes`, `wheels::law::wheels_in_redis_fire_what_a_sorted_map_says`,
//!    `wheels::watermark::many_writers_beside_a_moving_window_are_all_served`,
//!    `store::look::history_goes_after_its_retention_and_the_totals_stay`, `store::look::a_planted_loss_is_found_by_verify`,
//!    `operations::crash::a_node_that_is_killed_leaves_the_rest_to_the_next`
//! 3. **Never early.** No attempt starts before its due time by the store's clock. (The claim may come a
//!    moment before.) `store::claim::a_timer_is_claimed_at_its_due_time_and_never_before`,
//!    `paths::a_healthy_node_leaves_nothing_to_the_sweep`, `races::every_answer_is_true_on_postgres`
//! 4. **Redis is disposable.** Emptied, rolled back, stopped or replaced while running, it costs lateness,
//!    never a timer and never a wrong firing. `bad_days::redis::redis_emptied_costs_no_timer`,
//!    `bad_days::redis::redis_restarted_empty_costs_no_timer`, `bad_days::redis::redis_rolled_back_costs_no_timer`,
//!    `bad_days::redis::redis_stopped_costs_two_nodes_no_timer`, `bad_days::redis::redis_replaced_costs_two_nodes_no_timer`,
//!    `bad_days::cluster::a_master_that_is_lost_and_comes_back_empty_costs_its_shards_lateness_and_no_timer`
//! 5. **A cancel tells the truth.** `races::every_answer_is_true_on_sqlite`,
//!    `races::every_answer_is_true_on_postgres`, `store::claim::of_a_claim_and_a_cancel_exactly_one_wins`,
//!    `operations::live::of_an_operation_and_a_caller_one_cancels`,
//!    `store::queues::a_cancel_tells_the_truth_about_places`
//! 6. **A change tells the truth.** Once a reschedule is acknowledged, the old due time never fires.
//!    `races::every_answer_is_true_on_postgres`, `store::claim::a_claim_of_an_older_generation_gets_nothing`,
//!    `store::live_operations::a_shift_moves_each_timer_once`, `store::paused::nobody_claims_a_paused_timer`
//! 7. **One identity.** All attempts of one delivery (a firing, one place of a timer for a queue, a merged set) carry
//!    one delivery id; no two deliveries share one; duplicates happen only after a failure, a timeout or a crash in flight.
//!    `crash::nothing_is_lost_on_postgres_with_two_nodes`,
//!    `store::register::an_ended_id_stays_taken_and_again_starts_the_next_generation`,
//!    `operations::crash::of_a_redrive_and_a_registration_again_exactly_one_wins`,
//!    `queue::crowd::of_two_hundred_workers_on_two_nodes_each_place_goes_to_one`
//! 8. **Fenced.** A node that lost a shard can no longer promote or claim for it; a late result counts only
//!    for the attempt it belongs to. `wheels::watermark::an_owner_under_an_old_epoch_moves_nothing`,
//!    `store::claim::a_claim_under_an_older_epoch_gets_nothing`, `store::claim::a_late_result_counts_only_for_its_own_attempt`,
//!    `crash::a_node_that_slept_beyond_its_lease_fires_nothing_twice`,
//!    `store::owners::what_was_given_up_in_order_is_not_recalled`,
//!    `fleet::hand_over::a_shard_is_handed_over_while_its_attempts_are_under_way`,
//!    `fleet::hand_over::what_was_ceded_is_spared_when_the_next_owner_dies_too`,
//!    `fleet::hand_over::what_a_leaver_had_under_way_when_it_was_killed_comes_again`,
//!    `fleet::hand_over::a_rolling_restart_loses_nothing_and_sends_nothing_twice`,
//!    `fleet::shares::a_fourth_node_gets_its_share_and_leaves_without_a_loss`
//!
//! 9. **Recurring, once.** Each nominal time of a schedule makes exactly one occurrence, or a recorded skip.
//!    `store::schedules::two_makers_make_each_nominal_time_once`,
//!    `store::schedules::what_nobody_could_fire_is_judged_by_the_policy_made_or_not`,
//!    `store::schedules::a_change_cancels_what_is_ahead_but_what_was_touched`,
//!    `store::schedules::what_was_skipped_and_never_made_can_be_made_once`,
//!    `store::schedules::one_that_is_made_late_is_skipped_if_the_one_before_ran_over_its_time`,
//!    `store::schedules::one_that_waits_goes_on_after_a_change_of_its_schedule`,
//!    `recurring::a_node_that_is_killed_a_second_before_the_tick_fires_it_once`,
//!    `recurring::a_take_over_leaves_no_nominal_time_out_and_doubles_none`
//! 10. **Isolation.** A dead or slow destination does not delay the others; retries do not delay first firings.
//!     `fleet::isolation::a_receiver_that_hangs_and_one_that_refuses_do_not_delay_a_third`,
//!     `fleet::isolation::a_receiver_that_is_slow_and_much_in_demand_does_not_delay_another`,
//!     `fleet::isolation::without_wheels_what_waits_for_one_receiver_does_not_hide_what_is_due_for_another`,
//!     `fleet::isolation::retries_do_not_delay_first_attempts_at_the_same_receiver`,
//!     `bad_days::strain::receivers_that_cannot_be_reached_do_not_delay_others`,
//!     `places::limits::one_that_fails_is_tried_singly_and_comes_back`
//!
//! 11. **Apart.** No call tells or changes anything of another namespace than its own, and the ledger balances for each.
//!     `rest::namespaces::what_another_namespace_has_is_answered_as_if_it_were_not_there`,
//!     `rest::namespaces::each_fires_from_its_own_and_is_told_of_its_own`,
//!     `store::namespaces::one_id_is_a_timer_in_each_namespace`,
//!     `store::namespaces::ids_of_the_services_own_form_are_each_namespaces_own`,
//!     `store::namespaces::the_ledger_balances_for_each_namespace_and_for_all`,
//!     `page::who::a_visitor_sees_the_namespace_of_his_key`
//!
//! All of these together, in seeded runs of whole nodes while everything goes wrong: `tests/it/sim`, which also
//! shows that it would find the defects of a list ([`planted`]).
//!
//! Not promised: exactly-once effects at a receiver that ignores the delivery id; order between timers.
//!
//! # Rooms
//!
//! A room knows only rooms below it; `docs/architecture.md` has the order and three walk-throughs.
//!
//! | room | what it is for |
//! |---|---|
//! | [`model`] | ids, time, state and its one transition, pointer, target, policies; no I/O |
//! | [`cold`] | the SQL truth, on PostgreSQL and SQLite |
//! | [`wheel`] | the slots, in Redis and in process: theory, levels, a worked example |
//! | [`destinations`] | named places for deliveries: known here, sealed in SQL, paced for all nodes together |
//! | [`templates`] | named JSON Schemas with defaults, ready to merge and check payloads |
//! | [`ownership`], [`positions`] | which shards are this node's; where their wheels stand |
//! | [`promotion`] | the queue of timers that were just written, on their way into the wheels |
//! | [`writer`] | the only writer of timers: commits in groups, then promotes and counts |
//! | [`sink`] | one attempt at a receiver: a delivery in, an outcome out |
//! | [`dispatch`] | lanes, claim, attempt, result |
//! | [`queue`] | what workers fetch themselves: lease, settle, wait |
//! | [`operations`] | one action on many timers, in bounded steps that any node goes on with |
//! | [`schedule`] | makes the occurrences of schedules ahead of their times |
//! | [`hot`] | from SQL into the wheels, from the wheels to the due millisecond, and replay after a loss |
//! | [`sweep`] | the guarantee: overdue rows that no node has claimed |
//! | [`outbox`] | lifecycle events: from the transaction that makes them true to who subscribed |
//! | [`housekeeping`] | partitions, retention, statistics |
//! | [`observe`] | gauges, the overview and the frames of the live picture: for people |
//! | [`service`] | what the doors hold |
//! | [`api`], [`admin`], [`cli`] | the doors: REST, the page, the command line |
//! | [`app`] | start, watch, stop |
//! | [`tools`] | `bench` measures a server, `drill` rehearses failures; both from outside |
//! | [`traces`] | spans of calls and attempts, exported by OTLP: a build option |
//! | [`limits`] | open files, and how a node's duties share them |
//! | [`config`], [`clock`], [`metrics`], [`telemetry`] | settings, time, series, log lines |
//! | [`planted`] | defects that test builds can plant |

pub mod admin;
pub mod api;
pub mod app;
pub mod cli;
pub mod clock;
pub mod cold;
pub mod config;
pub mod destinations;
pub mod dispatch;
pub mod hot;
pub mod housekeeping;
pub mod limits;
pub mod metrics;
pub mod model;
pub mod observe;
pub mod operations;
pub mod outbox;
pub mod ownership;
pub mod planted;
pub mod positions;
pub mod promotion;
pub mod queue;
pub mod schedule;
pub mod service;
pub mod sink;
pub mod sweep;
pub mod telemetry;
pub mod templates;
pub mod tools;
pub mod traces;
pub mod wheel;
pub mod writer;

#[cfg(test)]
mod tests {
    /// A promise that names no test, or one that is gone, is no promise.
    #[test]
    fn every_promise_names_tests_that_exist() {
        let tests = format!("{}/tests/it", env!("CARGO_MANIFEST_DIR"));
        let front = include_str!("lib.rs");
        let after = front.split_once("//! # What is promised").expect("the heading").1;
        let promised = after.split_once("//! Not promised").expect("the end").0;
        let promises: Vec<&str> = promised.split(". **").skip(1).collect();
        assert_eq!(promises.len(), 11, "the ten of the contract, and that of namespaces");
        for promise in promises {
            // What is linked is a room, and stands in square brackets.
            let named: Vec<&str> = promise
                .split('`')
                .filter(|word| !word.contains(['[', ' ', '(']))
                .filter(|word| word.contains("::"))
                .collect();
            assert!(!named.is_empty(), "a promise without a test: {promise}");
            for name in named {
                let (module, test) = name.rsplit_once("::").expect("a path");
                let path = format!("{tests}/{}.rs", module.replace("::", "/"));
                let source =
                    std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{name} names no module"));
                assert!(source.contains(&format!("async fn {test}(")), "{path} has no {test}");
            }
        }
    }
}
