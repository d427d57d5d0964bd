//! The note of a replay.

use sea_orm::entity::prelude::*;

/// A row of `replays`; times in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "replays")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub at: i64,
    #[sea_orm(primary_key, auto_increment = false)]
    pub shard: i32,
    pub node: String,
    pub cause: String,
    pub cursor_at: i64,
    pub detail: String,
}

/// None.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
