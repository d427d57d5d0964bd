//! The operator of a run: begins operations on many timers through any node, looks how far they are, and stops some. He
//! asks one thing at a time, and looks for what was not answered in the list of all operations.

use std::sync::{Arc, Mutex};

use mainspring::cold::{Filter, OperationRow, Selection};
use mainspring::model::namespace::Namespace;
use mainspring::model::operation::{Action, OperationId, OperationState};
use mainspring::model::timer::State;

use super::book::Book;
use super::node::{Node, Task};
use super::world::World;

/// How many timers a node changes a second by operations: a step takes two, ten times a second.
pub const PER_SECOND: u32 = 20;

/// The owner of the timers that merge.
pub const OWNER: &str = "owner";

/// The label that every timer has, and what it says.
const LABEL: &str = "team";
const TEAMS: [&str; 2] = ["a", "b"];

/// How many operations run at a time, each of another action, or a shift, which moves as far as no other: so it can be told
/// what each of them did.
const AT_ONCE: usize = 2;

/// Which timers an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Those of [`OWNER`].
    Owner,
    /// Those with this label.
    Team(&'static str),
    /// Those that are paused.
    Paused,
}

/// What an operation is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// No other operation of the run has it.
    pub number: i64,
    pub action: Action,
    pub of: Of,
    /// How far a shift moves; no other moves as far.
    pub by_ms: i64,
    pub dry_run: bool,
}

/// The labels of a timer.
pub fn labels(world: &World) -> String {
    let team = TEAMS[usize::from(world.one_in(2))];
    format!(r#"{{"{LABEL}":"{team}"}}"#)
}

/// The number of the plan of an operation.
pub fn number(row: &OperationRow) -> Option<i64> {
    serde_json::from_str::<serde_json::Value>(&row.filter).ok()?["number"].as_i64()
}

impl Plan {
    fn at_random(number: i64, running: &[Action], world: &World) -> Option<Self> {
        let action = match world.pick(0..100) {
            0..35 => Action::Shift,
            35..55 => Action::Pause,
            55..75 => Action::Resume,
            75..90 => Action::Fire,
            _ => Action::Cancel,
        };
        let of = match world.pick(0..4) {
            0 if action == Action::Resume => Of::Paused,
            0 | 1 => Of::Owner,
            2 => Of::Team(TEAMS[0]),
            _ => Of::Team(TEAMS[1]),
        };
        let far = world.pick(3..40) * 100 + number;
        let by_ms = if world.one_in(3) { -far } else { far };
        let dry_run = world.one_in(10);
        let is_told = action == Action::Shift || !running.contains(&action);
        is_told.then_some(Self { number, action, of, by_ms, dry_run })
    }

    /// Everything that is paused is resumed.
    const fn resume_all(number: i64) -> Self {
        Self { number, action: Action::Resume, of: Of::Paused, by_ms: 0, dry_run: false }
    }

    /// Whether it takes a timer of this owner, with these labels.
    pub fn takes(&self, owner: Option<&str>, labels: Option<&str>) -> bool {
        match self.of {
            Of::Owner => owner == Some(OWNER),
            Of::Team(team) => labels.is_some_and(|labels| labels.contains(&format!("\"{team}\""))),
            Of::Paused => true,
        }
    }

    fn selection(&self) -> Selection {
        let mut filter = Filter::default();
        match self.of {
            Of::Owner => filter.owner = Some(OWNER.into()),
            Of::Team(team) => filter.labels = vec![(LABEL.into(), team.into())],
            Of::Paused => filter.state = Some(State::Paused),
        }
        let by_ms = (self.action == Action::Shift).then_some(self.by_ms);
        Selection { filter, by_ms, ..Selection::default() }
    }
}

/// What the operator asks for.
#[derive(Debug, Clone)]
pub enum Wish {
    Begin(Plan),
    /// All operations, as they are.
    Look,
    /// The operation of this number is to end.
    Stop(i64, OperationId),
}

impl Wish {
    const fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "operator begin",
            Self::Look => "operator look",
            Self::Stop(..) => "operator stop",
        }
    }
}

/// An operation, as far as the operator knows.
#[derive(Debug)]
struct Known {
    plan: Plan,
    /// `None`: he does not know whether it has begun.
    now: Option<(OperationId, OperationState)>,
}

/// The operator.
pub struct Operator {
    has_operations: bool,
    is_busy: bool,
    asks_at: i64,
    made: i64,
    /// Those that have not ended.
    known: Vec<Known>,
    /// Begins and asks nothing.
    pub rests: bool,
    /// Whatever is paused is to be resumed, and nothing else begins.
    ends: bool,
    /// Nothing is paused any more.
    is_done: bool,
}

impl Operator {
    pub const fn new(has_operations: bool) -> Self {
        Self {
            has_operations,
            is_busy: false,
            asks_at: 0,
            made: 0,
            known: Vec::new(),
            rests: true,
            ends: false,
            is_done: false,
        }
    }

    /// From now on nothing begins but what ends all pauses.
    pub const fn end(&mut self) {
        self.ends = true;
    }

