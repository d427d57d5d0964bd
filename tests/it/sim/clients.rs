//! The clients of a run: they register, take back, move and fire timers, each through one node's door.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::cold::{Applied, Change, ChangeEvent, Edit, Error, NewTimer, Registered};
use mainspring::model::id::Uid;
use mainspring::model::merge::Merge;
use mainspring::model::policy::{Policies, Retry};
use mainspring::model::target::{Target, Webhook};
use mainspring::model::time::{Span, UnixMs};
use mainspring::model::timer::Answer;

use super::book::Book;
use super::node::{Node, Task};
use super::operations::{Outcome, outcome, outcome_of_new};
use super::operators::{OWNER, labels};
use super::run::Play;
use super::workers::{QUEUE, dispatch};
use super::world::World;
use crate::support::new_timer;

/// What a client asks for.
#[derive(Debug, Clone)]
pub enum Ask {
    Register(Box<NewTimer>),
    Cancel(Uid),
    Move(Uid, UnixMs),
    Fire(Uid),
    Pause(Uid),
    Resume(Uid),
}

impl Ask {
    pub fn uid(&self) -> Uid {
        match self {
            Self::Register(timer) => timer.uid,
            Self::Cancel(uid)
            | Self::Move(uid, _)
            | Self::Fire(uid)
            | Self::Pause(uid)
            | Self::Resume(uid) => *uid,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "client register",
            Self::Cancel(_) => "client cancel",
            Self::Move(..) => "client move",
            Self::Fire(_) => "client fire",
            Self::Pause(_) => "client pause",
            Self::Resume(_) => "client resume",
        }
    }
}

/// What clients have under way and have to ask again. One client asks one thing of one timer at a time.
#[derive(Default)]
pub struct Desk {
    /// Some timers are for the queue.
    has_queue: bool,
    /// Some timers are paused; these may be, and have to be resumed.
    has_pauses: bool,
    /// Operations take timers by their labels.
    has_operations: bool,
    paused: BTreeSet<Uid>,
    timers: BTreeMap<Uid, NewTimer>,
    busy: BTreeSet<Uid>,
    again: Vec<Ask>,
    made: u32,
}

impl Desk {
    pub fn new(play: Play) -> Self {
        let Play { has_queue, has_pauses, has_operations, .. } = play;
        Self { has_queue, has_pauses, has_operations, ..Self::default() }
    }

    /// Something new to ask, if there is anything; `window` is how far the wheels reach.
    /// `fired`: timers of which something has arrived, the latest last.
    pub fn think(&mut self, world: &World, window: i64, far: bool, fired: &[Uid]) -> Option<Ask> {
        let due_at = |world, window| due_at(world, window, far);
        if let Some(ask) = self.again.pop() {
            return Some(ask);
        }
        let idle: Vec<Uid> = self.timers.keys().copied().filter(|uid| !self.busy.contains(uid)).collect();
        let pause = (self.has_pauses && !idle.is_empty() && world.one_in(3)).then(|| {
            let uid = idle[usize::try_from(world.pick(0..idle.len() as i64)).expect("small")];
            let resumed = self.paused.iter().find(|uid| idle.contains(uid)).filter(|_| world.one_in(2));
            resumed.map_or(Ask::Pause(uid), |uid| Ask::Resume(*uid))
        });
        if let Some(ask) = pause {
            self.begins(&ask);
            return Some(ask);
        }
        let ask = match world.pick(0..100) {
            n if n < 50 || idle.is_empty() => {
                Ask::Register(Box::new(self.make(world, due_at(world, window))))
            }
            n => {
                let uid = idle[usize::try_from(world.pick(0..idle.len() as i64)).expect("small")];
                match n {
                    // What has just been sent, and may be under way or be tried again.
                    50..57 => Ask::Cancel(recent(world, &idle, fired).unwrap_or(uid)),
                    57..64 => Ask::Cancel(uid),
                    64..78 => Ask::Move(uid, due_at(world, window)),
                    78..84 => Ask::Fire(uid),
                    _ => {
                        // What has just fired is asked for once more.
                        let uid = recent(world, &idle, fired).unwrap_or(uid);
                        self.again(uid, world, due_at(world, window))
                    }
                }
            }
        };
        self.busy.insert(ask.uid());
        Some(ask)
    }

