//! Planted defects: with one of them a drill or the simulation must fail, which shows that it would find such a
//! defect.
//!
//! Each defect breaks one of the rules that the promises depend on ([`crate`]); at most one is planted at a
//! time. They exist only in builds with the feature `planted`, which is for tests and never shipped. Without it
//! [`Planted`] is empty, [`Planted::is`] is a constant `false`, and no setting names a defect. The defect is
//! passed to the rooms in which it acts (with the settings, the cold store, the ownership); it is not global to
//! the process.

/// A defect: a rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "planted",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Defect {
    /// The loader scans the new slice first and raises the watermark afterwards. A timer that is committed in
    /// between is promoted neither by the loader nor by its writer.
    NaiveLoader,
    /// The claim does not compare the pointer with the row: neither generation and attempt, nor the due time.
    ClaimWithoutGeneration,
    /// The claim does not compare the epoch, and a node claims and sends with an expired lease.
    ClaimWithoutEpoch,
    /// The result of an attempt counts for the row's present generation and attempt, whichever it belongs to.
    ResultWithoutToken,
    /// A cancel ignores the attempt under way, and earlier ones with an unknown outcome.
    BlindCancel,
    /// A wheel that is found is used without a check: nothing is read again from SQL.
    CursorTrusted,
    /// A cancel of a member of a merged set is answered, and does not take it out.
    CancelledMemberStays,
    /// Only the first member of a merged set ends with its delivery.
    FirstMemberEnds,
    /// A set is made anew for each attempt.
    SetNotFrozen,
    /// Lifecycle events are written after the commit of what they tell, in a transaction of their own.
    EventAfterCommit,
    /// An event counts as taken when it was sent to a broker, whatever the broker says of it.
    ConfirmNotAwaited,
    /// A lifecycle event that was not taken is removed all the same.
    EventGivenUp,
    /// A lease looks past what has become of places: one that a worker has, or that is settled, is given out again.
    PlaceGivenTwice,
    /// A settlement counts for whoever has the place now: which giving-out its token is of is not compared.
    SettledByAnyToken,
    /// A maker that comes late to a schedule, as after a take-over, does not know how far it was made ahead; and an
    /// occurrence's uid depends on when it is made, not on its nominal time alone.
    OccurrenceMadeTwice,
    /// A range of nominal times that become no occurrence is passed over, and recorded nowhere.
    SkipNotRecorded,
    /// What a step of an operation changes is one transaction, and how far it came is another. Who goes on after one that
    /// was broken off in between begins a step too early.
    OperationRepeats,
}

impl Defect {
    /// All defects.
    pub const ALL: [Self; 17] = [
        Self::NaiveLoader,
        Self::ClaimWithoutGeneration,
        Self::ClaimWithoutEpoch,
        Self::ResultWithoutToken,
        Self::BlindCancel,
        Self::CursorTrusted,
        Self::CancelledMemberStays,
        Self::FirstMemberEnds,
        Self::SetNotFrozen,
        Self::EventAfterCommit,
        Self::ConfirmNotAwaited,
        Self::EventGivenUp,
        Self::PlaceGivenTwice,
        Self::SettledByAnyToken,
        Self::OccurrenceMadeTwice,
        Self::SkipNotRecorded,
        Self::OperationRepeats,
    ];
}

/// The planted defect, or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(feature = "planted")]
    defect: Option<Defect>,
}

impl Planted {
    /// Plants a defect, or none.
    #[cfg(feature = "planted")]
    pub const fn new(defect: Option<Defect>) -> Self {
        Self { defect }
    }

    /// Whether this defect is planted.
    #[cfg(feature = "planted")]
    pub fn is(self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Always `false`: this build has no defects.
    #[cfg(not(feature = "planted"))]
    pub const fn is(self, _defect: Defect) -> bool {
        false
    }
}
