//! GET of a collection: one atomic snapshot, whole or in chunks.
//!
//! Invariant: all chunks of a list show the same revision, or the client gets 410 (with a token for
//! going on inconsistently).

use crate::{
    cache::{CacheSnapshot, Filter, Objects},
    continue_token::Continue,
    conversion::{Page, Selection},
    encode::{self, Include, View},
    engine::Engine,
    list_options::{self, ListOptions, Match, Rv},
    registry::Resource,
    request::{ApiRequest, Form},
    response::ApiResponse,
    store_error::store_status,
    trace,
};
use kaji_meta::Status;
use kaji_store::{Range, Revision, StoreError};
use serde_json::{Map, Value};
use std::{ops::Bound, sync::Arc};

/// What to collect from a state.
struct Query<'a> {
    filter: &'a Filter,
    /// Keys of the list begin with this.
    prefix: &'a str,
    /// The first key to look at.
    start: String,
    /// The one key that can match.
    single: Option<String>,
    limit: usize,
}

/// A part of a list as it is stored.
struct Collected {
    revision: Revision,
    page: Page,
    /// Where it is from, unless from the store's history.
    snapshot: Option<CacheSnapshot>,
}

/// Serves a list.
pub(crate) async fn list(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let options = ListOptions::for_list(req)?;
    let include =
        if req.accept.form == Form::Table { Include::from_request(req)? } else { Include::default() };
    let view = View::new(engine, res.clone(), &req.version, &req.accept, include)?;
    let filter = list_options::filter(res, req, &options)?;
    let from = match options.continue_token.as_str() {
        "" => None,
        token => Some(Continue::decode(token)?),
    };
    // Any version will do, so it is the cheapest one, whole: upstream's watch cache ignores the limit there.
    let limit = if options.rv == Rv::Any { 0 } else { options.limit };
    let selection = Selection::new(res, &req.version, filter, limit);
    let prefix = res.key_prefix(if res.def.namespaced() { &req.namespace } else { "" });
    let query = Query::new(res, &selection, &prefix, from.as_ref());
    let span = trace::cached("cacher.GetList", &res.group_resource);
    let collected = match exact_revision(&options, from.as_ref()) {
        Some(revision) => match at_revision(engine, res, &query, revision).await {
            Err(StoreError::Compacted { .. }) => return expired(&query, from.is_some()),
            Err(StoreError::FutureRevision { current }) => {
                return Err(Status::resource_version_too_large(revision, current, 1));
            }
            Err(error) => return Err(store_status(&error)),
            Ok(collected) => collected,
        },
        None => newest(engine, res, &query, options.rv).await?,
    };
    drop(span);
    let Collected { revision, page, snapshot } = collected;
    let page = selection.page(page).await?;
    if let Some(snapshot) = snapshot.filter(|_| page.more) {
        res.cache.keep(&snapshot, engine.clock.now(), engine.store.compacted());
    }
    let metadata = list_meta(&query, revision, &page);
    let _span = trace::serialization();
    encode::list(view, &req.accept, &metadata, page.entries).await
}

impl<'a> Query<'a> {
    fn new(res: &Resource, selection: &'a Selection, prefix: &'a str, from: Option<&Continue>) -> Query<'a> {
        let filter = selection.stored();
        let single = filter.name.as_ref().filter(|_| !res.def.namespaced() || !filter.namespace.is_empty());
        Query {
            filter,
            prefix,
            start: from.map_or_else(|| prefix.to_owned(), |c| format!("{prefix}{}", c.start)),
            single: single.map(|name| res.key(&filter.namespace, name)),
            limit: selection.stored_limit(),
        }
    }
}

/// The page of the present state, or of one that is not older than what is asked for.
async fn newest(engine: &Engine, res: &Resource, query: &Query<'_>, rv: Rv) -> Result<Collected, Status> {
    match rv {
        Rv::Unset => engine.wait_consistent().await?,
        Rv::Any => {}
        Rv::At(revision) => engine.wait_not_older(revision).await?,
    }
    let snapshot = res.cache.snapshot();
    let page = collect(&snapshot.objects, query);
    Ok(Collected { revision: snapshot.revision, page, snapshot: Some(snapshot) })
}

