//! Templates: what a payload was fitted to is compared with what the template says, in the transaction that writes it.

use std::time::Duration;

use mainspring::cold::{
    Applied, Change, ChangeEvent, Edit, MAX_TEMPLATES, NewTimer, Registered, TemplateEdit, TemplateRemoved,
    TemplateWritten,
};
use mainspring::model::template::{TemplateHash, TemplateUse, lock_key};
use mainspring::model::timer::Answer;

use super::fixture::{Fixture, behind_its_back, held_open, on_both_stores, somebody_waits};

fn edit(name: &str, hash: u8) -> TemplateEdit {
    let schema = format!(r#"{{"const":{hash}}}"#);
    TemplateEdit { name: name.into(), schema, defaults: None, hash: TemplateHash([hash; 16]) }
}

async fn put(f: &Fixture, name: &str, hash: u8) -> (i32, bool) {
    match f.store.put_template(&edit(name, hash)).await.expect("writes") {
        TemplateWritten::Done(row, is_new) => (row.version, is_new),
        TemplateWritten::Full => panic!("full"),
    }
}

fn fitted(name: &str, hash: u8) -> Option<TemplateUse> {
    Some(TemplateUse { name: name.into(), fitted: Some(TemplateHash([hash; 16])) })
}

fn timer(f: &Fixture, id: &str, template: Option<TemplateUse>) -> NewTimer {
    NewTimer { template, ..f.timer(id, 60_000) }
}

async fn a_payload_is_registered_only_if_it_was_fitted_to_what_the_template_says(f: Fixture) {
    assert_eq!(put(&f, "t", 1).await, (1, true));
    let unfitted = Some(TemplateUse::unfitted("t".into()));
    let batch = [
        timer(&f, "fits", fitted("t", 1)),
        timer(&f, "old", fitted("t", 9)),
        timer(&f, "unfitted", unfitted),
        timer(&f, "none", fitted("none", 1)),
        timer(&f, "plain", None),
        NewTimer { request_hash: [8; 16], ..timer(&f, "twice", fitted("t", 9)) },
        timer(&f, "twice", fitted("t", 1)),
    ];
    let answers = f.register(&batch).await;
    assert!(
        matches!(
            &answers[..],
            [
                Registered::New(_),
                Registered::Unfitted(old),
                Registered::Unfitted(unfitted),
                Registered::Unfitted(none),
                Registered::New(_),
                Registered::Unfitted(twice),
                Registered::New(_)
            ] if [old, unfitted, twice].iter().all(|name| *name == "t") && none == "none"
        ),
        "{answers:?}"
    );
    assert_eq!(f.find(batch[0].uid).await.template.as_deref(), Some("t"));
    assert_eq!(f.find(batch[4].uid).await.template, None);
    // It is a new template for what comes, and none for what is there.
    assert_eq!(put(&f, "t", 2).await, (2, false));
    assert!(matches!(f.register(&[timer(&f, "late", fitted("t", 1))]).await[..], [Registered::Unfitted(_)]));
    assert!(matches!(f.register(&batch[..1]).await[..], [Registered::Same(_)]), "the same request");
    let other = NewTimer { request_hash: [8; 16], ..batch[0].clone() };
    assert!(matches!(f.register(std::slice::from_ref(&other)).await[..], [Registered::Unfitted(_)]));
    let other = NewTimer { template: fitted("t", 2), ..other };
    assert!(matches!(f.register(&[other]).await[..], [Registered::Taken]));
    // What it says counts, not how often it was written.
    assert_eq!(put(&f, "t", 1).await, (3, false));
    assert_eq!(put(&f, "t", 1).await, (3, false), "the same again");
    assert!(matches!(f.register(&[timer(&f, "back", fitted("t", 1))]).await[..], [Registered::New(_)]));
    f.change(batch[0].uid, ChangeEvent::Cancel).await;
    assert_eq!(f.find(batch[0].uid).await.template.as_deref(), Some("t"), "history keeps it");
    f.balanced().await;
}

async fn new_data_is_written_only_if_it_was_fitted_to_what_the_template_says(f: Fixture) {
    put(&f, "t", 1).await;
    let (with, without) = (timer(&f, "with", fitted("t", 1)), timer(&f, "without", None));
    f.register(&[with.clone(), without.clone()]).await;
    put(&f, "t", 2).await;
    let event = |data: &[u8], template| {
        ChangeEvent::Edit(Edit { data: Some(Some(data.to_vec())), template, ..Edit::default() })
    };
    let labels = ChangeEvent::Edit(Edit { labels: Some(Some("{\"a\":\"b\"}".into())), ..Edit::default() });
    let change = |uid, event| Change { uid, caller: None, event };
    let answers = f
        .apply(&[
            change(with.uid, event(b"1", None)),
            change(with.uid, event(b"2", fitted("t", 1))),
            change(with.uid, event(b"3", fitted("other", 2))),
            change(without.uid, event(b"4", fitted("t", 2))),
            change(with.uid, labels),
            change(with.uid, event(b"6", fitted("t", 2))),
            change(without.uid, event(b"7", None)),
        ])
        .await;
    assert!(
        matches!(
            &answers[..],
            [
                Applied::Unfitted(Some(_)),
                Applied::Unfitted(Some(_)),
                Applied::Unfitted(Some(name)),
                Applied::Unfitted(None),
                Applied::Live(_, Answer::Done),
                Applied::Live(_, Answer::Done),
                Applied::Live(_, Answer::Done),
            ] if name == "t"
        ),
        "{answers:?}"
    );
    assert_eq!(f.find(with.uid).await.data.as_deref(), Some(b"6".as_slice()));
    assert_eq!(f.find(without.uid).await.data.as_deref(), Some(b"7".as_slice()));
    assert!(matches!(f.store.remove_template("t").await, Ok(TemplateRemoved::InUse(1, 0))));
}

async fn of_a_removal_and_a_registration_exactly_one_wins(f: Fixture) {
    let (mut removed, mut registered) = (0, 0);
    for round in 0..60 {
        let name = format!("t{round}");
        put(&f, &name, 1).await;
        let one = [timer(&f, &format!("timer{round}"), fitted(&name, 1))];
        // Each begins first now and then.
        let register = async {
            for _ in 0..round % 6 {
                tokio::task::yield_now().await;
            }
            f.store.register(&one).await.remove(0).expect("registers")
        };
        let remove = async {
            for _ in 0..(round / 6) % 6 {
                tokio::task::yield_now().await;
            }
            f.store.remove_template(&name).await.expect("removes")
        };
        match tokio::join!(register, remove) {
            (Registered::New(_), TemplateRemoved::InUse(1, 0)) => registered += 1,
            (Registered::Unfitted(_), TemplateRemoved::Done) => removed += 1,
            both => panic!("{both:?}"),
        }
    }
    assert_eq!((removed + registered, f.store.templates(None).await.expect("reads").len()), (60, registered));
    f.balanced().await;
}

async fn a_store_takes_so_many_and_no_more(f: Fixture) {
    let most = MAX_TEMPLATES - 1;
    let is_sqlite = f.config.cold.url.starts_with("sqlite");
    let hash = if is_sqlite { "zeroblob(16)" } else { "decode(repeat('00', 16), 'hex')" };
    behind_its_back(
        &f,
        &format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most}) \
             INSERT INTO templates (namespace, name, schema, hash, version, created_at, changed_at) \
             SELECT 0, 'n' || i, 'true', {hash}, 1, 0, 0 FROM n"
        ),
    )
    .await;
    assert_eq!(put(&f, "last", 1).await, (1, true));
    let full =
        async |edit: TemplateEdit| matches!(f.store.put_template(&edit).await, Ok(TemplateWritten::Full));
    assert!(full(edit("one-more", 1)).await);
    assert_eq!(put(&f, "last", 2).await, (2, false), "one that is there may change");
    assert!(matches!(f.store.remove_template("n1").await, Ok(TemplateRemoved::Done)));
    assert!(matches!(f.store.remove_template("n1").await, Ok(TemplateRemoved::NoSuch)));
    assert_eq!(put(&f, "one-more", 1).await, (1, true));
    // And so much text.
    let text = match is_sqlite {
        true => "hex(zeroblob(8350000))",
        false => "repeat('x', 16700000)",
    };
    behind_its_back(&f, &format!("UPDATE templates SET schema = {text} WHERE name = 'n2'")).await;
    let large = TemplateEdit { schema: "x".repeat(100_000), ..edit("last", 3) };
    assert!(full(large).await, "all together");
}

