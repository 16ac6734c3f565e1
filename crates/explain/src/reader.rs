//! Reads objects, each path once, and keeps what was refused.
//!
//! Invariant: a list is complete, or it is reported as refused.

use crate::{Api, RequestError};
use kaji_meta::object;
use kaji_runtime::client::escape;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::OnceCell;

/// Objects in an answer to a list, and how many answers are followed: a list of more is reported as too long.
const PAGE: usize = 2_000;
const PAGES: usize = 50;
/// Lists that are asked for at a time.
const CONCURRENT: usize = 16;

/// The outcome of reading one object.
#[derive(Clone, Debug)]
pub enum Found {
    /// The object.
    Object(Arc<Value>),
    /// There is none.
    Absent,
    /// The caller may not read it, or the server did not answer.
    Unreadable,
}

impl Found {
    /// The object, if it is there and could be read.
    pub fn object(&self) -> Option<&Value> {
        match self {
            Found::Object(object) => Some(object),
            Found::Absent | Found::Unreadable => None,
        }
    }

    /// Whether it is certain that there is none.
    pub fn is_absent(&self) -> bool {
        matches!(self, Found::Absent)
    }
}

/// A collection; `None` when it cannot be read.
pub type List = Option<Arc<Vec<Value>>>;

/// Reads for one explanation.
pub struct Reader<'a> {
    api: &'a dyn Api,
    objects: Mutex<HashMap<String, Arc<OnceCell<Found>>>>,
    lists: Mutex<HashMap<String, Arc<OnceCell<List>>>>,
    refused: Mutex<BTreeSet<String>>,
}

/// The cell of a path.
fn cell<T>(cells: &Mutex<HashMap<String, Arc<OnceCell<T>>>>, path: &str) -> Arc<OnceCell<T>> {
    let mut cells = cells.lock().unwrap_or_else(PoisonError::into_inner);
    cells.entry(path.to_owned()).or_default().clone()
}

impl<'a> Reader<'a> {
    /// With nothing read.
    pub fn new(api: &'a dyn Api) -> Self {
        Reader { api, objects: Mutex::default(), lists: Mutex::default(), refused: Mutex::default() }
    }

    /// The server, for reads that are no objects.
    pub fn api(&self) -> &'a dyn Api {
        self.api
    }

    /// What could not be read, in the server's words.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Keeps what could not be read otherwise than by this.
    pub fn refuse(&self, message: String) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(message);
    }

    /// One object by its path.
    pub async fn get(&self, path: &str) -> Found {
        let cell = cell(&self.objects, path);
        let read = cell.get_or_init(|| async {
            match self.api.get(path).await {
                Ok(object) => Found::Object(Arc::new(object)),
                Err(RequestError::NotFound(_)) => Found::Absent,
                Err(RequestError::Forbidden(message) | RequestError::Failed(message)) => {
                    self.refuse(message);
                    Found::Unreadable
                }
            }
        });
        read.await.clone()
    }

    /// All objects of a collection; `None` when they cannot be read. A collection that is not served is empty.
    pub async fn list(&self, path: &str) -> List {
        let cell = cell(&self.lists, path);
        cell.get_or_init(|| self.pages(path)).await.clone()
    }

    /// Several collections, in order, a few at a time.
    pub async fn lists(&self, paths: &[String]) -> Vec<List> {
        let mut lists = vec![];
        for some in paths.chunks(CONCURRENT) {
            let mut requests = vec![];
            for path in some {
                requests.push(self.list(path));
            }
            lists.extend(futures_util::future::join_all(requests).await);
        }
        lists
    }

    async fn pages(&self, path: &str) -> List {
        let mut objects = vec![];
        let (mut next, mut separator) = (String::new(), '?');
        if path.contains('?') {
            separator = '&';
        }
        for _ in 0..PAGES {
            let page = format!("{path}{separator}limit={PAGE}{next}");
            match self.api.get(&page).await {
                Ok(mut list) => {
                    let of = (object::api_version(&list).to_owned(), object::kind(&list).to_owned());
                    if let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) {
                        objects.extend(items.into_iter().map(|item| typed(item, &of)));
                    }
                    match object::str_at(&list, &["metadata", "continue"]) {
                        "" => return Some(Arc::new(objects)),
                        token => next = format!("&continue={}", escape(token)),
                    }
                }
                Err(RequestError::NotFound(_)) => return Some(Arc::new(objects)),
                Err(RequestError::Forbidden(message) | RequestError::Failed(message)) => {
                    self.refuse(message);
                    return None;
                }
            }
        }
        self.refuse(format!("{path} has more than {} objects", PAGE * PAGES));
        None
    }

    /// The last lines of a container's log, or none.
    pub async fn text(&self, path: &str, limit: usize) -> String {
        match self.api.text(path, limit).await {
            Ok(text) => text,
            Err(RequestError::Forbidden(message)) => {
                self.refuse(message);
                String::new()
            }
            // A log that was removed, or a node that does not answer, is no news.
            Err(RequestError::NotFound(_) | RequestError::Failed(_)) => String::new(),
        }
    }
}

/// Objects in lists have no kind of their own.
fn typed(mut item: Value, (api_version, kind): &(String, String)) -> Value {
    if let (Value::Object(map), Some(kind)) = (&mut item, kind.strip_suffix("List")) {
        map.entry("apiVersion").or_insert_with(|| api_version.as_str().into());
        map.entry("kind").or_insert_with(|| kind.into());
    }
    item
}
