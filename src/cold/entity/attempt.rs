//! An attempt that did not end its timer.

use sea_orm::entity::prelude::*;

/// A row of `attempts`; times in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "attempts")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub uid: Uuid,
    #[sea_orm(primary_key, auto_increment = false)]
    pub generation: i32,
    #[sea_orm(primary_key, auto_increment = false)]
    pub attempt: i32,
    pub started_at: i64,
    pub ended_at: i64,
    pub result: String,
    pub status: Option<i32>,
    pub reply: Option<String>,
    pub detail: Option<String>,
    pub node: String,
    pub created_at: i64,
    pub delivery_id: Option<String>,
    pub worker: Option<String>,
}

/// None: an attempt may outlive its timer's row.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
