//! Which faults come when, and where.

use super::*;
use crate::tools::drill::brokers::KINDS;

#[test]
fn faults_come_after_three_seconds_of_health_and_heal_before_the_load_ends() {
    for drill in Drill::ALL {
        for seed in 0..200 {
            let schedule = drill.schedule(seed, 24, 3000, 3, Breakable::Servers, &KINDS);
            assert!(schedule.iter().all(|s| s.from_ms >= 3000 && s.from_ms < s.until_ms), "{drill:?}");
            assert!(schedule.iter().all(|s| s.until_ms <= 24_000), "{drill:?} {seed} {schedule:?}");
            let has_none = matches!(drill, Drill::SlowHook | Drill::Crowd | Drill::Fds | Drill::LeaseStorm);
            assert_eq!(schedule.is_empty(), has_none);
        }
    }
}

#[test]
fn two_faults_at_once_have_two_resources() {
    for drill in Drill::ALL {
        for seed in 0..200 {
            let schedule = drill.schedule(seed, 60, 3000, 3, Breakable::Servers, &KINDS);
            for (index, one) in schedule.iter().enumerate() {
                let clash = schedule[..index].iter().any(|other| {
                    let apart = other.until_ms < one.from_ms || one.until_ms < other.from_ms;
                    !apart && other.kind.resource() == one.kind.resource()
                });
                assert!(!clash, "{drill:?} {seed} {schedule:?}");
            }
        }
    }
}

#[test]
fn only_the_brokers_that_are_there_are_broken() {
    for drill in [Drill::BrokerKill, Drill::BrokerStop, Drill::BrokerFull] {
        let of = |kinds: &[Kind]| drill.schedule(1, 24, 3000, 3, Breakable::Servers, kinds);
        assert_eq!(of(&KINDS).len(), drill.of_brokers().len(), "{drill:?}");
        let of_redis = of(&[Kind::RedisStream]);
        assert!(of_redis.len() == 1 && of_redis[0].kind.broker() == Some(Kind::RedisStream), "{drill:?}");
        assert!(of(&[]).is_empty());
        assert_eq!(drill.needs(&[Kind::Nats]).brokers, Some(Vec::new()), "{drill:?}");
    }
    assert_eq!(Drill::Kill.needs(&KINDS).brokers, None);
}

#[test]
fn compound_breaks_only_what_can_be_broken() {
    for seed in 0..200 {
        let embedded = Drill::Compound.schedule(seed, 60, 3000, 1, Breakable::Nodes, &KINDS);
        let nodes = |s: &ScheduledFault| {
            matches!(s.kind, FaultKind::Restart(_) | FaultKind::Kill(_) | FaultKind::Pause(_))
        };
        assert!(embedded.iter().all(nodes));
        let given = Drill::Compound.schedule(seed, 60, 3000, 3, Breakable::Connections, &KINDS);
        assert!(given.iter().all(|s| !s.kind.needs_own_servers()));
    }
}
