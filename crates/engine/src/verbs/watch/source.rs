//! Where the events of a watch come from: the state when it began, the store's history, the cache's queue.
//!
//! Invariant: no event is missing and none comes twice, whether it comes from the snapshot, from the store's history, from the
//! window or from the queue.

use crate::{
    cache::{Cache, Fields, Filter, SelectedEntry, Start, Subscription, WatchEvent},
    conversion::Batch,
    engine::Engine,
    list_options::{ListOptions, Rv},
    registry::Resource,
    request::ApiRequest,
    store_error::store_status,
};
use futures_util::StreamExt;
use kaji_meta::Status;
use kaji_store::{Revision, Store, StoreError, WatchBatch, WatchStream};
use std::{
    ops::Bound,
    sync::Arc,
    task::{Context, Poll},
    vec,
};

/// Events taken from the queue at a time.
const BATCH: usize = 256;

/// The events of a watch as they are stored.
pub(super) struct Source {
    cache: Arc<Cache>,
    phase: Phase,
    /// Bytes of the initial objects in a batch.
    batch_bytes: usize,
    /// Memory that batches use in turn.
    items: Vec<WatchEvent>,
    /// Everything up to this revision has been taken, if no more is there.
    applied: Revision,
}

/// What a source has next.
pub(super) enum Next {
    /// A batch.
    Batch(Batch),
    /// The objects that were there have been taken; they are those of this revision.
    InitialEnd {
        /// Of the snapshot.
        revision: Revision,
        /// Whether a bookmark marks it.
        bookmark: bool,
    },
    /// Nothing more comes, because of this.
    Failed(Status),
    /// Nothing more comes.
    End,
}

enum Phase {
    /// The objects that were there, then the bookmark that says so.
    Initial {
        entries: vec::IntoIter<SelectedEntry>,
        revision: Revision,
        bookmark: bool,
        subscription: Subscription,
    },
    /// The store, until the window reaches back far enough.
    History(Box<History>),
    /// The queue.
    Live(Subscription),
    End,
}

/// Replays what the window no longer holds.
struct History {
    store: Arc<dyn Store>,
    stream: WatchStream,
    fields: Arc<Fields>,
    filter: Filter,
    namespaced: bool,
    after: Revision,
    /// Of the definitions that this watch began with.
    epoch: u64,
}

impl Source {
    /// Finds where a watch begins. Its initial objects come in batches of about `batch_bytes`.
    ///
    /// # Errors
    /// When there are no events from there any more, or not yet.
    pub async fn begin(
        engine: &Arc<Engine>,
        res: &Arc<Resource>,
        req: &ApiRequest,
        options: &ListOptions,
        filter: Filter,
        batch_bytes: usize,
    ) -> Result<Source, Status> {
        let phase = begin(engine, res, req, options, filter).await?;
        Ok(Source { cache: res.cache.clone(), phase, batch_bytes, items: vec![], applied: 0 })
    }

    /// Everything up to this revision has been taken, when [`Source::poll_next`] is pending.
    pub fn applied(&self) -> Revision {
        self.applied
    }

