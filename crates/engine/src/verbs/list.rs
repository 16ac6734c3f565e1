//! GET of a collection: one atomic snapshot, whole or in chunks.
//!
//! Invariant: all chunks of a list show the same revision, or the client gets 410 (with a token for
//! going on inconsistently).

use crate::{
    cache::{Filter, Objects, SelectedEntry},
    continue_token::Continue,
    conversion::{self, Reader},
    encode::{self, Include, View},
    engine::{Engine, store_status},
    list_options::{self, ListOptions, Match, Rv},
    registry::Resource,
    request::{ApiRequest, Encoding, Form},
    response::ApiResponse,
};
use kaji_meta::Status;
use kaji_store::{Range, Revision, StoreError};
use serde_json::{Map, Value};
use std::{ops::Bound, sync::Arc};

/// A part of a list.
#[derive(Default)]
struct Page {
    entries: Vec<SelectedEntry>,
    /// Whether more objects match after these.
    more: bool,
    /// How many objects come after these, where that is known.
    remaining: Option<usize>,
}

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

/// Serves a list.
#[expect(clippy::too_many_lines, reason = "to be divided")]
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
    let prefix = res.key_prefix(if res.def.namespaced() { &req.namespace } else { "" });
    let from = match options.continue_token.as_str() {
        "" => None,
        token => Some(Continue::decode(token)?),
    };
    let start = from.as_ref().map_or_else(|| prefix.clone(), |c| format!("{prefix}{}", c.start));
    let single = filter.name.as_ref().filter(|_| !res.def.namespaced() || !filter.namespace.is_empty());
    let single = single.map(|name| res.key(&filter.namespace, name));
    // Any version will do, so it is the cheapest one, whole: upstream's watch cache ignores the limit there.
    let limit = if options.rv == Rv::Any { 0 } else { options.limit };
    let reader = Reader::of(res, &req.version);
    // Objects that a webhook converts are selected by namespace and name first, and by labels and fields once converted.
    let place = reader.is_some().then(|| filter.place());
    let later = reader.is_some() && filter.looks_inside();
    let query = Query {
        filter: place.as_ref().unwrap_or(&filter),
        prefix: &prefix,
        start,
        single,
        limit: if later { 0 } else { limit },
    };

    let exact = exact_revision(&options, from.as_ref());
    let mut kept = None;
    let (revision, mut page) = match exact {
        Some(revision) => match at_revision(engine, res, &query, revision).await {
            Err(StoreError::Compacted { .. }) => return expired(&query, from.is_some()),
            Err(StoreError::FutureRevision { current }) => {
                return Err(Status::resource_version_too_large(revision, current, 1));
            }
            Err(error) => return Err(store_status(&error)),
            Ok(page) => (revision, page),
        },
        None => {
            match options.rv {
                Rv::Unset => engine.wait_consistent().await?,
                Rv::Any => {}
                Rv::At(revision) => engine.wait_not_older(revision).await?,
            }
            let snapshot = res.cache.snapshot();
            let page = collect(&snapshot.objects, &query);
            if page.more {
                res.cache.keep(&snapshot, engine.clock.now(), engine.store.compacted());
            }
            let revision = snapshot.revision;
            kept = Some(snapshot);
            (revision, page)
        }
    };
    if let Some(reader) = reader {
        page = if later {
            let page = chosen(&reader, page.entries, &filter, limit).await?;
            if let Some(snapshot) = kept.filter(|_| page.more) {
                res.cache.keep(&snapshot, engine.clock.now(), engine.store.compacted());
            }
            page
        } else {
            Page { entries: reader.select(page.entries, &filter).await?, ..page }
        };
    }
    let metadata = list_meta(&query, revision, &page);
    if req.accept.encoding == Encoding::Protobuf {
        let body = encode::protobuf::list(view, &metadata, page.entries).await?;
        let content_type = encode::protobuf::CONTENT_TYPE;
        return Ok(ApiResponse { code: 200, content_type, warnings: vec![], annotations: vec![], body });
    }
    if req.accept.encoding == Encoding::Yaml {
        let body = encode::yaml_list(view, &metadata, page.entries)?;
        let content_type = "application/yaml";
        return Ok(ApiResponse { code: 200, content_type, warnings: vec![], annotations: vec![], body });
    }
    if view.separate() {
        let body = encode::separate_list(view, &metadata, page.entries)?;
        let content_type = encode::SEPARATE_OBJECTS;
        return Ok(ApiResponse { code: 200, content_type, warnings: vec![], annotations: vec![], body });
    }
    encode::finish(&req.accept, 200, encode::list_body(view, &metadata, page.entries)?)
}

/// Those of the objects that are wanted once they are converted.
async fn chosen(
    reader: &Reader,
    mut entries: Vec<SelectedEntry>,
    filter: &Filter,
    limit: usize,
) -> Result<Page, Status> {
    let mut page = Page::default();
    // A page needs no more conversions than it takes to fill it; where few are wanted, calls are what costs.
    let mut step = if limit == 0 { usize::MAX } else { 2 * limit + 16 };
    let most = step.max(conversion::BATCH);
    while !entries.is_empty() {
        let rest = entries.split_off(entries.len().min(step));
        step = step.saturating_mul(2).min(most);
        for entry in reader.select(entries, filter).await? {
            if limit > 0 && page.entries.len() == limit {
                page.more = true;
                return Ok(page);
            }
            page.entries.push(entry);
        }
        entries = rest;
    }
    Ok(page)
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

/// Takes what a query wants out of a state.
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
) -> Result<Page, StoreError> {
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
        if page.more {
            res.cache.keep(&snapshot, engine.clock.now(), compacted);
        }
        return Ok(page);
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
                return Ok(page);
            }
            page.entries.push(entry);
        }
        match last {
            Some(next) if result.more => range.start = next,
            _ => return Ok(page),
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
