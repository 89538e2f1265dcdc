//! Documents: of two who have read one version, one writes the next.

use super::*;

both![who_read_an_older_version_writes_nothing];

async fn who_read_an_older_version_writes_nothing(site: Site) {
    let store = site.open().await;
    let document = |version, body: &str| StoredDocument {
        kind: "invites".into(),
        name: "e1".into(),
        version,
        body: body.into(),
    };
    let read = async || store.document("invites".into(), "e1".into()).await.unwrap();
    assert_eq!(read().await, None);
    assert!(!store.write_document(document(7, "a")).await.unwrap());
    assert!(store.write_document(document(0, "a")).await.unwrap());
    assert!(!store.write_document(document(0, "b")).await.unwrap());
    let StoredDocument { version: first, body, .. } = read().await.unwrap();
    assert_eq!((body.as_str(), first > 0), ("a", true));
    let written: Vec<_> =
        (0..8).map(|number| store.write_document(document(first, &number.to_string()))).collect();
    let written = futures_util::future::join_all(written).await;
    assert_eq!(written.into_iter().filter(|one| *one.as_ref().unwrap()).count(), 1);
    assert_eq!(read().await.unwrap().version, first + 1);
    assert_eq!(store.documents("nodes".into()).await.unwrap(), []);
    assert_eq!(store.documents("invites".into()).await.unwrap().len(), 1);
    let delete = async || store.delete_document("invites".into(), "e1".into()).await.unwrap();
    assert_eq!((delete().await, delete().await), (true, false));
    // What comes after it is another one.
    assert!(store.write_document(document(0, "c")).await.unwrap());
    assert!(!store.write_document(document(first, "d")).await.unwrap());
}