/// A change waits for the transactions that use the template, and those that come after it wait for the change: they do
/// not pass it by for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_waits_its_turn_and_is_not_passed_by() {
    let f = Fixture::postgres().await;
    put(&f, "t", 1).await;
    let url = f.config.cold.url.clone();
    let mut uses = held_open(&url).await;
    let lock = format!("SELECT pg_advisory_xact_lock_shared({})", lock_key("t"));
    sea_orm::sqlx::raw_sql(sea_orm::sqlx::AssertSqlSafe(lock)).execute(&mut *uses).await.expect("locks");
    // Others may use it beside.
    assert!(matches!(f.register(&[timer(&f, "beside", fitted("t", 1))]).await[..], [Registered::New(_)]));
    let store = f.store.clone();
    let change = tokio::spawn(async move { store.put_template(&edit("t", 2)).await });
    somebody_waits(&url).await;
    let (store, late) = (f.store.clone(), timer(&f, "late", fitted("t", 1)));
    let registration = tokio::spawn(async move { store.register(&[late]).await.remove(0) });
    let both = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    crate::support::eventually("both wait", Duration::from_secs(10), async || {
        let waiting = crate::support::ask_sql(&url, both).await;
        if waiting == "2" { Ok(()) } else { Err(waiting) }
    })
    .await;
    // One of another template, or of none, waits for nobody.
    assert!(matches!(f.register(&[timer(&f, "plain", None)]).await[..], [Registered::New(_)]));
    assert!(!change.is_finished() && !registration.is_finished());
    uses.commit().await.expect("commits");
    assert!(matches!(change.await.expect("runs"), Ok(TemplateWritten::Done(row, false)) if row.version == 2));
    assert!(matches!(registration.await.expect("runs"), Ok(Registered::Unfitted(_))), "the change was first");
    f.balanced().await;
}

on_both_stores!(
    a_payload_is_registered_only_if_it_was_fitted_to_what_the_template_says,
    new_data_is_written_only_if_it_was_fitted_to_what_the_template_says,
    of_a_removal_and_a_registration_exactly_one_wins,
    a_store_takes_so_many_and_no_more,
);
