//! Readers of one round: they list and watch at random.
//!
//! Invariant: everything that a reader was shown is kept, and compared with the log once that is complete.

use super::{
    actors::{COLORS, NAMES, NAMESPACES, RESOURCES, Resource, Round, below, later, one_in, pause, pick},
    model::{Kind, Labels, List, Scope, Segment},
    wire::{self, Event, Failure, Form, Page, Watch},
};
use kaji_meta::{Random, SeededRandom};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::watch;

fn scope(random: &SeededRandom, resource: &Resource) -> Scope {
    let namespace = if one_in(random, 3) { "" } else { pick(random, &NAMESPACES) };
    Scope {
        namespace: namespace.into(),
        selected_namespace: one_in(random, 6).then(|| pick(random, &NAMESPACES).into()),
        name: one_in(random, 4).then(|| pick(random, &NAMES).into()),
        labels: match random.u64() % 10 {
            0 => Labels::Web,
            1 => Labels::NotWeb,
            2 => Labels::Either,
            3 => Labels::Without,
            _ => Labels::All,
        },
        color: (resource.selectable && one_in(random, 3)).then(|| pick(random, &COLORS)),
    }
}

/// Lists and watches at random until the round is complete.
pub async fn read(round: Arc<Round>, seed: u64) {
    let random = SeededRandom::new(seed);
    let mut complete = round.complete.subscribe();
    while !*complete.borrow_and_update() {
        let r = below(&random, RESOURCES.len());
        let resource = &RESOURCES[r];
        let reader = Reader {
            round: &round,
            random: &random,
            r,
            root: pick(&random, resource.roots),
            form: resource.forms[below(&random, resource.forms.len())],
            scope: scope(&random, resource),
        };
        if one_in(&random, 3) {
            reader.list().await;
        } else {
            reader.watch(&mut complete).await;
        }
    }
}

struct Reader<'a> {
    round: &'a Round,
    random: &'a SeededRandom,
    r: usize,
    root: &'static str,
    form: Form,
    scope: Scope,
}

