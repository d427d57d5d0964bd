//! Defects built in on purpose, so that drills and the simulation can show that they would find them.
//!
//! Each takes away one of the rules that the promises stand on ([`crate`]); at most one is there at a time.
//! They exist only in builds with the feature `planted`, which is for tests and never shipped: without it
//! [`Planted`] has no content, [`Planted::is`] is a constant `false`, and no setting names a defect. What is
//! planted is handed to where it acts (with the settings, the cold store, the ownership); nothing here is
//! shared by a whole process.

/// A rule taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "planted",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Defect {
    /// The loader scans the new slice first and raises the watermark afterwards; who commits in between is
    /// missed by both.
    NaiveLoader,
    /// The claim trusts the pointer: neither generation and attempt nor the row's own time are compared.
    ClaimWithoutGeneration,
    /// No epoch is compared in the claim, and a lease that ran out keeps nobody from claiming or sending.
    ClaimWithoutEpoch,
    /// The result of an attempt counts for whatever generation and attempt the row has now.
    ResultWithoutToken,
    /// A cancel does not see the attempt under way, nor one whose outcome is unknown.
    BlindCancel,
    /// The wheel that is found is believed to be whole: nothing is read again from SQL.
    CursorTrusted,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NaiveLoader,
        Self::ClaimWithoutGeneration,
        Self::ClaimWithoutEpoch,
        Self::ResultWithoutToken,
        Self::BlindCancel,
        Self::CursorTrusted,
    ];
}

/// The defect that is built in, if any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(feature = "planted")]
    defect: Option<Defect>,
}

impl Planted {
    /// This one.
    #[cfg(feature = "planted")]
    pub const fn new(defect: Option<Defect>) -> Self {
        Self { defect }
    }

    /// Whether it is this one.
    #[cfg(feature = "planted")]
    pub fn is(self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// It never is: this build has none.
    #[cfg(not(feature = "planted"))]
    pub const fn is(self, _defect: Defect) -> bool {
        false
    }
}
