//! What may stand between a client and its server: calls are delayed, refused, or their answers lost, events of watches are held
//! back, and processes of clients killed. For simulations.
//!
//! Invariants: a refused call never reaches the server; a lost answer is that of a call that the server has carried out; events
//! keep their order.

use crate::{
    client::Error,
    feed::{Collection, ObjectEvents, ObjectFeed, ObjectList},
};
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture};
use http::Method;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// A call, as an [`Interception`] sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name of the client.
    pub agent: String,
    /// The method; GET for lists and watches.
    pub method: Method,
    /// Path and query.
    pub uri: String,
}

/// Decides about calls.
pub trait Interception: Send + Sync {
    /// Before the call is sent; an error is its outcome.
    ///
    /// # Errors
    /// For a call that is refused.
    fn before(&self, call: &Call) -> BoxFuture<'static, Result<(), Error>>;

    /// After the call succeeded; an error takes the place of its answer.
    ///
    /// # Errors
    /// For an answer that is lost.
    fn after(&self, call: &Call) -> BoxFuture<'static, Result<(), Error>>;

    /// When the watch that this call has begun ends, and how. It may never resolve.
    fn end_of_watch(&self, call: &Call) -> BoxFuture<'static, Error>;

    /// How long the next event of the watch that this call has begun is held back, and with it all behind it; `None` for not at
    /// all.
    fn delay_of_event(&self, call: &Call) -> Option<BoxFuture<'static, ()>>;

    /// Resolves when the process that has these names as a client is killed. Asked again for the process that takes its place.
    fn killed(&self, agents: &[&'static str]) -> BoxFuture<'static, ()>;
}

/// A feed behind an [`Interception`].
pub(crate) struct InterceptedFeed {
    feed: Arc<dyn ObjectFeed>,
    interception: Arc<dyn Interception>,
}

impl InterceptedFeed {
    pub fn new(feed: Arc<dyn ObjectFeed>, interception: Arc<dyn Interception>) -> InterceptedFeed {
        InterceptedFeed { feed, interception }
    }
}

impl ObjectFeed for InterceptedFeed {
    fn list<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
    ) -> BoxFuture<'a, Result<ObjectList, Error>> {
        Box::pin(async move {
            let call = Call { agent: agent.to_owned(), method: Method::GET, uri: collection.list_uri() };
            self.interception.before(&call).await?;
            let list = self.feed.list(agent, collection).await?;
            self.interception.after(&call).await?;
            Ok(list)
        })
    }

    fn watch<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        Box::pin(async move {
            let call = Call { agent: agent.to_owned(), method: Method::GET, uri: collection.watch_uri(from) };
            self.interception.before(&call).await?;
            let events = self.feed.watch(agent, collection, from).await?;
            let end = self.interception.end_of_watch(&call);
            let interception = self.interception.clone();
            Ok(InterceptedEvents { events, end: Some(end), interception, call, held: None }.boxed())
        })
    }
}

type Item = <ObjectEvents as Stream>::Item;

/// Events until a watch is ended from outside.
struct InterceptedEvents {
    events: ObjectEvents,
    end: Option<BoxFuture<'static, Error>>,
    interception: Arc<dyn Interception>,
    call: Call,
    /// An event that is held back, and until when.
    held: Option<(Item, BoxFuture<'static, ()>)>,
}

impl Stream for InterceptedEvents {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if let Poll::Ready(error) = end.poll_unpin(cx) {
            self.end = None;
            return Poll::Ready(Some(Err(error)));
        }
        if self.held.is_none() {
            let Some(item) = ready!(self.events.poll_next_unpin(cx)) else { return Poll::Ready(None) };
            match self.interception.delay_of_event(&self.call) {
                Some(delay) => self.held = Some((item, delay)),
                None => return Poll::Ready(Some(item)),
            }
        }
        let Some((_, until)) = &mut self.held else { return Poll::Ready(None) };
        ready!(until.poll_unpin(cx));
        Poll::Ready(self.held.take().map(|(item, _)| item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::{ObjectEvent, Selection};
    use bytes::Bytes;
    use futures_util::stream;
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };
    use tokio::time::{Instant, sleep};

    /// A feed of three events, and a watch that stays open.
    struct Three;

    impl ObjectFeed for Three {
        fn list<'a>(&'a self, _: &'a str, _: &'a Collection) -> BoxFuture<'a, Result<ObjectList, Error>> {
            Box::pin(async { Err(Error::Transport("no lists".into())) })
        }

        fn watch<'a>(
            &'a self,
            _: &'a str,
            _: &'a Collection,
            _: &'a str,
        ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
            let events = ["1", "2", "3"].map(|name| Ok(vec![ObjectEvent::Changed(Bytes::from(name))]));
            Box::pin(async { Ok(stream::iter(events).chain(stream::pending()).boxed()) })
        }
    }

    /// Holds the second event back, and ends the watch later.
    #[derive(Default)]
    struct Second(AtomicU64);

    impl Interception for Second {
        fn before(&self, _: &Call) -> BoxFuture<'static, Result<(), Error>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn after(&self, _: &Call) -> BoxFuture<'static, Result<(), Error>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn end_of_watch(&self, _: &Call) -> BoxFuture<'static, Error> {
            Box::pin(async {
                sleep(Duration::from_secs(60)).await;
                Error::Transport("unexpected EOF".into())
            })
        }

        fn delay_of_event(&self, call: &Call) -> Option<BoxFuture<'static, ()>> {
            assert!(call.uri.starts_with("/api/v1/pods?"), "{}", call.uri);
            let is_second = self.0.fetch_add(1, Ordering::Relaxed) == 1;
            is_second.then(|| Box::pin(sleep(Duration::from_secs(5))) as BoxFuture<'static, ()>)
        }

        fn killed(&self, _: &[&'static str]) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_is_held_back_holds_those_behind_it() {
        let feed = InterceptedFeed::new(Arc::new(Three), Arc::new(Second::default()));
        let collection =
            Collection { path: "/api/v1/pods".into(), selection: Selection::default(), metadata_only: false };
        let mut events = feed.watch("a", &collection, "1").await.unwrap();
        let (began, mut seen) = (Instant::now(), vec![]);
        while let Some(item) = events.next().await {
            let text = match item {
                Ok(events) => format!("{events:?}"),
                Err(error) => error.to_string(),
            };
            seen.push(format!("{} s: {text}", began.elapsed().as_secs()));
        }
        expect_test::expect![[r#"
            0 s: [Changed(b"1")]
            5 s: [Changed(b"2")]
            5 s: [Changed(b"3")]
            60 s: transport: unexpected EOF"#]]
        .assert_eq(&seen.join("\n"));
    }
}
