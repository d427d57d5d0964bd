//! The columns of a timer, named once. The select list, the positions in it, the values to write, and the move
//! to history all come from [`TimerColumn`].
//!
//! `timers` has these columns and `history` begins with them, so a row is moved without being rebuilt. A new
//! column needs a migration, a line in the list below, and what the compiler then asks for.

use super::row::TimerRow;
use super::sql::{Column, Dialect};
use crate::model::merge::Merged;
use crate::model::policy::Policies;
use crate::model::queue::Dispatch;
use crate::model::target::Kind;
use crate::model::time::UnixMs;

macro_rules! columns {
    ($first:ident = $first_name:literal, $($column:ident = $name:literal),* $(,)?) => {
        /// A column of `timers`; its number is its position in [`ALL`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(in crate::cold) enum TimerColumn {
            $first,
            $($column),*
        }

        impl TimerColumn {
            /// Every column, in order.
            pub const EACH: &[Self] = &[Self::$first, $(Self::$column),*];

            /// Its name in SQL.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::$first => $first_name,
                    $(Self::$column => $name),*
                }
            }

            /// The name of its values in a batch.
            pub const fn batch_name(self) -> &'static str {
                match self {
                    Self::$first => concat!("b_", $first_name),
                    $(Self::$column => concat!("b_", $name)),*
                }
            }
        }

        /// The names of every column, as a select list.
        pub(in crate::cold) const ALL: &str = concat!($first_name, $(", ", $name),*);
    };
}

columns! {
    Uid = "uid",
    Id = "id",
    CallerId = "caller_id",
    Owner = "owner",
    Shard = "shard",
    State = "state",
    DueAt = "due_at",
    WakeAt = "wake_at",
    ExpireAt = "expire_at",
    Generation = "generation",
    Attempt = "attempt",
    Tries = "tries",
    Version = "version",
    Epoch = "epoch",
    Lane = "lane",
    Minute = "minute",
    Uncertain = "uncertain",
    CancelRequested = "cancel_requested",
    AckedLate = "acked_late",
    Target = "target",
    Data = "data",
    Labels = "labels",
    Policies = "policies",
    RequestHash = "request_hash",
    CreatedAt = "created_at",
    ClaimedAt = "claimed_at",
    Node = "node",
    Via = "via",
    Kind = "kind",
    Trace = "trace",
    PointedAt = "pointed_at",
    Priority = "priority",
    MergeKey = "merge_key",
    Merged = "merged",
    Spread = "spread",
    SpreadFrom = "spread_from",
    Dispatch = "dispatch",
    Audience = "audience",
    ReadyAt = "ready_at",
    Fresh = "fresh",
    Acked = "acked",
    Schedule = "schedule",
    Nominal = "nominal",
    Skipped = "skipped",
    Overlap = "overlap",
    JudgeAfter = "judge_after",
    Template = "template",
    Namespace = "namespace",
}

/// The position of the first expression that is selected after [`ALL`].
pub(super) const AFTER: usize = TimerColumn::EACH.len();

/// The columns of [`crate::model::timer::Life`], which its transitions change, and what follows from them.
pub(super) const LIFE: &[TimerColumn] = &[
    TimerColumn::State,
    TimerColumn::DueAt,
    TimerColumn::WakeAt,
    TimerColumn::ExpireAt,
    TimerColumn::Generation,
    TimerColumn::Attempt,
    TimerColumn::Tries,
    TimerColumn::Version,
    TimerColumn::Uncertain,
    TimerColumn::CancelRequested,
    TimerColumn::AckedLate,
    TimerColumn::PointedAt,
];

/// The columns that a caller's edit changes beside [`LIFE`].
pub(super) const EDITED: &[TimerColumn] = &[TimerColumn::Data, TimerColumn::Labels];

/// The column of a timer's priority.
pub(super) const PRIORITY: &[TimerColumn] = &[TimerColumn::Priority];

/// The column of the due time that a caller asked for and that the timer's own was chosen after.
pub(super) const SPREAD_FROM: &[TimerColumn] = &[TimerColumn::SpreadFrom];

/// The columns of what an occurrence waits for: to be judged, or for another of its schedule.
pub(super) const JUDGED: &[TimerColumn] = &[TimerColumn::JudgeAfter, TimerColumn::Overlap];

