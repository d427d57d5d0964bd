//! What is done to a broker, and what shows that it landed: something came to it before, and nothing comes now.

use super::FaultKind;
use crate::clock::wall_us;
use crate::tools::brokers::Kind;
use crate::tools::drill::brokers::Brokers;
use crate::tools::drill::history::{Micros, Recorder};
use crate::tools::drill::wait_until;

/// How long before the fault something has to come.
const BEFORE_US: Micros = 2_000_000;
/// How long the fault waits for something to come: after the fault before, its destination is tried one at a time.
const COMING_US: Micros = 10_000_000;
/// How often is looked whether something has come.
const EVERY_US: Micros = 100_000;
/// How long after the fault began what came before it may still be read: on a busy machine a reader is late.
const READ_US: Micros = 1_000_000;
/// How long nothing has to come, at least. A broker's own tool may take so long that the fault would be over.
const SILENT_US: Micros = 700_000;

/// A broker that is broken.
#[derive(Debug)]
pub struct Broken {
    /// When it began.
    pub from_us: Micros,
    of: Kind,
    /// How many events had come shortly before.
    before: usize,
    /// Nothing comes from then on.
    silent_from_us: Micros,
}

impl Broken {
    /// Breaks a broker once something has come to it.
    pub async fn begin(
        brokers: &mut Brokers,
        recorder: &Recorder,
        kind: FaultKind,
        of: Kind,
    ) -> anyhow::Result<Self> {
        let before = coming(recorder, of).await;
        let from_us = wall_us();
        let broker = brokers.of(of)?;
        match kind {
            FaultKind::BrokerKill(_) => broker.kill().await?,
            FaultKind::BrokerFull(_, full) => broker.fill(full).await?,
            _ => broker.stop()?,
        }
        Ok(Self { from_us, of, before, silent_from_us: wall_us() + READ_US })
    }

    /// Mends it. Returns what shows that it was broken.
    pub async fn end(
        self,
        brokers: &mut Brokers,
        recorder: &Recorder,
        kind: FaultKind,
    ) -> anyhow::Result<Option<String>> {
        let Self { of, before, silent_from_us, .. } = self;
        wait_until(silent_from_us + SILENT_US).await;
        let now_us = wall_us();
        let landed = before > 0 && recorder.arrived_at(of, silent_from_us, now_us) == 0;
        let broker = brokers.of(of)?;
        match kind {
            FaultKind::BrokerKill(_) => broker.start_again().await?,
            FaultKind::BrokerFull(_, full) => broker.make_room(full).await?,
            _ => broker.resume()?,
        }
        Ok(landed.then(|| {
            let seconds = (now_us - silent_from_us) as f64 / 1e6;
            format!("{}: nothing came for {seconds:.1} s, {before} events in the 2 s before", of.word())
        }))
    }
}

/// How many events came shortly before now; waits until there are some.
async fn coming(recorder: &Recorder, of: Kind) -> usize {
    let give_up_us = wall_us() + COMING_US;
    loop {
        let now_us = wall_us();
        let came = recorder.arrived_at(of, now_us - BEFORE_US, now_us);
        if came > 0 || now_us > give_up_us {
            return came;
        }
        wait_until(now_us + EVERY_US).await;
    }
}