impl Reader<'_> {
    fn resource(&self) -> &'static Resource {
        &RESOURCES[self.r]
    }

    fn path(&self, query: &str) -> String {
        let resource = self.resource();
        let selectors = self.scope.query(resource.field);
        format!("{}?{query}{selectors}", resource.path(self.root, &self.scope.namespace))
    }

    /// A revision since the beginning of the round.
    fn former(&self) -> u64 {
        let (base, latest) = (self.round.base, self.round.latest());
        base + self.random.u64() % (latest - base + 1)
    }

    /// Whether an answer says that a revision is gone, and it may be.
    fn expired(&self, code: u64, revision: u64) -> bool {
        code == 410 && revision < self.round.compacted.load(Ordering::SeqCst)
    }

    /// A list, perhaps in parts; its revision.
    async fn list(&self) -> Option<u64> {
        let (mut least, former) = (self.round.latest(), self.former());
        let mut query = match self.random.u64() % 4 {
            0 => "resourceVersion=0".to_owned(),
            1 => format!("resourceVersion={former}&resourceVersionMatch=NotOlderThan"),
            2 => format!("resourceVersion={former}&resourceVersionMatch=Exact"),
            _ => String::new(),
        };
        if query.contains("Version=") {
            least = if query.contains('M') { former } else { 0 };
        }
        let limit = 1 + self.random.u64() % 7;
        if one_in(self.random, 2) {
            query.push_str(&format!("&limit={limit}"));
        }
        let request = format!("LIST {} {:?}", self.path(&query), self.form);
        let mut all: Option<Page> = None;
        loop {
            let page = match wire::list(&self.round.client, &self.path(&query), self.form, "").await {
                Ok(page) => page,
                Err(Failure::Refused(410, _))
                    if self.expired(410, all.as_ref().map_or(former, |p| p.revision)) =>
                {
                    return None;
                }
                Err(Failure::Refused(code, text)) if !later(code) => {
                    self.round.violated(format!("{request}: {code} {text}"));
                    return None;
                }
                Err(_) => {
                    pause().await;
                    return None;
                }
            };
            let whole = all.get_or_insert_with(|| Page { revision: page.revision, ..Page::default() });
            if whole.revision != page.revision {
                self.round.violated(format!("{request}: parts at {} and {}", whole.revision, page.revision));
            }
            whole.items.extend(page.items);
            if page.token.is_empty() {
                break;
            }
            query = format!("limit={limit}&continue={}", page.token);
        }
        let page = all?;
        let items = page.items.into_iter().map(|v| v.shown).collect();
        let list = List { request, scope: self.scope.clone(), revision: page.revision, least, items };
        self.round.lists[self.r].lock().unwrap().push(list);
        Some(page.revision)
    }

    /// A watch, with a few others that go on where it ended.
    async fn watch(&self, complete: &mut watch::Receiver<bool>) {
        let mut after = match self.random.u64() % 5 {
            0 => None,
            1 => match self.list().await {
                Some(revision) => Some(revision),
                None => return,
            },
            2 => Some(self.round.latest()),
            _ => Some(self.former()),
        };
        for _ in 0..1 + self.random.u64() % 3 {
            let Some(segment) = self.segment(after, complete).await else { return };
            after = Some(segment.end());
            self.round.segments[self.r].lock().unwrap().push(segment);
            if *complete.borrow() {
                return;
            }
        }
    }

    /// One watch; without a revision it begins with the objects that there are.
    async fn segment(&self, after: Option<u64>, complete: &mut watch::Receiver<bool>) -> Option<Segment> {
        let query = match after {
            Some(after) => format!("resourceVersion={after}"),
            None => "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
        };
        let bookmarks = after.is_none() || one_in(self.random, 2);
        let marks = if bookmarks { "&allowWatchBookmarks=true" } else { "" };
        let timeout = if one_in(self.random, 3) { "&timeoutSeconds=1" } else { "" };
        let mut path = self.path(&format!("{query}{marks}{timeout}"));
        if self.root == "/api/v1" && one_in(self.random, 3) {
            path = path.replacen("/api/v1", "/api/v1/watch", 1);
        } else {
            path.push_str("&watch=true");
        }
        let request = format!("WATCH {path} {:?}", self.form);
        let mut watch = match Watch::open(&self.round.client, &path, self.form, "").await {
            Ok(watch) => watch,
            Err(Failure::Refused(code, text)) if !later(code) => {
                self.round.violated(format!("{request}: {code} {text}"));
                return None;
            }
            Err(_) => {
                pause().await;
                return None;
            }
        };
        let mut segment = Segment {
            request,
            scope: self.scope.clone(),
            after: after.unwrap_or_default(),
            told: vec![],
            bookmarks: vec![],
        };
        if after.is_none() {
            segment.after = self.initial(&mut watch, &segment.request).await?;
        }
        self.follow(&mut watch, &mut segment, complete).await;
        Some(segment)
    }

    /// Reads the initial events, which are a list; its revision.
    async fn initial(&self, watch: &mut Watch, request: &str) -> Option<u64> {
        let mut items = vec![];
        loop {
            match watch.next().await? {
                Event::Told(Kind::Added, v) => items.push(v.shown),
                Event::Bookmark(revision, true) => {
                    let list = List {
                        request: request.into(),
                        scope: self.scope.clone(),
                        revision,
                        least: 0,
                        items,
                    };
                    self.round.lists[self.r].lock().unwrap().push(list);
                    return Some(revision);
                }
                other => {
                    self.round.violated(format!("{request}: {other:?} among the initial events"));
                    return None;
                }
            }
        }
    }

    /// Reads at some pace until something ends it. Once the logs are complete, the rest must come.
    async fn follow(&self, watch: &mut Watch, segment: &mut Segment, complete: &mut watch::Receiver<bool>) {
        let most = if one_in(self.random, 4) { usize::MAX } else { below(self.random, 200) };
        let slow = one_in(self.random, 3);
        let mut owed = None;
        while segment.told.len() < owed.unwrap_or(most) {
            if owed.is_none() && *complete.borrow() {
                let log = self.round.logs[self.r].lock().unwrap();
                owed = Some(log.told(&segment.scope, segment.after).len());
                continue;
            }
            if slow && owed.is_none() && one_in(self.random, 64) {
                self.lag(complete).await;
            }
            let next = tokio::time::timeout(Duration::from_secs(30), watch.next());
            let event = tokio::select! {
                event = next => event,
                _ = complete.changed(), if owed.is_none() => continue,
            };
            match event {
                Ok(Some(Event::Told(kind, v))) => segment.told.push((kind, v.shown)),
                Ok(Some(Event::Bookmark(revision, _))) => {
                    segment.bookmarks.push((segment.told.len(), revision))
                }
                Ok(Some(Event::Error(code, text))) => {
                    if !self.expired(code, segment.end()) {
                        self.round.violated(format!("{}: {code} {text}", segment.request));
                    }
                    return;
                }
                Ok(None) => return,
                Err(_) if owed.is_none() => {}
                Err(_) => {
                    let (request, told) = (&segment.request, segment.told.len());
                    return self.round.violated(format!("{request}: {told} events came of {owed:?}"));
                }
            }
        }
    }

    /// Reads nothing until much more has been written.
    async fn lag(&self, complete: &watch::Receiver<bool>) {
        let until = self.round.latest() + self.random.u64() % 2000;
        for _ in 0..100 {
            if self.round.latest() >= until || *complete.borrow() {
                return;
            }
            pause().await;
        }
    }
}