/// The columns of a timer's target, and what follows from it.
pub(super) const TARGET: &[TimerColumn] =
    &[TimerColumn::Target, TimerColumn::Kind, TimerColumn::Lane, TimerColumn::MergeKey];

/// The columns of a timer for a queue that its places change, beside [`LIFE`].
pub(super) const SEATS: &[TimerColumn] = &[
    TimerColumn::ReadyAt,
    TimerColumn::Fresh,
    TimerColumn::Acked,
    TimerColumn::Dispatch,
    TimerColumn::Audience,
];

/// The column of the set that a claim has made of timers.
pub(super) const MERGED: &[TimerColumn] = &[TimerColumn::Merged];

/// A select list of some columns.
pub(super) fn list(columns: &[TimerColumn]) -> String {
    columns.iter().map(|column| column.name()).collect::<Vec<_>>().join(", ")
}

/// The position of a column in a select list. Call it in a `const` block: a column that is not in the list is
/// then a compile error.
pub(super) const fn position(list: &[TimerColumn], column: TimerColumn) -> usize {
    let mut at = 0;
    while list[at] as usize != column as usize {
        at += 1;
    }
    at
}

/// The kind that is stored as NULL, because nearly every row has it.
pub(super) const WEBHOOK: i16 = Kind::Webhook.code();

/// The condition that this build knows the kind of a row's target.
pub(super) fn is_known_kind() -> String {
    is_of_kinds(Kind::ALL.iter())
}

/// The condition that a row is sent by the service, and this build knows how.
pub(super) fn is_sent_kind() -> String {
    is_of_kinds(Kind::ALL.iter().filter(|kind| kind.is_sent()))
}

fn is_of_kinds<'a>(kinds: impl Iterator<Item = &'a Kind>) -> String {
    let codes: Vec<String> = kinds.map(|kind| kind.code().to_string()).collect();
    format!("COALESCE({}, {WEBHOOK}) IN ({})", TimerColumn::Kind.name(), codes.join(", "))
}

/// The `SET` clauses that write some columns from their batch.
pub(super) fn assignments(columns: &[TimerColumn], dialect: Dialect) -> String {
    let set = |column: &TimerColumn| format!("{} = {}", column.name(), column.batched(dialect));
    columns.iter().map(set).collect::<Vec<_>>().join(", ")
}

/// The batch that writes some columns of these rows.
pub(super) fn batch(columns: &[TimerColumn], rows: &[&TimerRow]) -> Vec<(&'static str, Column)> {
    columns.iter().map(|column| (column.batch_name(), column.values(rows))).collect()
}

impl TimerColumn {
    /// The expression that writes this column from its batch.
    pub fn batched(self, dialect: Dialect) -> String {
        match self {
            // On SQLite the column cannot be NULL.
            Self::Kind if dialect == Dialect::Sqlite => format!("COALESCE({}, {WEBHOOK})", self.batch_name()),
            other => other.batch_name().to_owned(),
        }
    }

