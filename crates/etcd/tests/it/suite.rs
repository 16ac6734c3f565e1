//! The laws of a store, and what is particular to etcd.

use futures_util::{FutureExt, StreamExt};
use kaji_etcd::client::Client;
use kaji_etcd::compactor::Compactor;
use kaji_etcd::{Endpoints, EtcdOptions, EtcdStore, KeyMap, TlsFiles};
use kaji_store::conformance::{self, Subject};
use kaji_store::{EventKind, Op, Range, Store, StoreError, Txn, TxnOutcome};
use kaji_testing::etcd::Etcd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn endpoints(etcd: &Etcd, files: TlsFiles) -> Endpoints {
    Endpoints::new([etcd.url()], files).unwrap()
}

/// Options for keys below a root, without compaction.
fn options(etcd: &Etcd, root: &str) -> EtcdOptions {
    let options = EtcdOptions::new(endpoints(etcd, TlsFiles::default()), KeyMap::plain(root));
    EtcdOptions { compaction: None, ..options }
}

async fn store_of(etcd: &Etcd, root: &str) -> EtcdStore {
    EtcdStore::open(options(etcd, root)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_the_laws() {
    let Some(etcd) = Etcd::start("etcd_keeps_the_laws") else { return };
    let number = AtomicUsize::new(0);
    let options = || options(&etcd, &format!("/laws{}", number.load(Ordering::Relaxed)));
    let factory = || {
        number.fetch_add(1, Ordering::Relaxed);
        let (first, later) = (options(), options());
        let reopen = Box::new(move || {
            let options = later.clone();
            async move { Ok(Arc::new(EtcdStore::open(options).await?) as Arc<dyn Store>) }.boxed()
        });
        // The suite asks for a store in plain code, and this one is opened by asking etcd.
        let open = move || tokio::runtime::Handle::current().block_on(EtcdStore::open(first)).unwrap();
        let store = tokio::task::block_in_place(open);
        Subject { store: Arc::new(store), advance: None, reopen: Some(reopen), keep: None }
    };
    assert_eq!(conformance::run(factory).await, []);
}

async fn put(store: &dyn Store, key: &str, value: &str) -> u64 {
    match store.txn(Txn::put(key, value.to_owned())).await.unwrap() {
        TxnOutcome::Committed { revision, .. } => revision,
        conflict => panic!("{conflict:?}"),
    }
}

#[tokio::test]
async fn leases_expire() {
    let Some(etcd) = Etcd::start("leases_expire") else { return };
    let store = store_of(&etcd, "/t").await;
    let lease = store.grant_lease(Duration::from_secs(1)).await.unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    let put = |key: &str| Op::Put { key: key.into(), value: "v".into(), lease: Some(lease) };
    store.txn(Txn { compare: vec![], ops: vec![put("/a"), put("/b")] }).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().events.len(), 2);
    let gone = watch.next().await.unwrap().unwrap();
    let seen: Vec<_> = gone.events.iter().map(|e| (e.kind, &*e.kv.key)).collect();
    assert_eq!(seen, [(EventKind::Delete, "/a"), (EventKind::Delete, "/b")]);
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseNotFound));
}

#[tokio::test]
async fn another_servers_compaction_is_noticed() {
    let Some(etcd) = Etcd::start("another_servers_compaction_is_noticed") else { return };
    let (store, other) = (store_of(&etcd, "/t").await, store_of(&etcd, "/t").await);
    let first = put(&store, "/a", "1").await;
    let second = put(&store, "/a", "2").await;
    let third = put(&store, "/a", "3").await;
    other.compact(second).await.unwrap();
    let refused = store.range(Range::prefix("/").at(first)).await;
    assert_eq!(refused, Err(StoreError::Compacted { compacted: second }));
    assert_eq!(store.compacted(), second);
    let late = store_of(&etcd, "/t").await;
    assert_eq!(late.compacted(), second);
    assert!(matches!(late.watch("/", second).await, Err(StoreError::Compacted { .. })));
    assert_eq!(late.watch("/", third).await.unwrap().next().await.unwrap().unwrap().revision, third);
}

/// etcd lets a watch begin at the revision that it is compacted to, without the deletion that made it.
#[tokio::test]
async fn a_deletion_at_the_compacted_revision_is_not_missed() {
    let Some(etcd) = Etcd::start("a_deletion_at_the_compacted_revision_is_not_missed") else { return };
    let (store, other) = (store_of(&etcd, "/t").await, store_of(&etcd, "/t").await);
    let made = put(&store, "/a", "1").await;
    let delete = Txn { compare: vec![], ops: vec![Op::Delete { key: "/a".into() }] };
    let TxnOutcome::Committed { revision: deleted, .. } = other.txn(delete).await.unwrap() else { panic!() };
    assert_eq!(deleted, made + 1);
    other.compact(deleted).await.unwrap();
    let began = match store.watch("/", deleted).await {
        Ok(mut watch) => watch.next().await.unwrap().map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(began, Err(StoreError::Compacted { compacted: deleted }));
}

#[tokio::test]
async fn servers_take_turns_at_compaction() {
    let Some(etcd) = Etcd::start("servers_take_turns_at_compaction") else { return };
    let client = Client::new(endpoints(&etcd, TlsFiles::default()));
    let store = store_of(&etcd, "/t").await;
    let (mut one, mut two) = (Compactor::default(), Compactor::default());
    // The first round of the first server begins the count; the other's first finds out.
    assert_eq!(one.round(&client).await.unwrap(), None);
    let begun = store.revision().await.unwrap();
    assert_eq!(two.round(&client).await.unwrap(), None);
    put(&store, "/a", "1").await;
    // An interval later.
    assert_eq!(one.round(&client).await.unwrap(), Some(begun));
    assert_eq!(two.round(&client).await.unwrap(), Some(begun));
    let seen = store.revision().await.unwrap();
    put(&store, "/a", "2").await;
    // The first server ended; the other takes over.
    assert_eq!(two.round(&client).await.unwrap(), Some(seen));
    assert_eq!(store_of(&etcd, "/t").await.compacted(), seen);
}

#[tokio::test]
async fn an_outage_loses_nothing() {
    let Some(mut etcd) = Etcd::start("an_outage_loses_nothing") else { return };
    let store = store_of(&etcd, "/t").await;
    let first = put(&store, "/a", "1").await;
    let mut watch = store.watch("/", first).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().revision, first);
    etcd.kill();
    assert!(matches!(watch.next().await, Some(Err(StoreError::Unavailable(_)))));
    assert!(watch.next().await.is_none());
    let (read, ()) = tokio::join!(store.range(Range::prefix("/")), async { etcd.run() });
    assert_eq!(read.unwrap().kvs.len(), 1);
    let second = put(&store, "/a", "2").await;
    let mut resumed = store.watch("/", first + 1).await.unwrap();
    assert_eq!(resumed.next().await.unwrap().unwrap().revision, second);
}