    /// Asks for this timer once more, now and then, if nobody is asking anything of it.
    pub fn ask_again(&mut self, uid: Uid, world: &World, window: i64) -> Option<Ask> {
        let idle = self.timers.contains_key(&uid) && !self.busy.contains(&uid);
        if !idle || !world.one_in(3) {
            return None;
        }
        self.busy.insert(uid);
        Some(self.again(uid, world, due_at(world, window, false)))
    }

    fn again(&self, uid: Uid, world: &World, due_at: UnixMs) -> Ask {
        let mut timer = self.timers[&uid].clone();
        timer.again = true;
        timer.due_at = due_at;
        let now = UnixMs::new(world.now());
        // The book of places tells registrations apart by their moments.
        timer.created_at = match timer.dispatch {
            Some(_) => now.max(timer.created_at.shifted(1)),
            None => now,
        };
        timer.request_hash = hash(timer.due_at);
        Ask::Register(Box::new(timer))
    }

    /// From now on nobody asks this timer for something else.
    fn begins(&mut self, ask: &Ask) {
        self.busy.insert(ask.uid());
        if matches!(ask, Ask::Pause(_)) {
            self.paused.insert(ask.uid());
        }
    }

    /// Whatever may be paused is resumed, as soon as nobody asks for anything else of it.
    pub fn resume_all(&mut self) {
        let idle: Vec<Uid> = self.paused.iter().copied().filter(|uid| !self.busy.contains(uid)).collect();
        for uid in idle {
            self.busy.insert(uid);
            self.again.push(Ask::Resume(uid));
        }
    }

    /// Whether somebody still waits for an answer that he needs.
    pub fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// What has to be asked again.
    pub fn next_again(&mut self) -> Option<Ask> {
        self.again.pop()
    }

    /// No answer came. A registration is asked for until it is answered, other things at times.
    pub fn unanswered(&mut self, world: &World, ask: Ask) {
        if matches!(ask, Ask::Register(_) | Ask::Resume(_)) || world.one_in(2) {
            self.again.push(ask);
        } else {
            self.busy.remove(&ask.uid());
        }
    }

    fn make(&mut self, world: &World, due_at: UnixMs) -> NewTimer {
        self.made += 1;
        let retry = Retry {
            attempts: 100,
            first: Span::from_duration(Duration::from_millis(300)),
            cap: Span::from_duration(Duration::from_millis(1000)),
        };
        if self.has_queue && world.one_in(2) {
            // Some are given out so seldom that they end as dead.
            let attempts = if world.one_in(5) { 3 } else { retry.attempts };
            return NewTimer {
                labels: self.has_operations.then(|| labels(world)),
                target: Target::Queue(QUEUE.into()),
                dispatch: Some(dispatch(world)),
                policies: Policies { retry: Some(Retry { attempts, ..retry }), ..Policies::default() },
                request_hash: hash(due_at),
                ..new_timer(&format!("t{}", self.made), due_at, UnixMs::new(world.now()))
            };
        }
        // Some go out together with others of their owner.
        let merges = world.one_in(3);
        let merge = merges.then(|| Merge { window: Span::from_duration(Duration::from_millis(2500)) });
        NewTimer {
            owner: merges.then(|| OWNER.to_owned()),
            labels: self.has_operations.then(|| labels(world)),
            target: target(self.made),
            policies: Policies { retry: Some(retry), merge, ..Policies::default() },
            request_hash: hash(due_at),
            ..new_timer(&format!("t{}", self.made), due_at, UnixMs::new(world.now()))
        }
    }
}

fn outcome_of(applied: &Result<Applied, Error>) -> Outcome {
    applied.as_ref().map_or(Outcome::Unknown, outcome)
}

/// One of the last four timers of which something has arrived, if it is idle.
fn recent(world: &World, idle: &[Uid], fired: &[Uid]) -> Option<Uid> {
    let recent: Vec<Uid> = fired.iter().rev().filter(|uid| idle.contains(uid)).take(4).copied().collect();
    match recent.len() {
        0 => None,
        n => Some(recent[usize::try_from(world.pick(0..n as i64)).expect("small")]),
    }
}

/// A receiver of the run.
pub fn target(n: u32) -> Target {
    let url = format!("http://127.0.0.1:{}/x", 1 + n % 3);
    Target::Webhook(Webhook::new(&url, None, BTreeMap::new()).expect("a hook"))
}

fn hash(due_at: UnixMs) -> [u8; 16] {
    i128::from(due_at.get()).to_le_bytes()
}