    /// The values to write for this column, in the order of the rows.
    fn values(self, rows: &[&TimerRow]) -> Column {
        let int = |of: fn(&TimerRow) -> i64| Column::Int(rows.iter().map(|row| of(row)).collect());
        let maybe =
            |of: fn(&TimerRow) -> Option<i64>| Column::IntOrNull(rows.iter().map(|row| of(row)).collect());
        let flag = |of: fn(&TimerRow) -> bool| Column::Bool(rows.iter().map(|row| of(row)).collect());
        let text = |of: fn(&TimerRow) -> String| Column::Text(rows.iter().map(|row| of(row)).collect());
        let text_or_null = |of: fn(&TimerRow) -> Option<String>| {
            Column::TextOrNull(rows.iter().map(|row| of(row)).collect())
        };
        match self {
            Self::Uid => Column::Uuid(rows.iter().map(|row| row.uid.0).collect()),
            Self::Id => text(TimerRow::stored_id),
            Self::CallerId => flag(|row| row.caller_id),
            Self::Owner => text_or_null(|row| row.owner.clone()),
            Self::Shard => int(|row| row.shard.into()),
            Self::State => int(|row| row.life.state.code().into()),
            Self::DueAt => int(|row| row.life.due_at.get()),
            Self::WakeAt => int(|row| row.life.wake_at.get()),
            Self::ExpireAt => maybe(|row| row.expire_at.map(UnixMs::get)),
            Self::Generation => int(|row| row.life.generation.0.into()),
            Self::Attempt => int(|row| row.life.attempt.into()),
            Self::Tries => int(|row| row.life.tries.into()),
            Self::Version => int(|row| row.life.version.0.into()),
            Self::Epoch => int(|row| row.epoch.0),
            Self::Lane => int(|row| row.lane),
            Self::Minute => flag(|row| row.minute),
            Self::Uncertain => flag(|row| row.life.uncertain),
            Self::CancelRequested => flag(|row| row.life.cancel_requested),
            Self::AckedLate => flag(|row| row.life.acked_late),
            Self::Target => text(|row| row.target.stored()),
            Self::Data => Column::BytesOrNull(rows.iter().map(|row| row.data.clone()).collect()),
            Self::Labels => text_or_null(|row| row.labels.clone()),
            Self::Policies => text_or_null(|row| stored_policies(&row.policies)),
            Self::RequestHash => Column::Bytes(rows.iter().map(|row| row.request_hash.to_vec()).collect()),
            Self::CreatedAt => int(|row| row.created_at.get()),
            Self::ClaimedAt => maybe(|row| row.claimed_at.map(UnixMs::get)),
            Self::Node => text_or_null(|row| row.node.clone()),
            Self::Trace => {
                let packed = |row: &&TimerRow| row.trace.map(|trace| trace.packed().to_vec());
                Column::BytesOrNull(rows.iter().map(packed).collect())
            }
            Self::PointedAt => maybe(|row| row.pointed_at.map(UnixMs::get)),
            Self::Via => maybe(|row| row.via.map(|via| via.code().into())),
            Self::Priority => maybe(|row| Some(row.priority.code()).filter(|code| *code != 0).map(i64::from)),
            Self::MergeKey => {
                let bytes = |row: &&TimerRow| row.merge_key.map(|key| key.0.to_vec());
                Column::BytesOrNull(rows.iter().map(bytes).collect())
            }
            Self::Merged => text_or_null(|row| stored_merged(row.merged.as_ref())),
            Self::Spread => {
                maybe(|row| row.spread.and_then(|spread| i64::try_from(spread.within.get().as_millis()).ok()))
            }
            Self::Template => {
                text_or_null(|row| Some(row.namespace.qualified(row.template.as_ref()?).into_owned()))
            }
            Self::Namespace => maybe(|row| row.namespace.stored().map(i64::from)),
            Self::SpreadFrom => maybe(|row| row.spread.map(|spread| spread.from.get())),
            Self::Dispatch => text_or_null(|row| stored_dispatch(&row.seats.as_ref()?.dispatch)),
            Self::Audience => maybe(TimerRow::audience),
            Self::ReadyAt => maybe(|row| row.seats.as_ref()?.ready_at.map(UnixMs::get)),
            Self::Fresh => maybe(|row| row.seats.as_ref().map(|seats| seats.fresh.into())),
            Self::Acked => maybe(|row| row.seats.as_ref().map(|seats| seats.acked.into())),
            Self::Schedule => text_or_null(|row| Some(row.namespace.qualified(row.schedule()?).into_owned())),
            Self::Nominal => maybe(|row| row.occurrence.as_ref()?.nominal.map(UnixMs::get)),
            Self::Skipped => maybe(|row| row.occurrence.as_ref()?.skipped.map(|why| why.code().into())),
            Self::Overlap => maybe(|row| row.occurrence.as_ref()?.turn.map(|turn| turn.code().into())),
            Self::JudgeAfter => maybe(|row| row.occurrence.as_ref()?.judge_after.map(UnixMs::get)),
            Self::Kind => maybe(|row| Some(row.target.kind()).filter(|kind| *kind != WEBHOOK).map(i64::from)),
        }
    }
}

/// A merged set as it is stored.
pub(super) fn stored_merged(merged: Option<&Merged>) -> Option<String> {
    serde_json::to_string(merged?).ok()
}

/// The default way of giving out is stored as NULL. What the JSON begins with is whom it is for: lists look for that.
fn stored_dispatch(dispatch: &Dispatch) -> Option<String> {
    (*dispatch != Dispatch::default()).then(|| serde_json::to_string(dispatch).ok()).flatten()
}

/// The default policies are stored as NULL.
fn stored_policies(policies: &Policies) -> Option<String> {
    (*policies != Policies::default()).then(|| serde_json::to_string(policies).ok()).flatten()
}
