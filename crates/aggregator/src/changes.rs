//! Watches inside the process.
//!
//! Invariant: an event only signals a change; its consumer reads the current objects.

use bytes::Bytes;
use futures_util::{
    FutureExt, StreamExt, future,
    stream::{self, BoxStream},
};
use kaji_engine::{ApiRequest, Body, Engine};
use kaji_meta::GroupResource;
use kaji_resource::Verb;
use std::{sync::Arc, time::Duration};

/// Changes within this time are processed together.
const LINGER: Duration = Duration::from_millis(5);

/// Some objects of a kind.
pub(crate) struct Watched {
    resource: GroupResource,
    version: &'static str,
    namespace: String,
    selector: Option<(&'static str, String)>,
}

impl Watched {
    /// All objects.
    pub fn all(resource: GroupResource, version: &'static str) -> Watched {
        Watched { resource, version, namespace: String::new(), selector: None }
    }

    /// Those of a namespace that a selector takes: `fieldSelector` or `labelSelector`, and its text.
    pub fn some(
        group: &str,
        resource: &str,
        version: &'static str,
        namespace: &str,
        (key, selector): (&'static str, String),
    ) -> Watched {
        Watched {
            resource: GroupResource::new(group, resource),
            version,
            namespace: namespace.into(),
            selector: Some((key, selector)),
        }
    }

    fn request(self) -> ApiRequest {
        let query = [("watch", "true".to_owned())].into_iter().chain(self.selector).collect();
        let all = ApiRequest::own(Verb::Watch, self.resource, self.version, "kube-aggregator");
        ApiRequest { namespace: self.namespace, query, ..all }
    }
}

/// Changes of several kinds; it ends when one of its watches does, which all do now and then.
pub(crate) struct Changes {
    events: BoxStream<'static, Bytes>,
    /// An event has arrived that `next` has not returned yet.
    heard: bool,
}

impl Changes {
    /// Begins with what there is. `None` once the engine has ended.
    pub async fn of(engine: &Arc<Engine>, all: impl IntoIterator<Item = Watched>) -> Option<Changes> {
        let mut streams = vec![];
        for watched in all {
            let Body::Watch(stream) = engine.handle(watched.request()).await.body else { return None };
            // Its end would be hidden by the others.
            streams.push(stream.chain(stream::once(future::ready(Bytes::new()))).boxed());
        }
        let all = stream::select_all(streams).take_while(|piece| future::ready(!piece.is_empty()));
        Some(Changes { events: all.boxed(), heard: false })
    }

    /// Waits for a change, and for those that come with it. False at the end. Nothing is lost when the waiting is given up.
    pub async fn next(&mut self) -> bool {
        if !self.heard {
            if self.events.next().await.is_none() {
                return false;
            }
            self.heard = true;
        }
        tokio::time::sleep(LINGER).await;
        self.drain();
        true
    }

    /// Forgets what is known already.
    pub fn drain(&mut self) {
        self.heard = false;
        while let Some(Some(_)) = self.events.next().now_or_never() {}
    }
}
