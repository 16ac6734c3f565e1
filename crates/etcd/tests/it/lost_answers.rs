//! Transactions, the connection of which ends between request and answer: each has its effect once at most.

use kaji_etcd::{Endpoints, EtcdOptions, EtcdStore, KeyMap, TlsFiles};
use kaji_store::{Compare, Op, Range, Store, StoreError, Txn, TxnOutcome};
use kaji_testing::etcd::Etcd;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

/// In the value of a request: its connection ends.
const MARK: &str = "the connection ends here";

/// What becomes of a marked request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Passes,
    /// etcd does not get it.
    Lost,
    /// etcd gets it, and nothing of what it sends afterwards arrives.
    Unanswered,
}

/// What all connections share.
#[derive(Default)]
struct Shared {
    /// For the next marked request.
    mode: Mutex<Mode>,
    /// Ends connections with unanswered requests.
    end: Notify,
}

/// A relay between a store and its etcd.
struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Relay {
    async fn to(etcd: &Etcd) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let (target, connections) = (etcd.url().replace("http://", ""), shared.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                tokio::spawn(relay(client, server, connections.clone()));
            }
        });
        Relay { address, shared }
    }

    fn next(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }
}

/// Copies both ways until the connection ends.
async fn relay(mut client: TcpStream, mut server: TcpStream, shared: Arc<Shared>) {
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut answers = true;
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(length @ 1..) = read else { return };
                let bytes = &from_client[..length];
                if bytes.windows(MARK.len()).any(|part| part == MARK.as_bytes()) {
                    match std::mem::take(&mut *shared.mode.lock().unwrap()) {
                        Mode::Passes => {}
                        Mode::Lost => return,
                        Mode::Unanswered => answers = false,
                    }
                }
                if server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(length @ 1..) = read else { return };
                if answers && client.write_all(&from_server[..length]).await.is_err() {
                    return;
                }
            }
            () = shared.end.notified(), if !answers => return,
        }
    }
}

/// A store behind a relay, and one that sees what happens.
async fn stores(etcd: &Etcd) -> (Relay, EtcdStore, EtcdStore) {
    let relay = Relay::to(etcd).await;
    let open = |url: String| {
        let endpoints = Endpoints::new([&*url], TlsFiles::default()).unwrap();
        let options = EtcdOptions::new(endpoints, KeyMap::plain("/t"));
        EtcdStore::open(EtcdOptions { compaction: None, ..options })
    };
    let store = open(format!("http://{}", relay.address)).await.unwrap();
    (relay, store, open(etcd.url()).await.unwrap())
}

/// Value, version and revision of a key.
async fn seen(store: &EtcdStore, key: &str) -> Option<(String, u64, u64)> {
    let kv = store.range(Range::key(key)).await.unwrap().kvs.into_iter().next()?;
    Some((String::from_utf8(kv.value.to_vec()).unwrap(), kv.version, kv.mod_revision))
}

/// Sends a transaction; its connection ends once etcd has done what is in it.
async fn unanswered(
    (relay, store, other): (&Relay, &EtcdStore, &EtcdStore),
    key: &str,
    txn: Txn,
) -> Result<TxnOutcome, StoreError> {
    relay.next(Mode::Unanswered);
    let done = async {
        while seen(other, key).await.is_none_or(|(value, ..)| value != MARK) {}
        relay.shared.end.notify_one();
    };
    tokio::join!(store.txn(txn), done).0
}

fn committed(outcome: Result<TxnOutcome, StoreError>) -> u64 {
    match outcome {
        Ok(TxnOutcome::Committed { revision, .. }) => revision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_update_that_did_not_arrive_is_sent_again() {
    let Some(etcd) = Etcd::start("an_update_that_did_not_arrive_is_sent_again") else { return };
    let (relay, store, other) = stores(&etcd).await;
    let first = committed(store.txn(Txn::create("/a", "1")).await);
    relay.next(Mode::Lost);
    let second = committed(store.txn(Txn::update("/a", first, MARK)).await);
    assert_eq!((second, seen(&other, "/a").await), (first + 1, Some((MARK.into(), 2, second))));
}

#[tokio::test]
async fn an_update_that_may_have_happened_is_uncertain() {
    let Some(etcd) = Etcd::start("an_update_that_may_have_happened_is_uncertain") else { return };
    let (relay, store, other) = stores(&etcd).await;
    let first = committed(store.txn(Txn::create("/a", "1")).await);
    let outcome = unanswered((&relay, &store, &other), "/a", Txn::update("/a", first, MARK)).await;
    assert!(matches!(outcome, Err(StoreError::Uncertain(_))), "{outcome:?}");
    assert_eq!(seen(&other, "/a").await, Some((MARK.into(), 2, first + 1)));
}

#[tokio::test]
async fn what_does_not_expect_a_version_is_sent_once() {
    let Some(etcd) = Etcd::start("what_does_not_expect_a_version_is_sent_once") else { return };
    let (relay, store, other) = stores(&etcd).await;
    let outcome = unanswered((&relay, &store, &other), "/a", Txn::create("/a", MARK)).await;
    assert!(matches!(outcome, Err(StoreError::Uncertain(_))), "{outcome:?}");
    let created = seen(&other, "/a").await.unwrap();
    assert_eq!((created.0.as_str(), created.1), (MARK, 1));
    // A comparison with another key does not protect the one that is written.
    let beside = |key: &str| Txn {
        compare: vec![Compare { key: "/a".into(), mod_revision: created.2 }],
        ops: vec![Op::Put { key: key.into(), value: MARK.into(), lease: None }],
    };
    for txn in [Txn::create("/b", MARK), Txn::put("/b", MARK), beside("/b")] {
        relay.next(Mode::Lost);
        let outcome = store.txn(txn).await;
        assert!(matches!(outcome, Err(StoreError::Uncertain(_))), "{outcome:?}");
        assert_eq!(seen(&other, "/b").await, None);
    }
}
