//! A shard: its owner, and how far its wheels reach.

use sea_orm::entity::prelude::*;

/// A row of `shards`; times in milliseconds since the Unix epoch, by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "shards")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub shard: i32,
    pub epoch: i64,
    pub owner: Option<String>,
    pub lease_until: i64,
    pub watermark: i64,
    pub cursor_at: i64,
    pub wheel: String,
    pub spared: i64,
}

/// None.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
