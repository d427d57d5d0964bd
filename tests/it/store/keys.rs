//! Keys, as the store has them.

use mainspring::cold::{KeyMade, KeyRevoked, KeyRow, NewKey};
use mainspring::model::key::{KeyId, Scope};
use mainspring::model::namespace::Namespace;
use mainspring::model::time::UnixMs;

use super::fixture::{Fixture, on_both_stores};

pub fn key(number: u64, scope: Scope) -> NewKey {
    let hash = [u8::try_from(number).expect("small"); 32];
    NewKey {
        id: KeyId::new(number),
        name: format!("k{number}"),
        namespace: Some(Namespace::OWN),
        scope,
        hash,
        is_certificate: false,
        expires_at: None,
    }
}

pub async fn made(f: &Fixture, new: NewKey) -> KeyRow {
    match f.store.make_key(&new).await.expect("writes") {
        KeyMade::Done(row) => row,
        other => panic!("{other:?}"),
    }
}

async fn ids(f: &Fixture) -> Vec<u64> {
    f.store.keys().await.expect("reads").iter().map(|row| row.id.get()).collect()
}

async fn a_key_is_kept_as_it_was_made(f: Fixture) {
    let none = f.store.keys_mark().await.expect("reads");
    assert_eq!(none.count, 0);
    let until = UnixMs::new(f.now().get() + 5000);
    let wanted = NewKey { namespace: None, expires_at: Some(until), ..key(7, Scope::Operate) };
    let (row, wanted_again) = (made(&f, wanted.clone()).await, wanted.clone());
    let expected = KeyRow {
        id: wanted.id,
        name: wanted.name,
        namespace: None,
        scope: Scope::Operate,
        hash: wanted.hash,
        is_certificate: false,
        created_at: f.now(),
        expires_at: Some(until),
        last_used_at: None,
    };
    assert_eq!(row, expected);
    let same_hash = NewKey { id: KeyId::new(8), ..wanted_again };
    assert_eq!(f.store.make_key(&same_hash).await.expect("answers"), KeyMade::Taken);
    assert_eq!(f.store.key(row.id).await.expect("reads"), Some(expected.clone()));
    f.clock.advance(std::time::Duration::from_secs(1));
    made(&f, key(1, Scope::View)).await;
    assert_eq!(ids(&f).await, [7, 1], "oldest first");
    let two = f.store.keys_mark().await.expect("reads");
    assert_eq!(two.count, 2);
    // When a key was used is no change of the keys.
    let at = |ms: i64| UnixMs::new(f.now().get() + ms);
    for used in [at(5), at(3)] {
        f.store.note_keys_used(&[(row.id, used), (KeyId::new(99), used)]).await.expect("writes");
    }
    assert_eq!(f.store.key(row.id).await.expect("reads").expect("is there").last_used_at, Some(at(5)));
    assert_eq!(f.store.keys_mark().await.expect("reads"), two);
    assert_eq!(f.store.revoke_key(row.id, true).await.expect("writes"), KeyRevoked::Done);
    assert_eq!(f.store.revoke_key(row.id, true).await.expect("writes"), KeyRevoked::NoSuch);
    assert_eq!(ids(&f).await, [1]);
    // One goes and another comes: the number is the same, and the mark is not.
    let one = f.store.keys_mark().await.expect("reads");
    f.store.revoke_key(KeyId::new(1), true).await.expect("writes");
    f.clock.advance(std::time::Duration::from_secs(1));
    made(&f, key(2, Scope::View)).await;
    assert_ne!(f.store.keys_mark().await.expect("reads"), one);
}

async fn the_last_key_that_may_make_keys_stays_unless_told_otherwise(f: Fixture) {
    let soon = UnixMs::new(f.now().get() + 5000);
    made(&f, key(1, Scope::Admin)).await;
    made(&f, NewKey { expires_at: Some(soon), ..key(2, Scope::Admin) }).await;
    made(&f, key(3, Scope::Operate)).await;
    assert_eq!(f.store.revoke_key(KeyId::new(3), true).await.expect("writes"), KeyRevoked::Done);
    f.clock.advance(std::time::Duration::from_secs(5));
    // One that has expired makes no keys.
    assert_eq!(f.store.revoke_key(KeyId::new(1), true).await.expect("writes"), KeyRevoked::LastAdmin);
    assert_eq!(f.store.revoke_key(KeyId::new(2), true).await.expect("writes"), KeyRevoked::Done);
    made(&f, key(4, Scope::Admin)).await;
    // Of two that are revoked at once one stays.
    let (a, b) =
        tokio::join!(f.store.revoke_key(KeyId::new(1), true), f.store.revoke_key(KeyId::new(4), true));
    let mut outcomes = [a.expect("writes"), b.expect("writes")];
    outcomes.sort_by_key(|outcome| *outcome == KeyRevoked::Done);
    assert_eq!(outcomes, [KeyRevoked::LastAdmin, KeyRevoked::Done]);
    let left = ids(&f).await;
    assert_eq!(left.len(), 1);
    assert_eq!(f.store.revoke_key(KeyId::new(left[0]), false).await.expect("writes"), KeyRevoked::Done);
}

on_both_stores!(a_key_is_kept_as_it_was_made, the_last_key_that_may_make_keys_stays_unless_told_otherwise,);
