//! What happens next: one step at a time, as the seed says.

use std::sync::Arc;

use super::clients::Ask;
use super::faults::{Fault, Kind};
use super::node::{Node, Task};
use super::operations::Outcome;
use super::operators::Wish;
use super::planners::Order;
use super::receiver::Receivers;
use super::run::{Call, Caller, Run, SHARDS, WINDOW_MS};
use super::workers::Deed;
use super::world::World;

/// What can be done next.
enum Choice {
    Begin(usize, usize),
    Duty(usize, usize),
    Loop(usize, usize),
    Call(usize),
}

impl Run {
    /// One step: something that is due, or time moves on.
    pub async fn step(&mut self, end: i64) {
        self.steps += 1;
        self.happen().await;
        let now = self.world.now();
        let choices = self.choices(now);
        let oldest = self.oldest().unwrap_or(now);
        // While all is well nobody is held up for long.
        let moves = now - oldest < 60 || self.is_ill();
        if choices.is_empty() || (moves && self.world.one_in(40)) {
            let next = self.next_at().unwrap_or(end).clamp(now + 1, end.max(now + 1));
            let next = if choices.is_empty() { next } else { next.min(now + self.world.pick(1..40)) };
            self.world.turn(next);
            for seat in &mut self.seats {
                if let Some(node) = seat.node.as_mut().filter(|node| self.world.runs(node.process)) {
                    node.mile();
                }
            }
            return self.settle().await;
        }
        let chance = usize::try_from(self.world.pick(0..choices.len() as i64)).expect("small");
        let ranked = (0..choices.len()).max_by_key(|one| self.rank(&choices[*one])).unwrap_or(chance);
        let choice = &choices[if self.world.one_in(4) { chance } else { ranked }];
        self.take(choice).await;
        // Only these start attempts, or tell them something.
        if matches!(choice, Choice::Loop(..)) {
            self.settle().await;
        }
        if let Some(process) = self.world.crashed() {
            let back = now + self.world.pick(100..5000);
            let seat = self
                .seats
                .iter()
                .position(|seat| seat.node.as_ref().is_some_and(|node| node.process == process));
            if let Some(seat) = seat {
                self.bury(seat, back);
            }
        }
        if self.world.epochs_moved() {
            let rows = self.common.store.shard_rows(&[]).await.expect("reads");
            let epochs = rows.into_iter().map(|row| (row.shard, (row.epoch.0, row.spared.0)));
            self.clients.book.lock().expect("plain").set_epochs(epochs, self.settled);
        }
    }

    fn rank(&self, choice: &Choice) -> i64 {
        let node = |seat: usize| self.seats[seat].node.as_ref().expect("offered");
        match *choice {
            Choice::Begin(..) => i64::MAX,
            Choice::Duty(seat, duty) => node(seat).duties[duty].task.as_ref().map_or(0, |task| task.rank),
            Choice::Loop(seat, one) => node(seat).loops[one].rank,
            Choice::Call(call) => self.calls[call].task.rank,
        }
    }

    async fn take(&mut self, choice: &Choice) {
        let now = self.world.now();
        match *choice {
            Choice::Begin(seat, duty) => {
                let node = self.seats[seat].node.as_mut().expect("chosen");
                node.duties[duty].task = Some(node.begin(node.duties[duty].duty));
                Box::pin(self.take(&Choice::Duty(seat, duty))).await;
            }
            Choice::Duty(seat, duty) => {
                let node = self.seats[seat].node.as_mut().expect("chosen");
                let due = &mut node.duties[duty];
                let task = due.task.as_mut().expect("chosen");
                if let Some(wait) = task.turn(&self.world).await {
                    due.task = None;
                    due.next_at = now + wait.max(1);
                } else {
                    hold(&self.world, node.process, task, !self.faults.is_empty());
                }
                node.mile();
            }
            Choice::Loop(seat, one) => {
                let node = self.seats[seat].node.as_mut().expect("chosen");
                let task = &mut node.loops[one];
                if self.world.one_in(8) {
                    task.rank = self.world.rank();
                }
                if task.turn(&self.world).await.is_some() {
                    self.world.wrong(format!("the {} loop ended", task.name));
                } else if task.is_ready(now) {
                    hold(&self.world, node.process, task, !self.faults.is_empty());
                }
                node.mile();
            }
            Choice::Call(call) => {
                let Call { process, task, .. } = &mut self.calls[call];
                if task.turn(&self.world).await.is_some() {
                    self.calls.remove(call);
                } else {
                    hold(&self.world, *process, task, !self.faults.is_empty());
                }
            }
        }
    }

