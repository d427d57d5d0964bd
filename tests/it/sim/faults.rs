//! What goes wrong in a run, and how often.

use super::world::{Odds, World};

/// What kind of things go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing; only the order of things is chance.
    Calm,
    /// Statements fail, or their answers are lost.
    Store,
    /// Wheels are emptied, rolled back, replaced, out of reach; calls fail, are lost, come twice.
    Wheels,
    /// Nodes pause, and die between any two steps.
    Nodes,
    /// All of it.
    All,
}

impl Kind {
    pub const fn of(seed: u64) -> Self {
        match seed % 5 {
            0 => Self::Calm,
            1 => Self::Store,
            2 => Self::Wheels,
            3 => Self::Nodes,
            _ => Self::All,
        }
    }
}

impl Kind {
    /// How long things go wrong. A node that pauses must be able to lose its lease, and others to go on with
    /// what it had.
    pub const fn ill_ms(self) -> i64 {
        match self {
            Self::Calm => 0,
            Self::Store | Self::Wheels => 5000,
            Self::Nodes | Self::All => 9000,
        }
    }
}

/// The odds at the gate; without a kind all is well.
pub fn odds(kind: Option<Kind>) -> Odds {
    let well = Odds { hold: 1500, ..Odds::default() };
    match kind {
        None | Some(Kind::Calm) => well,
        Some(Kind::Store) => Odds { fail: 80, lose: 80, ..well },
        Some(Kind::Wheels) => Odds { wheel_fail: 100, wheel_lose: 100, wheel_repeat: 500, ..well },
        Some(Kind::Nodes) => Odds { crash: 4, ..well },
        Some(Kind::All) => {
            Odds { fail: 40, lose: 40, wheel_fail: 50, wheel_lose: 50, wheel_repeat: 200, crash: 2, ..well }
        }
    }
}

/// One thing that goes wrong at its time.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Flush,
    Replace,
    /// What the wheels hold is kept, to be rolled back to.
    Snapshot,
    RollBack,
    WheelsGo,
    WheelsCome,
    /// The node in this seat stands still for so long, best while it waits for a receiver's answer: so many
    /// times more it is put off for that.
    Pause(usize, i64, u32),
    /// The node in this seat dies and is started again so much later.
    Crash(usize, i64),
}

/// What goes wrong in a run of this kind, in order of time. Never empty: as long as there is something left,
/// things go wrong.
pub fn plan(kind: Kind, world: &World, seats: usize) -> Vec<(i64, Fault)> {
    let now = world.now();
    let mut plan = vec![(now, Fault::Snapshot)];
    let at = |from: i64| now + world.pick(from..kind.ill_ms());
    let seat = || usize::try_from(world.pick(0..seats as i64)).expect("small");
    if matches!(kind, Kind::Wheels | Kind::All) {
        match world.pick(0..4) {
            0 => plan.push((at(3000), Fault::RollBack)),
            1 => plan.push((at(0), Fault::Replace)),
            _ => plan.push((at(1500), Fault::Flush)),
        }
        if world.one_in(3) {
            let away = at(0);
            plan.extend([(away, Fault::WheelsGo), (away + world.pick(100..3000), Fault::WheelsCome)]);
        }
    }
    if matches!(kind, Kind::Nodes | Kind::All) {
        let early = now + world.pick(0..1500);
        plan.push((early, Fault::Pause(seat(), world.pick(3500..9000), 40)));
        if world.one_in(2) {
            plan.push((at(0), Fault::Pause(seat(), world.pick(200..5000), 0)));
        }
        if world.one_in(2) {
            plan.push((at(0), Fault::Crash(seat(), world.pick(50..5000))));
        }
    }
    // Comes last, when all is healed already.
    plan.push((now + 2 * kind.ill_ms(), Fault::Snapshot));
    plan.sort_by_key(|(at, _)| *at);
    plan
}
