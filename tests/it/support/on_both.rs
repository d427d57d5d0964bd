//! One rule, both databases.

/// Runs each rule on both databases. A rule takes a node's builder, to set what it needs.
macro_rules! on_both {
    ($($rule:ident),* $(,)?) => {
        mod sqlite {
            use crate::support::Node;
            $(#[tokio::test] async fn $rule() { super::$rule(Node::builder()).await; })*
        }
        mod postgres {
            use crate::support::{Node, fresh_database};
            $(#[tokio::test] async fn $rule() {
                super::$rule(Node::builder().cold(fresh_database().await)).await;
            })*
        }
    };
}

pub(crate) use on_both;
