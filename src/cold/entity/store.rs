//! The store itself: what was fixed when it was made.

use sea_orm::entity::prelude::*;

/// The one row of `store`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "store")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub one: i32,
    pub incarnation: i64,
    pub namespace: String,
    pub shards: i32,
    pub created_at: i64,
    pub id: String,
}

/// None.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