/// The revision that the list must show exactly, if it must.
fn exact_revision(options: &ListOptions, from: Option<&Continue>) -> Option<Revision> {
    match (from, options.rv, options.rv_match) {
        (Some(from), ..) => from.revision,
        (None, Rv::At(revision), Match::Exact) => Some(revision),
        // What limit and resourceVersion meant before there was resourceVersionMatch.
        (None, Rv::At(revision), Match::Unset) if options.limit > 0 => Some(revision),
        _ => None,
    }
}

/// Takes what a query asks for out of a state.
fn collect(objects: &Objects, query: &Query<'_>) -> Page {
    let mut page = Page::default();
    if let Some(key) = &query.single {
        let found = objects.get(key.as_str()).filter(|_| **key >= *query.start);
        page.entries.extend(found.and_then(|entry| query.filter.accept(entry)));
        return page;
    }
    let range = (Bound::Included(query.start.as_str()), Bound::Unbounded);
    let mut rest = objects.range::<_, str>(range).take_while(|(key, _)| key.starts_with(query.prefix));
    let limit = if query.limit == 0 { usize::MAX } else { query.limit };
    let mut seen = 0;
    for (_, entry) in rest.by_ref() {
        seen += 1;
        let Some(selected) = query.filter.accept(entry) else { continue };
        if page.entries.len() == limit {
            page.more = true;
            break;
        }
        page.entries.push(selected);
    }
    if page.more && query.filter.is_plain() {
        let all = query.filter.namespace.is_empty() && query.start == query.prefix;
        page.remaining = Some(if all { objects.len() - limit } else { seen - limit + rest.count() });
    }
    page
}

/// The page at exactly a revision: from the cache if it has (or has kept) that state, else from the store's history.
async fn at_revision(
    engine: &Engine,
    res: &Resource,
    query: &Query<'_>,
    revision: Revision,
) -> Result<Collected, StoreError> {
    let compacted = engine.store.compacted();
    if revision < compacted {
        // Also when a snapshot is still there: a revision, once refused, stays so.
        return Err(StoreError::Compacted { compacted });
    }
    if !engine.wait_fresh(revision).await {
        return Err(StoreError::FutureRevision { current: engine.applied() });
    }
    if let Some(snapshot) = res.cache.snapshot_at(revision) {
        let page = collect(&snapshot.objects, query);
        return Ok(Collected { revision, page, snapshot: Some(snapshot) });
    }
    let mut range = Range { start: query.start.clone(), ..Range::prefix(query.prefix) }.at(revision);
    let step = if query.limit == 0 { 0 } else { (query.limit + 1).max(500) };
    range.limit = step;
    let fields = res.cache.fields();
    let mut page = Page::default();
    loop {
        let result = engine.store.range(range.clone()).await?;
        let total = result.count;
        let last = result.kvs.last().map(|kv| format!("{}\0", kv.key));
        for (seen, kv) in result.kvs.iter().enumerate() {
            let Some(entry) = res.cache.read(&fields, kv).and_then(|e| query.filter.accept_owned(e)) else {
                continue;
            };
            if query.limit > 0 && page.entries.len() == query.limit {
                page.more = true;
                page.remaining = query.filter.is_plain().then(|| total - seen);
                return Ok(Collected { revision, page, snapshot: None });
            }
            page.entries.push(entry);
        }
        match last {
            Some(next) if result.more => range.start = next,
            _ => return Ok(Collected { revision, page, snapshot: None }),
        }
    }
}

fn list_meta(query: &Query<'_>, revision: Revision, page: &Page) -> Value {
    let mut meta = Map::new();
    meta.insert("resourceVersion".into(), revision.to_string().into());
    if let Some(last) = page.entries.last().filter(|_| page.more) {
        let next = format!("{}\0", &last.key[query.prefix.len()..]);
        meta.insert("continue".into(), Continue { revision: Some(revision), start: next }.encode().into());
        if let Some(remaining) = page.remaining {
            meta.insert("remainingItemCount".into(), remaining.into());
        }
    }
    meta.into()
}

/// 410. Where a chunk was asked for, with a token that goes on at the latest revision.
fn expired(query: &Query<'_>, paging: bool) -> Result<ApiResponse, Status> {
    if !paging {
        return Err(Status::resource_expired("The resourceVersion for the provided list is too old."));
    }
    let status = Status::resource_expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let start = query.start[query.prefix.len()..].to_owned();
    let mut value = status.to_value();
    kaji_meta::object::set_at(
        &mut value,
        &["metadata", "continue"],
        Continue { revision: None, start }.encode(),
    );
    Ok(ApiResponse::json(status.code, &value))
}
