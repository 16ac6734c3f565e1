//! Which objects of a list a client gets: a filter applied to objects as they are stored, to converted ones, or to both.
//!
//! Invariant: labels and fields are those of the requested version. Objects that a webhook converts are therefore selected by
//! namespace and name first, and by labels and fields once they are converted.

use super::webhook::{BATCH, Reader};
use crate::{
    cache::{Filter, SelectedEntry},
    registry::Resource,
};
use kaji_meta::Status;
use std::sync::Arc;

/// A part of a list.
#[derive(Default)]
pub(crate) struct Page {
    pub entries: Vec<SelectedEntry>,
    /// Whether more objects match after these.
    pub more: bool,
    /// How many objects come after these, where that is known.
    pub remaining: Option<usize>,
}

/// How the objects of a list are selected.
pub(crate) struct Selection {
    /// Of objects as they are stored.
    stored: Filter,
    /// Of objects that a webhook has converted.
    converted: Option<(Reader, Filter)>,
    /// Objects in a page; 0 for all.
    limit: usize,
}

impl Selection {
    /// What a filter of a version selects, a page of at most `limit` (0 for all).
    pub fn new(res: &Arc<Resource>, version: &str, filter: Filter, limit: usize) -> Selection {
        match Reader::of(res, version) {
            Some(reader) => Selection { stored: filter.place(), converted: Some((reader, filter)), limit },
            None => Selection { stored: filter, converted: None, limit },
        }
    }

    /// The filter of objects as they are stored.
    pub fn stored(&self) -> &Filter {
        &self.stored
    }

    /// How many stored objects are to be collected for a page; 0 for all.
    pub fn stored_limit(&self) -> usize {
        if self.decides_converted() { 0 } else { self.limit }
    }

    /// Whether it is not known before an object is converted that it is selected.
    fn decides_converted(&self) -> bool {
        self.converted.as_ref().is_some_and(|(_, filter)| filter.looks_inside())
    }

    /// The page of stored objects as the client gets it.
    ///
    /// # Errors
    /// A webhook refuses any of them.
    pub async fn page(&self, page: Page) -> Result<Page, Status> {
        let Some((reader, filter)) = &self.converted else { return Ok(page) };
        if !self.decides_converted() {
            return Ok(Page { entries: reader.select(page.entries, filter).await?, ..page });
        }
        let (mut stored, limit) = (page.entries, self.limit);
        let mut page = Page::default();
        // A page needs no more conversions than it takes to fill it; where few are wanted, calls are what costs.
        let mut step = if limit == 0 { usize::MAX } else { 2 * limit + 16 };
        let most = step.max(BATCH);
        while !stored.is_empty() {
            let rest = stored.split_off(stored.len().min(step));
            step = step.saturating_mul(2).min(most);
            for entry in reader.select(stored, filter).await? {
                if limit > 0 && page.entries.len() == limit {
                    page.more = true;
                    return Ok(page);
                }
                page.entries.push(entry);
            }
            stored = rest;
        }
        Ok(page)
    }
}