    fn choices(&self, now: i64) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (place, seat) in self.seats.iter().enumerate() {
            let Some(node) = seat.node.as_ref().filter(|node| self.world.runs(node.process)) else {
                continue;
            };
            for (number, due) in node.duties.iter().enumerate() {
                match &due.task {
                    Some(task) if task.is_ready(now) => choices.push(Choice::Duty(place, number)),
                    None if due.next_at <= now => choices.push(Choice::Begin(place, number)),
                    _ => {}
                }
            }
            for (number, task) in node.loops.iter().enumerate().filter(|(_, task)| task.is_ready(now)) {
                let _ = task;
                choices.push(Choice::Loop(place, number));
            }
        }
        for (number, call) in self.calls.iter().enumerate() {
            if call.task.is_ready(now) && self.world.runs(call.process) {
                choices.push(Choice::Call(number));
            }
        }
        choices
    }

    /// Since when the one who waits longest does.
    fn oldest(&self) -> Option<i64> {
        let nodes = self.seats.iter().filter_map(|seat| seat.node.as_ref());
        let duties = nodes.flat_map(|node| node.duties.iter().filter_map(|due| due.task.as_ref()));
        duties.chain(self.calls.iter().map(|call| &call.task)).map(|task| task.since).min()
    }

    fn next_at(&self) -> Option<i64> {
        let seats = self.seats.iter().filter_map(|seat| match (&seat.node, seat.until) {
            (Some(node), None) => node.next_at(),
            (_, until) => until,
        });
        let faults = self.faults.first().map(|(at, _)| *at);
        let asks = (self.asks_left > 0).then_some(self.next_ask);
        let held = self.calls.iter().map(|call| call.task.held_until).filter(|at| *at > self.world.now());
        let deeds = self.workers.crew.lock().expect("plain").next_at().filter(|_| self.has_open_places());
        let orders = self.office.planners.lock().expect("plain").next_at();
        let wishes = self.control.operator.lock().expect("plain").next_at();
        seats
            .chain(faults)
            .chain(asks)
            .chain(deeds)
            .chain(orders)
            .chain(wishes)
            .chain(held)
            .chain(self.world.next_waking())
            .min()
    }

    /// What comes at its time: faults, starts, ends of pauses, and clients.
    async fn happen(&mut self) {
        let now = self.world.now();
        while self.faults.first().is_some_and(|(at, _)| *at <= now) {
            let (_, fault) = self.faults.remove(0);
            self.befall(fault).await;
        }
        for place in 0..self.seats.len() {
            if self.seats[place].until.is_none_or(|until| until > now) {
                continue;
            }
            self.seats[place].until = None;
            match &mut self.seats[place].node {
                Some(node) => {
                    self.world.pauses(node.process, false);
                    node.mile();
                    self.settle().await;
                }
                None => self.start(place),
            }
        }
        // By steps, not by time: so that others are in the middle of something.
        if self.asks_left > 0 && (self.next_ask <= now || self.world.one_in(16)) {
            self.asks_left -= 1;
            self.next_ask = now + 400;
            let book = self.clients.book.lock().expect("plain");
            let (fired, contested) = (book.fired(), book.contested());
            drop(book);
            let mut desk = self.clients.desk.lock().expect("plain");
            let contested = contested.and_then(|uid| desk.ask_again(uid, &self.world, WINDOW_MS));
            let ask = contested.or_else(|| desk.think(&self.world, WINDOW_MS, self.far, &fired));
            drop(desk);
            ask.into_iter().for_each(|ask| self.call(ask));
        } else if self.asks_left == 0 && self.world.one_in(20) {
            let ask = self.clients.desk.lock().expect("plain").next_again();
            ask.into_iter().for_each(|ask| self.call(ask));
        }
        if self.has_open_places() {
            let is_due = self.clients.book.lock().expect("plain").places.is_due();
            let deed = self.workers.crew.lock().expect("plain").next(&self.world, is_due);
            deed.into_iter().for_each(|deed| self.work(deed));
        }
        let order = self.office.planners.lock().expect("plain").next(&self.world);
        order.into_iter().for_each(|order| self.plan(order));
        let wish = self.control.operator.lock().expect("plain").next(&self.world);
        wish.into_iter().for_each(|wish| self.operate(wish));
    }

    /// Whether workers have something to do, as far as anybody knows.
    fn has_open_places(&self) -> bool {
        self.clients.book.lock().expect("plain").places.is_open()
    }

    /// Any node that answers.
    fn open(&self) -> Option<&Node> {
        let open: Vec<&Node> = self
            .seats
            .iter()
            .filter_map(|seat| seat.node.as_ref().filter(|node| self.world.runs(node.process)))
            .collect();
        match open.len() {
            0 => None,
            n => Some(open[usize::try_from(self.world.pick(0..n as i64)).expect("small")]),
        }
    }

    fn call(&mut self, ask: Ask) {
        let Some(node) = self.open() else {
            return self.clients.desk.lock().expect("plain").unanswered(&self.world, ask);
        };
        let (process, task) = (node.process, self.clients.ask(node, ask.clone()));
        self.calls.push(Call { process, of: Caller::Client(ask), task });
    }

    fn work(&mut self, deed: Deed) {
        let Some(node) = self.open() else { return self.workers.put_off(deed) };
        let process = node.process;
        let (job, task) = self.workers.begin(node, deed);
        self.calls.push(Call { process, of: Caller::Workers(job), task });
    }

    fn plan(&mut self, order: Order) {
        let Some(node) = self.open() else {
            return self.office.planners.lock().expect("plain").unanswered(order, &self.world);
        };
        let (process, task) = (node.process, self.office.ask(node, order.clone()));
        self.calls.push(Call { process, of: Caller::Planner(order), task });
    }

    fn operate(&mut self, wish: Wish) {
        let Some(node) = self.open() else {
            return self.control.operator.lock().expect("plain").unanswered();
        };
        let (process, task) = (node.process, self.control.ask(node, wish));
        self.calls.push(Call { process, of: Caller::Operator, task });
    }

    /// The node in this seat stands still until then; if there is none, none starts.
    pub fn stand_still(&mut self, place: usize, until: i64) {
        if let Some(node) = &self.seats[place].node {
            self.world.pauses(node.process, true);
        }
        self.seats[place].until = Some(until);
    }

    /// The node in this seat dies and is started again then.
    pub fn kill(&mut self, place: usize, back: i64) {
        match self.seats[place].node.as_ref().map(|node| node.process) {
            Some(process) => {
                self.world.dies(process);
                self.bury(place, back);
            }
            None => self.seats[place].until = Some(back),
        }
    }

    fn start(&mut self, place: usize) {
        let name = format!("node-{place}");
        let process = self.world.starts(&name);
        let receivers = Receivers {
            world: Arc::clone(&self.world),
            book: Arc::clone(&self.clients.book),
            mood: Arc::clone(&self.mood),
            process,
        };
        self.seats[place].node = Some(Node::start(&self.common, &name, process, Arc::new(receivers)));
        self.world.tell(process, "starts".into());
    }

    /// The node in this seat is dead; another process starts there later.
    fn bury(&mut self, place: usize, back: i64) {
        let Some(node) = self.seats[place].node.take() else { return };
        let process = node.process;
        drop(node);
        self.seats[place].until = Some(back);
        let (cut_off, calls) =
            std::mem::take(&mut self.calls).into_iter().partition(|call| call.process == process);
        self.calls = calls;
        let cut_off: Vec<Call> = cut_off;
        for Call { of, .. } in cut_off {
            match of {
                Caller::Client(ask) => {
                    let (uid, now) = (ask.uid(), self.world.now());
                    let mut book = self.clients.book.lock().expect("plain");
                    book.operations.answers(uid, Outcome::Unknown, now);
                    drop(book);
                    self.clients.desk.lock().expect("plain").unanswered(&self.world, ask);
                }
                Caller::Workers(job) => self.workers.unanswered(job),
                Caller::Planner(order) => {
                    self.office.planners.lock().expect("plain").unanswered(order, &self.world);
                }
                Caller::Operator => self.control.operator.lock().expect("plain").unanswered(),
            }
        }
    }

    async fn befall(&mut self, fault: Fault) {
        let now = self.world.now();
        let server = &self.common.server;
        self.world.tell(usize::MAX, format!("{fault:?}"));
        match fault {
            Fault::Flush => server.flush(),
            Fault::Replace => server.replace(),
            Fault::Snapshot => self.snapshots.push((now, server.snapshot())),
            Fault::RollBack => {
                let beats = server.beats(SHARDS).await;
                if let Some((_, snapshot)) = self.snapshots.first() {
                    server.roll_back(snapshot);
                }
                let before = server.beats(SHARDS).await;
                // The same building, with no take forgotten: nobody can tell, and what was added is gone.
                self.unnoticed |= self.kind == Kind::All
                    || beats.iter().zip(&before).any(|pair| match pair {
                        (Some((now, beat)), Some((then, older))) => now == then && beat <= older,
                        _ => false,
                    });
            }
            Fault::WheelsGo => self.world.set_wheels_away(true),
            Fault::WheelsCome => self.world.set_wheels_away(false),
            Fault::Pause(place, ms, put_off) => {
                let node = self.seats[place].node.as_ref().filter(|node| self.world.runs(node.process));
                let Some(process) = node.map(|node| node.process) else { return };
                // Whoever has SQLite's one writer would stop everybody.
                if self.world.writer() == Some(process) {
                    return self.faults.insert(0, (now + 1, fault));
                }
                if put_off > 0 && !self.clients.book.lock().expect("plain").waits(process) {
                    self.faults.push((now + 50, Fault::Pause(place, ms, put_off - 1)));
                    return self.faults.sort_by_key(|(at, _)| *at);
                }
                self.stand_still(place, now + ms);
            }
            Fault::Crash(place, ms) if self.seats[place].node.is_some() => self.kill(place, now + ms),
            Fault::Crash(..) => {}
        }
    }
}

/// A task that stands at the gate may be held up there for long, when things go wrong.
fn hold(world: &World, process: usize, task: &mut Task, ill: bool) {
    if ill && world.writer() != Some(process) && world.one_in(60) {
        task.held_until = world.now() + world.pick(50..2500);
        world.disturb(process);
        world.tell(process, format!("{} is held up for {} ms", task.name, task.held_until - world.now()));
    }
}