    /// Whether he wants nothing any more.
    pub const fn is_done(&self) -> bool {
        !self.has_operations || self.is_done
    }

    /// When he asks for something.
    pub fn next_at(&self) -> Option<i64> {
        (!self.rests && !self.is_busy && !self.is_done()).then_some(self.asks_at)
    }

    /// What he asks for now.
    pub fn next(&mut self, world: &World) -> Option<Wish> {
        let now = world.now();
        if self.next_at().is_none_or(|at| at > now) {
            return None;
        }
        self.asks_at = now + world.pick(100..900);
        let running: Vec<Action> = self.known.iter().map(|one| one.plan.action).collect();
        let is_unsure = self.known.iter().any(|one| one.now.is_none());
        let wish = match running.len() {
            _ if is_unsure => Wish::Look,
            0 if self.ends => self.begin(Some(Plan::resume_all(self.made + 1)))?,
            _ if self.ends => Wish::Look,
            0 => self.begin(Plan::at_random(self.made + 1, &running, world))?,
            n if n < AT_ONCE && world.one_in(2) => {
                self.begin(Plan::at_random(self.made + 1, &running, world))?
            }
            _ if world.one_in(8) => {
                let one = &self.known[usize::try_from(world.pick(0..running.len() as i64)).expect("small")];
                Wish::Stop(one.plan.number, one.now?.0)
            }
            _ => Wish::Look,
        };
        self.is_busy = true;
        Some(wish)
    }

    fn begin(&mut self, plan: Option<Plan>) -> Option<Wish> {
        let plan = plan?;
        self.made += 1;
        self.known.push(Known { plan: plan.clone(), now: None });
        Some(Wish::Begin(plan))
    }

    /// No answer came, or nobody could be asked.
    pub const fn unanswered(&mut self) {
        self.is_busy = false;
    }

    /// One or all operations are as these rows say. Of all, what is not there has never begun.
    fn answered(&mut self, rows: &[OperationRow], are_all: bool) {
        self.is_busy = false;
        for one in &mut self.known {
            let row = rows.iter().find(|row| number(row) == Some(one.plan.number));
            one.now = row.map(|row| (row.id, row.state)).or(one.now);
            let has_found_none = |row: &OperationRow| row.state == OperationState::Done && row.matched == 0;
            self.is_done |= self.ends && one.plan.of == Of::Paused && row.is_some_and(has_found_none);
        }
        self.known.retain(|one| match one.now {
            Some((_, state)) => state == OperationState::Running,
            None => !are_all,
        });
        self.is_done &= self.known.is_empty();
    }
}

/// Everything that the operator needs.
#[derive(Clone)]
pub struct Control {
    pub world: Arc<World>,
    pub book: Arc<Mutex<Book>>,
    pub operator: Arc<Mutex<Operator>>,
}

impl Control {
    /// Asks through this node.
    pub fn ask(&self, node: &Node, wish: Wish) -> Task {
        let this = self.clone();
        let (operations, process, name) = (Arc::clone(&node.operations), node.process, wish.name());
        let now = self.world.now();
        // Ids are not of the seed, and stay out of the trace.
        match &wish {
            Wish::Begin(plan) => {
                self.world.tell(process, format!("{name}: {plan:?}"));
                self.book.lock().expect("plain").operations.asked(plan, now);
            }
            Wish::Stop(number, _) => {
                self.world.tell(process, format!("{name} {number}"));
                self.book.lock().expect("plain").operations.stopping(*number);
            }
            Wish::Look => self.world.tell(process, name.into()),
        }
        Task::new(name, &self.world.clone(), async move {
            let answer = match &wish {
                Wish::Begin(plan) => {
                    let filter = format!(r#"{{"number":{}}}"#, plan.number);
                    let begun = operations
                        .begin(Namespace::OWN, plan.action, filter, plan.selection(), plan.dry_run)
                        .await;
                    begun.map(|row| row.into_iter().collect::<Vec<_>>())
                }
                Wish::Look => operations.list(Namespace::OWN).await,
                Wish::Stop(_, id) => {
                    operations.end(Namespace::OWN, *id).await.map(|row| row.into_iter().collect())
                }
            };
            let Ok(rows) = answer else {
                this.world.tell(process, format!("{name} is not answered"));
                this.operator.lock().expect("plain").unanswered();
                return 0;
            };
            let are_all = matches!(wish, Wish::Look);
            if rows.is_empty() && !are_all {
                this.world.wrong(format!("{wish:?} is answered by nothing"));
            }
            for row in &rows {
                this.world.tell(process, shown(row));
                if let Err(what) = this.book.lock().expect("plain").operations.told(row) {
                    this.world.wrong(what);
                }
            }
            this.operator.lock().expect("plain").answered(&rows, are_all);
            0
        })
    }
}

/// For the trace.
fn shown(row: &OperationRow) -> String {
    let OperationRow { state, matched, done, refused, .. } = row;
    format!("operation {:?}: {state:?}, {matched} matched, {done} done, {refused:?}", number(row))
}
