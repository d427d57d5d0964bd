//! What people look at: an index of the few timers that retry or are paused, the forecast, the nodes' reports, and the
//! trace of the call that registered a timer.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // 2 retrying, 3 paused. A timer that never fails is never in it.
        let up = "CREATE INDEX timers_held_back ON timers (state, due_at) WHERE state IN (2, 3);\n\
                  CREATE TABLE forecast (id BIGINT PRIMARY KEY, counted_at BIGINT NOT NULL, bins TEXT NOT NULL);\n\
                  CREATE TABLE node_reports (name TEXT PRIMARY KEY, at BIGINT NOT NULL, report TEXT NOT NULL)";
        let comments = "COMMENT ON COLUMN timers.trace IS 'of the registering call: trace id, parent id, flags';\n\
                        COMMENT ON TABLE forecast IS 'one row: live timers by wake time, counted from time to time';\n\
                        COMMENT ON TABLE node_reports IS 'what each node last told of itself, for the page and /v1/receivers'";
        let trace = |ty: &str| {
            format!("ALTER TABLE timers ADD COLUMN trace {ty};\nALTER TABLE history ADD COLUMN trace {ty}")
        };
        let postgres = format!("{up};\n{};\n{comments}", trace("BYTEA"));
        super::run(manager, &postgres, &format!("{up};\n{}", trace("BLOB"))).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let down = "ALTER TABLE timers DROP COLUMN trace;\nALTER TABLE history DROP COLUMN trace;\n\
                    DROP INDEX timers_held_back;\nDROP TABLE forecast;\nDROP TABLE node_reports";
        super::run(manager, down, down).await
    }
}
