//! Fixtures for tests: a client with requests that the test itself answers, one by one, and a projection to watch.

use crate::{Client, Meta, Projection};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::sync::{mpsc, oneshot};

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A request that waits for the test's response.
pub struct Exchange {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub uri: String,
    /// The body, null when there is none.
    pub body: Value,
    respond: oneshot::Sender<Answer>,
}

impl Exchange {
    /// Sends a JSON response.
    pub fn json(self, code: u16, body: &Value) {
        let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
        let response = Response::builder().status(code).body(body).unwrap();
        // The client may have given up waiting.
        let _ = self.respond.send(response);
    }

    /// Sends an API error.
    pub fn status(self, code: u16, reason: &str) {
        let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("{reason} by the test"), "reason": reason, "code": code});
        self.json(code, &body);
    }

    /// Starts a watch, which lasts until the stream is dropped.
    pub fn watch(self) -> WatchStream {
        let (sender, receiver) = mpsc::unbounded_channel::<Bytes>();
        let frames = stream::unfold(receiver, |mut receiver| async move {
            let data = receiver.recv().await?;
            Some((Ok(http_body::Frame::data(data)), receiver))
        });
        let response = Response::builder().body(StreamBody::new(frames).boxed_unsync()).unwrap();
        let _ = self.respond.send(response);
        WatchStream(sender)
    }
}

/// The server's side of a watch.
pub struct WatchStream(mpsc::UnboundedSender<Bytes>);

impl WatchStream {
    /// Sends events in one piece.
    pub fn send(&self, events: &[(&str, Value)]) {
        let line = |(kind, object): &(&str, Value)| format!("{}\n", json!({"type": kind, "object": object}));
        self.raw(&events.iter().map(line).collect::<String>());
    }

    /// Sends text as it is.
    pub fn raw(&self, text: &str) {
        self.0.send(Bytes::from(text.to_owned())).unwrap();
    }
}

/// The server's side of a client.
pub struct FakeServer(mpsc::UnboundedReceiver<Exchange>);

impl FakeServer {
    /// The next request.
    pub async fn next(&mut self) -> Exchange {
        self.0.recv().await.unwrap()
    }

    /// The next request, which must be this one.
    pub async fn expect(&mut self, method: Method, uri: &str) -> Exchange {
        let exchange = self.next().await;
        assert_eq!((&exchange.method, exchange.uri.as_str()), (&method, uri));
        exchange
    }

    /// The next list of items, and the watch after it.
    pub async fn sync(&mut self, revision: &str, items: &[Value]) -> WatchStream {
        self.expect(Method::GET, "/apis/test/v1/items").await.json(200, &list(revision, items));
        self.watch(revision).await
    }

    /// The next watch, which must be from a revision.
    pub async fn watch(&mut self, revision: &str) -> WatchStream {
        let uri =
            format!("/apis/test/v1/items?watch=true&allowWatchBookmarks=true&resourceVersion={revision}");
        self.expect(Method::GET, &uri).await.watch()
    }

    /// Whether no request waits.
    pub fn idle(&self) -> bool {
        self.0.is_empty()
    }
}

/// A client and its server.
pub fn client() -> (Client, FakeServer) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            let (respond, response) = oneshot::channel();
            let exchange = Exchange {
                method: head.method,
                uri: head.uri.to_string(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
                respond,
            };
            sender.send(exchange).map_err(|_| "the test has ended")?;
            response.await.map_err(|_| "the test dropped the request".to_owned())
        }
    });
    (Client::new(kube::Client::new(service, "default"), "test"), FakeServer(receiver))
}

/// The projection that tests watch.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Item {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Anything.
    pub value: i64,
}

impl Projection for Item {
    const GROUP: &'static str = "test";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "items";
    const KIND: &'static str = "Item";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// An item in the namespace `ns`; its uid is its name unless `uid` says otherwise.
pub fn item(name: &str, revision: u64, value: i64) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": revision.to_string()}, "value": value})
}

/// A list of items.
pub fn list(revision: &str, items: &[Value]) -> Value {
    json!({"metadata": {"resourceVersion": revision}, "items": items})
}
