//! Creations that are sent together: bindings, and events. Each is a request of its own, which succeeds or fails by itself.
//!
//! A process that contains the server hands in a transport that carries many of them at once ([`Client::with_batches`]); across
//! processes they are requests beside each other.
//!
//! Invariants:
//! - What is sent together is authorized, admitted, recorded and committed one by one: the outcome of each is that of a request by
//!   itself, in any order.
//! - At most [`UNDER_WAY`] batches of at most [`SIZE`] creations of a [`Batcher`] are under way. What comes meanwhile waits in a
//!   bounded queue, and makes the next batches.

use crate::client::{CALL_TIMEOUT, Client, Error, Target, json};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// Creations of one batch.
pub const SIZE: usize = 64;
/// Batches of a batcher that are under way at once.
const UNDER_WAY: usize = 4;
/// Creations that wait for a batch; callers wait when there are more.
const QUEUE: usize = 1024;
/// Requests of one batch that are under way at once, where each is a request of the transport.
const REQUESTS: usize = 16;

/// A POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// The path.
    pub uri: String,
    /// An object in JSON.
    pub body: Bytes,
}

/// Carries many creations at once.
pub trait BatchTransport: Send + Sync {
    /// Sends creations; their outcomes are in the same order. `agent` names the client's component, and so the account that each
    /// is authorized for. What was sent is carried out even if this future is dropped.
    fn create_all<'a>(
        &'a self,
        agent: &'a str,
        creations: Vec<Creation>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>>;
}

impl Client {
    /// Creates objects. Their outcomes are in the same order.
    pub async fn create_all(&self, creations: Vec<(Target, Value)>) -> Vec<Result<(), Error>> {
        let Some(batches) = self.batches() else {
            let one = |(target, body): (Target, Value)| async move { self.post(&target, &body).await };
            return stream::iter(creations).map(one).buffered(REQUESTS).collect().await;
        };
        let count = creations.len();
        let encoded = |(target, body): &(Target, Value)| Creation { uri: target.path(), body: json(body) };
        let sent = batches.create_all(self.agent(), creations.iter().map(encoded).collect());
        let outcome = tokio::time::timeout(CALL_TIMEOUT, sent).await;
        outcome.unwrap_or_else(|_| vec![Err(Error::Timeout(CALL_TIMEOUT)); count])
    }
}

/// A creation that waits for its batch.
struct Waiting {
    target: Target,
    body: Value,
    outcome: oneshot::Sender<Result<(), Error>>,
}

/// Sends the creations of many tasks together. Clones share the batches.
#[derive(Clone)]
pub struct Batcher {
    sender: mpsc::Sender<Waiting>,
}

impl Batcher {
    /// Starts a batcher; its task ends when the last clone is gone and everything is sent.
    pub fn start(client: Client) -> Batcher {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(run(client, receiver));
        Batcher { sender }
    }

    /// Creates an object, together with what others create at the same time.
    ///
    /// # Errors
    /// Those of a request by itself.
    pub async fn create(&self, target: Target, body: Value) -> Result<(), Error> {
        let ended = || Error::Transport("the batcher has ended".into());
        let (outcome, done) = oneshot::channel();
        self.sender.send(Waiting { target, body, outcome }).await.map_err(|_| ended())?;
        done.await.unwrap_or_else(|_| Err(ended()))
    }
}

async fn run(client: Client, mut receiver: mpsc::Receiver<Waiting>) {
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() >= UNDER_WAY || (receiver.is_closed() && receiver.is_empty()) {
            if under_way.join_next().await.is_none() {
                return;
            }
        }
        let mut batch = Vec::new();
        if receiver.recv_many(&mut batch, SIZE).await == 0 {
            continue;
        }
        while under_way.try_join_next().is_some() {}
        let client = client.clone();
        under_way.spawn(async move {
            let (creations, outcomes): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|Waiting { target, body, outcome }| ((target, body), outcome)).unzip();
            let done = client.create_all(creations).await;
            for (outcome, done) in outcomes.into_iter().zip(done) {
                // The caller may have dropped its future.
                let _ = outcome.send(done);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::client;
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    /// Batches that the test answers.
    #[derive(Default)]
    struct Batches(Mutex<Vec<(Vec<String>, oneshot::Sender<()>)>>);

    impl BatchTransport for Batches {
        fn create_all<'a>(
            &'a self,
            _agent: &'a str,
            creations: Vec<Creation>,
        ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
            let uris: Vec<String> = creations.into_iter().map(|creation| creation.uri).collect();
            let (answer, answered) = oneshot::channel();
            self.0.lock().unwrap().push((uris.clone(), answer));
            Box::pin(async move {
                let _ = answered.await;
                let refused = |uri: &String| uri.ends_with("/refused");
                let outcome = |uri| if refused(uri) { Err(Error::Decode("no".into())) } else { Ok(()) };
                uris.iter().map(outcome).collect()
            })
        }
    }

    fn target(name: &str) -> Target {
        Target { version: "v1".into(), resource: "items".into(), name: name.into(), ..Target::default() }
    }

    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_batches_are_under_way_makes_the_next() {
        let batches = Arc::new(Batches::default());
        let batcher = Batcher::start(client().0.with_batches(batches.clone()));
        let mut tasks = JoinSet::new();
        for number in 0..UNDER_WAY + 2 * SIZE {
            let name = if number == UNDER_WAY + 1 { "refused".to_owned() } else { number.to_string() };
            let batcher = batcher.clone();
            tasks.spawn(async move { batcher.create(target(&name), json!({})).await.is_ok() });
            if number < UNDER_WAY {
                settle().await;
            }
        }
        drop(batcher);
        let mut sizes = vec![];
        while sizes.len() < UNDER_WAY + 2 {
            settle().await;
            for (uris, answer) in batches.0.lock().unwrap().drain(..) {
                sizes.push(uris.len());
                answer.send(()).unwrap();
            }
        }
        assert_eq!(sizes, [1, 1, 1, 1, SIZE, SIZE]);
        let outcomes = tasks.join_all().await;
        // One is refused, and those that were sent with it are not.
        assert_eq!(outcomes.iter().filter(|created| !**created).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_such_a_transport_each_is_a_request() {
        let (client, mut server) = client();
        let all = (0..3).map(|number| (target(&number.to_string()), json!({"n": number}))).collect();
        let sent = tokio::spawn(async move { client.create_all(all).await });
        for number in 0..3 {
            let exchange = server.expect(http::Method::POST, &format!("/api/v1/items/{number}")).await;
            assert_eq!(exchange.body, json!({"n": number}));
            if number == 1 { exchange.status(409, "Conflict") } else { exchange.json(201, &json!({})) }
        }
        let outcomes: Vec<bool> = sent.await.unwrap().iter().map(Result::is_ok).collect();
        assert_eq!(outcomes, [true, false, true]);
    }
}