    /// Whether it waits in the queue, where revisions are known without events.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live(_))
    }

    /// Whether nothing more comes.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::End)
    }

    /// Nothing more is to come.
    pub fn end(&mut self) {
        self.phase = Phase::End;
    }

    /// Gives the memory of a batch back.
    pub fn reuse(&mut self, mut items: Vec<WatchEvent>) {
        items.clear();
        self.items = items;
    }

    /// What comes next.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        match &mut self.phase {
            Phase::End => Poll::Ready(Next::End),
            Phase::Initial { .. } => Poll::Ready(self.initial()),
            Phase::History(history) => {
                let next = std::task::ready!(history.stream.poll_next_unpin(cx));
                Poll::Ready(self.history(next))
            }
            Phase::Live(subscription) => {
                // Read before the queue is found empty: then everything up to it has been taken.
                self.applied = subscription.applied();
                match std::task::ready!(subscription.poll_take(BATCH, &mut self.items, cx)) {
                    Some(()) => Poll::Ready(Next::Batch(Batch::Events(std::mem::take(&mut self.items)))),
                    None => {
                        self.phase = Phase::End;
                        Poll::Ready(Next::End)
                    }
                }
            }
        }
    }

    /// Some of the initial objects.
    fn initial(&mut self) -> Next {
        let Phase::Initial { entries, .. } = &mut self.phase else { return Next::End };
        let mut bytes = 0;
        let mut some = vec![];
        while bytes < self.batch_bytes
            && let Some(entry) = entries.next()
        {
            bytes += entry.object_len();
            some.push(entry);
        }
        if !some.is_empty() {
            return Next::Batch(Batch::Initial(some));
        }
        match std::mem::replace(&mut self.phase, Phase::End) {
            Phase::Initial { revision, bookmark, subscription, .. } => {
                self.phase = Phase::Live(subscription);
                Next::InitialEnd { revision, bookmark }
            }
            _ => Next::End,
        }
    }

    fn history(&mut self, next: Option<Result<WatchBatch, StoreError>>) -> Next {
        let Phase::History(history) = &mut self.phase else { return Next::End };
        let failed = match next.map(|batch| batch.and_then(WatchBatch::all_readable)) {
            Some(Ok(batch)) => return self.replay(&batch),
            Some(Err(StoreError::Compacted { compacted })) => Next::Failed(too_old(history.after, compacted)),
            Some(Err(error)) => Next::Failed(store_status(&error)),
            None => Next::End,
        };
        self.phase = Phase::End;
        failed
    }

    fn replay(&mut self, batch: &WatchBatch) -> Next {
        let Phase::History(history) = &mut self.phase else { return Next::End };
        history.after = history.after.max(batch.revision);
        let accept = |event| {
            let event = self.cache.replay(&history.fields, event)?;
            WatchEvent::accept(&history.filter, &Arc::new(event))
        };
        let events: Vec<WatchEvent> = batch.events.iter().filter_map(accept).collect();
        if history.epoch != self.cache.epoch() {
            self.phase = Phase::End;
        } else {
            let start = Start::After(history.after);
            match self.cache.subscribe(history.filter.clone(), history.namespaced, start) {
                Ok((subscription, _)) => self.phase = Phase::Live(subscription),
                Err(_) => history.store.request_progress(),
            }
        }
        Next::Batch(Batch::Events(events))
    }
}

async fn begin(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
    options: &ListOptions,
    filter: Filter,
) -> Result<Phase, Status> {
    let namespaced = res.def.namespaced();
    if options.rv == Rv::Unset {
        engine.wait_consistent().await?;
    }
    if options.send_initial_events == Some(true) {
        if let Rv::At(revision) = options.rv {
            engine.wait_not_older(revision).await?;
        }
        let prefix = res.key_prefix(if namespaced { &req.namespace } else { "" });
        let (subscription, snapshot) =
            res.cache.subscribe(filter.clone(), namespaced, Start::Now).map_err(|e| too_old(0, e.floor))?;
        let range = snapshot.objects.range::<_, str>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let wanted = range.take_while(|(key, _)| key.starts_with(&prefix));
        let entries: Vec<SelectedEntry> = wanted.filter_map(|(_, e)| filter.accept(e)).collect();
        return Ok(Phase::Initial {
            entries: entries.into_iter(),
            revision: snapshot.revision,
            bookmark: options.bookmarks,
            subscription,
        });
    }
    let after = match options.rv {
        Rv::At(revision) => revision,
        Rv::Unset | Rv::Any => res.cache.snapshot().revision,
    };
    match res.cache.subscribe(filter.clone(), namespaced, Start::After(after)) {
        Ok((subscription, _)) => Ok(Phase::Live(subscription)),
        Err(_) => {
            let store = engine.store.clone();
            let stream = store.watch(res.cache.prefix(), after + 1).await.map_err(|e| match e {
                StoreError::Compacted { compacted } => too_old(after, compacted),
                other => store_status(&other),
            })?;
            store.request_progress();
            let fields = res.cache.fields();
            let epoch = res.cache.epoch();
            Ok(Phase::History(Box::new(History { store, stream, fields, filter, namespaced, after, epoch })))
        }
    }
}

fn too_old(wanted: Revision, oldest: Revision) -> Status {
    Status::resource_expired(format!("too old resource version: {wanted} ({oldest})"))
}