#[tokio::test]
async fn the_next_endpoint_is_used() {
    let Some(etcd) = Etcd::start("the_next_endpoint_is_used") else { return };
    let live = etcd.url();
    // Port 9 of the loopback refuses.
    let endpoints = Endpoints::new(["http://127.0.0.1:9", &live], TlsFiles::default()).unwrap();
    let store = EtcdStore::open(EtcdOptions { endpoints, ..options(&etcd, "/t") }).await.unwrap();
    put(&store, "/a", "1").await;
    let mut watch = store.watch("/", 0).await.unwrap();
    let revision = put(&store, "/a", "2").await;
    assert_eq!(watch.next().await.unwrap().unwrap().revision, revision);
}

#[tokio::test]
async fn an_etcd_that_is_away_is_reported() {
    let endpoints = Endpoints::new(["http://127.0.0.1:9"], TlsFiles::default()).unwrap();
    let options = EtcdOptions::new(endpoints, KeyMap::plain("/t"));
    let refused = EtcdStore::open(EtcdOptions { start_timeout: Duration::ZERO, ..options }).await;
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("no endpoint can be reached: 127.0.0.1:9: Connection refused"), "{text}");
}

#[tokio::test]
async fn transactions_of_many_operations_are_refused_whole() {
    let Some(etcd) = Etcd::start("transactions_of_many_operations_are_refused_whole") else { return };
    let store = store_of(&etcd, "/t").await;
    let of = |count: usize| {
        let put = |i| Op::Put { key: format!("/{i:03}"), value: "v".into(), lease: None };
        Txn { compare: vec![], ops: (0..count).map(put).collect() }
    };
    let refused = store.txn(of(2049)).await.unwrap_err().to_string();
    assert!(refused.contains("no transaction of 2049 operations"), "{refused}");
    assert_eq!(store.range(Range::prefix("/")).await.unwrap().kvs.len(), 0);
    assert!(matches!(store.txn(of(2048)).await, Ok(TxnOutcome::Committed { .. })));
}

#[tokio::test]
async fn large_values_are_read_in_smaller_pages() {
    let Some(etcd) = Etcd::start("large_values_are_read_in_smaller_pages") else { return };
    let store = store_of(&etcd, "/t").await;
    let value = "x".repeat(1 << 20);
    for i in 0..80 {
        put(&store, &format!("/{i:02}"), &value).await;
    }
    let all = store.range(Range::prefix("/")).await.unwrap();
    assert_eq!((all.kvs.len(), all.count, all.more), (80, 80, false));
    let refused = store.txn(Txn::put("/large", "x".repeat(2 << 20))).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    // Versions of a megabyte come in fragments, and each is delivered once.
    let mut watch = store.watch("/", all.kvs[0].mod_revision).await.unwrap();
    for kv in &all.kvs {
        let mut batch = watch.next().await.unwrap().unwrap();
        while batch.events.is_empty() {
            batch = watch.next().await.unwrap().unwrap();
        }
        assert!(batch.events.iter().any(|e| e.kv.mod_revision == kv.mod_revision) || batch.events.len() > 1);
        if batch.revision >= all.kvs[79].mod_revision {
            break;
        }
    }
}

#[tokio::test]
async fn tls_with_client_certificates() {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    std::fs::write(path("ca.crt"), authority.pem()).unwrap();
    for (name, usage) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        // etcd's own gateway connects with its server's certificate.
        params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(path(&format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    let flag = |flag: &str, name: &str| format!("--{flag}={}", path(name).display());
    let flags = vec![
        flag("cert-file", "server.crt"),
        flag("key-file", "server.key"),
        flag("trusted-ca-file", "ca.crt"),
        "--client-cert-auth".to_owned(),
    ];
    let Some(etcd) = Etcd::with("tls_with_client_certificates", "https", flags) else { return };
    let with = |certificate: bool| TlsFiles {
        ca: Some(path("ca.crt")),
        certificate: certificate.then(|| path("client.crt")),
        key: certificate.then(|| path("client.key")),
    };
    let open = |files| {
        let endpoints = endpoints(&etcd, files);
        let options = EtcdOptions::new(endpoints, KeyMap::plain("/t"));
        EtcdStore::open(EtcdOptions { start_timeout: Duration::ZERO, compaction: None, ..options })
    };
    let store = open(with(true)).await.unwrap();
    put(&store, "/a", "1").await;
    assert!(open(with(false)).await.is_err());
    // An authority that etcd's certificate is not of.
    assert!(open(TlsFiles { ca: Some(path("client.crt")), ..with(true) }).await.is_err());
}