/// Often just where the window ends, else soon or far.
fn due_at(world: &World, window: i64, far: bool) -> UnixMs {
    let by = match world.pick(0..10) {
        0..4 => world.pick(window - 300..window + 900),
        4..6 => world.pick(0..window),
        _ if far => world.pick(window..2 * window),
        _ => world.pick(0..window),
    };
    UnixMs::new(world.now() + by)
}

/// Everything an asking client needs.
#[derive(Clone)]
pub struct Clients {
    pub world: Arc<World>,
    pub book: Arc<Mutex<Book>>,
    pub desk: Arc<Mutex<Desk>>,
}

impl Clients {
    /// Asks through this node.
    pub fn ask(&self, node: &Node, ask: Ask) -> Task {
        let this = self.clone();
        let (writer, process) = (node.writer.clone(), node.process);
        let now = self.world.now();
        self.world.tell(process, format!("{} {}", ask.name(), ask.uid().0.simple()));
        self.book.lock().expect("plain").operations.asks(&ask, now);
        Task::new(ask.name(), &self.world.clone(), async move {
            let outcome = match &ask {
                Ask::Register(timer) => {
                    this.book.lock().expect("plain").registering(timer);
                    let answer = writer.register(std::slice::from_ref(timer)).await.remove(0).ok();
                    let outcome = outcome_of_new(answer.as_ref());
                    this.registered(timer, answer, now);
                    outcome
                }
                Ask::Cancel(uid) => {
                    let asked = this.book.lock().expect("plain").cancelling(*uid);
                    let applied = writer
                        .apply(&[Change { uid: *uid, caller: None, event: ChangeEvent::Cancel }])
                        .await
                        .remove(0);
                    if let Ok(applied) = &applied {
                        this.book.lock().expect("plain").cancelled(applied, asked);
                    }
                    outcome_of(&applied)
                }
                Ask::Pause(uid) => {
                    let event = ChangeEvent::Pause(None);
                    let applied = writer.apply(&[Change { uid: *uid, caller: None, event }]).await.remove(0);
                    if let Ok(Applied::Live(row, Answer::Done) | Applied::Same(row)) = &applied {
                        this.book.lock().expect("plain").paused(row.uid);
                    }
                    outcome_of(&applied)
                }
                Ask::Resume(uid) => {
                    this.book.lock().expect("plain").resuming(*uid);
                    let event = ChangeEvent::Resume(None);
                    outcome_of(&writer.apply(&[Change { uid: *uid, caller: None, event }]).await.remove(0))
                }
                Ask::Move(uid, _) | Ask::Fire(uid) => {
                    if matches!(ask, Ask::Fire(_)) {
                        this.book.lock().expect("plain").resuming(*uid);
                    }
                    let event = match &ask {
                        Ask::Move(_, due_at) => {
                            ChangeEvent::Edit(Edit { due_at: Some(*due_at), ..Edit::default() })
                        }
                        _ => ChangeEvent::Fire(None),
                    };
                    let applied = writer.apply(&[Change { uid: *uid, caller: None, event }]).await.remove(0);
                    if let Ok(Applied::Live(row, Answer::Done) | Applied::Same(row)) = &applied {
                        this.book.lock().expect("plain").moved(row, now);
                    }
                    outcome_of(&applied)
                }
            };
            let answered = outcome != Outcome::Unknown;
            this.world.tell(process, format!("{} is answered: {answered}", ask.name()));
            this.book.lock().expect("plain").operations.answers(ask.uid(), outcome, this.world.now());
            let mut desk = this.desk.lock().expect("plain");
            if answered {
                desk.busy.remove(&ask.uid());
                if matches!(ask, Ask::Resume(_)) {
                    desk.paused.remove(&ask.uid());
                }
            } else {
                desk.unanswered(&this.world, ask);
            }
            0
        })
    }

    fn registered(&self, timer: &NewTimer, answer: Option<Registered>, asked_at: i64) {
        let mut book = self.book.lock().expect("plain");
        match answer {
            None => return,
            Some(Registered::New(row)) => book.registered(&row, asked_at),
            Some(Registered::Same(row)) => book.registered_before(&row, asked_at),
            // Asked for again while it is live, with another due time.
            Some(Registered::Taken | Registered::NoDestination(_) | Registered::Unfitted(_)) => {}
        }
        self.desk.lock().expect("plain").timers.insert(timer.uid, timer.clone());
    }
}
