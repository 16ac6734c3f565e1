//! What watches and lists must show, derived from the writes that were acknowledged.
//!
//! Invariants: a log holds every change of a resource in the order of revisions, and agrees with the acknowledgements;
//! whatever a watch or a list is compared with comes from it alone.

use std::collections::{BTreeMap, HashMap};

/// One version of an object, as far as every representation shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// `namespace/name`
    pub key: String,
    /// Its uid.
    pub uid: String,
    /// The resourceVersion that it is shown with.
    pub revision: u64,
    /// The write that made it, from a label.
    pub seq: u64,
}

/// One version of an object, with what selectors look at.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// What is shown.
    pub shown: Shown,
    /// The label `app`, if it has one.
    pub app: Option<String>,
    /// The selectable field.
    pub color: String,
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ADDED
    Added,
    /// MODIFIED
    Modified,
    /// DELETED
    Deleted,
}

/// An event.
pub type Told = (Kind, Shown);

/// A label selector.
#[derive(Clone, Copy, Debug)]
pub enum Labels {
    /// None.
    All,
    /// `app=web`
    Web,
    /// `app!=web`
    NotWeb,
    /// `app in (web,db)`
    Either,
    /// `!app`
    Without,
}

/// What a request selects.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its namespace; empty for all.
    pub namespace: String,
    /// A namespace asked for by a field selector.
    pub selected_namespace: Option<String>,
    /// A name asked for by a field selector.
    pub name: Option<String>,
    /// Labels.
    pub labels: Labels,
    /// The selectable field.
    pub color: Option<&'static str>,
}

impl Scope {
    /// Whether it selects a version.
    pub fn selects(&self, v: &Version) -> bool {
        let (namespace, name) = v.shown.key.split_once('/').unwrap_or(("", &v.shown.key));
        let app = v.app.as_deref();
        let labels = match self.labels {
            Labels::All => true,
            Labels::Web => app == Some("web"),
            Labels::NotWeb => app != Some("web"),
            Labels::Either => matches!(app, Some("web" | "db")),
            Labels::Without => app.is_none(),
        };
        let within = |wanted: &str| wanted.is_empty() || wanted == namespace;
        labels
            && within(&self.namespace)
            && within(self.selected_namespace.as_deref().unwrap_or(""))
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
            && self.color.is_none_or(|wanted| wanted == v.color)
    }

    /// Its part of a query, with the field's path.
    pub fn query(&self, field: &str) -> String {
        let labels = match self.labels {
            Labels::All => "",
            Labels::Web => "&labelSelector=app%3Dweb",
            Labels::NotWeb => "&labelSelector=app%21%3Dweb",
            Labels::Either => "&labelSelector=app%20in%20%28web%2Cdb%29",
            Labels::Without => "&labelSelector=%21app",
        };
        let fields = [
            self.selected_namespace.as_ref().map(|n| format!("metadata.namespace%3D{n}")),
            self.name.as_ref().map(|n| format!("metadata.name%3D{n}")),
            self.color.map(|c| format!("{field}%3D{c}")),
        ];
        let fields: Vec<String> = fields.into_iter().flatten().collect();
        let fields =
            if fields.is_empty() { String::new() } else { format!("&fieldSelector={}", fields.join("%2C")) };
        format!("{labels}{fields}")
    }
}

/// A change of an object.
#[derive(Debug)]
pub struct Change {
    /// Its revision.
    pub revision: u64,
    /// The state after it; of a deletion the last one, with the revision of the deletion.
    pub new: Version,
    /// Whether it is a deletion.
    pub deleted: bool,
    /// The state before it.
    pub old: Option<Version>,
}

/// The changes of one resource.
#[derive(Debug, Default)]
pub struct Log {
    /// The objects that there were at the beginning.
    pub first: BTreeMap<String, Version>,
    /// The objects that there are.
    pub now: BTreeMap<String, Version>,
    /// In order.
    pub changes: Vec<Change>,
    /// The beginning, or the last change.
    pub revision: u64,
}

impl Log {
    /// Adds what a watch of everything received.
    pub fn push(&mut self, kind: Kind, new: Version) -> Result<(), String> {
        let at = new.shown.revision;
        let old = self.now.get(&new.shown.key).cloned();
        let fits = match (kind, &old) {
            (Kind::Added, None) => true,
            (Kind::Modified, Some(old)) => old.shown.uid == new.shown.uid,
            (Kind::Deleted, Some(old)) => (&old.shown.uid, old.shown.seq) == (&new.shown.uid, new.shown.seq),
            _ => false,
        };
        if !fits || at <= self.revision {
            return Err(format!("{kind:?} {new:?} after {old:?}, at {}", self.revision));
        }
        if kind == Kind::Deleted {
            self.now.remove(&new.shown.key);
        } else {
            self.now.insert(new.shown.key.clone(), new.clone());
        }
        self.revision = at;
        self.changes.push(Change { revision: at, new, deleted: kind == Kind::Deleted, old });
        Ok(())
    }

    /// What a watch after a revision receives.
    pub fn told(&self, scope: &Scope, after: u64) -> Vec<Told> {
        let from = self.changes.partition_point(|c| c.revision <= after);
        let told = self.changes.iter().skip(from).filter_map(|change| {
            let old = change.old.as_ref().filter(|old| scope.selects(old));
            let new = Some(&change.new).filter(|new| !change.deleted && scope.selects(new));
            let shown = |v: &Version| Shown { revision: change.revision, ..v.shown.clone() };
            match (old, new) {
                (None, Some(new)) => Some((Kind::Added, shown(new))),
                (Some(_), Some(new)) => Some((Kind::Modified, shown(new))),
                (Some(old), None) => Some((Kind::Deleted, shown(old))),
                (None, None) => None,
            }
        });
        told.collect()
    }

    /// What a list at a revision shows, in the order of keys.
    pub fn listed(&self, scope: &Scope, at: u64) -> Vec<Shown> {
        let mut state: BTreeMap<&str, &Version> = self.first.iter().map(|(k, v)| (k.as_str(), v)).collect();
        for change in self.changes.iter().take_while(|c| c.revision <= at) {
            if change.deleted {
                state.remove(change.new.shown.key.as_str());
            } else {
                state.insert(&change.new.shown.key, &change.new);
            }
        }
        state.into_values().filter(|v| scope.selects(v)).map(|v| v.shown.clone()).collect()
    }

    /// Compares it with what was acknowledged about objects in `namespaces`.
    pub fn agrees(&self, acknowledged: &Acknowledged, namespaces: &[&str]) -> Result<(), String> {
        let ours = |key: &str| key.split_once('/').is_some_and(|(ns, _)| namespaces.contains(&ns));
        let changes: Vec<&Change> = self.changes.iter().filter(|c| ours(&c.new.shown.key)).collect();
        let mut puts: HashMap<u64, &Shown> = acknowledged.puts.iter().map(|p| (p.revision, p)).collect();
        let mut deleted: HashMap<&str, u64> =
            acknowledged.deleted.iter().map(|(uid, after)| (uid.as_str(), *after)).collect();
        for change in changes {
            let shown = &change.new.shown;
            let known = if change.deleted {
                deleted.remove(shown.uid.as_str()).is_some_and(|after| after < shown.revision)
            } else {
                puts.remove(&shown.revision).is_some_and(|put| put == shown)
            };
            if !known {
                return Err(format!("a change that was not asked for, or not so: {change:?}"));
            }
        }
        if puts.is_empty() && deleted.is_empty() {
            return Ok(());
        }
        Err(format!("acknowledged writes that no watch was told of: {puts:?}, deletions {deleted:?}"))
    }
}

/// Writes that happened.
#[derive(Debug, Default)]
pub struct Acknowledged {
    /// Objects created and changed.
    pub puts: Vec<Shown>,
    /// Uids of deleted objects, with the revision that each had last.
    pub deleted: Vec<(String, u64)>,
}

/// What one watch received.
#[derive(Debug)]
pub struct Segment {
    /// The request, for messages.
    pub request: String,
    /// What it selects.
    pub scope: Scope,
    /// The revision that it began after.
    pub after: u64,
    /// Events.
    pub told: Vec<Told>,
    /// Bookmarks, each with the number of events before it.
    pub bookmarks: Vec<(usize, u64)>,
}

impl Segment {
    /// The revision to go on after.
    pub fn end(&self) -> u64 {
        let told = self.told.last().map_or(0, |(_, shown)| shown.revision);
        self.after.max(told).max(self.bookmarks.last().map_or(0, |(_, revision)| *revision))
    }

    /// Compares it with a complete log. That a watch received everything up to its end cannot be seen here, if it was
    /// ended early.
    pub fn check(&self, log: &Log) -> Result<(), String> {
        let expected = log.told(&self.scope, self.after);
        for (i, told) in self.told.iter().enumerate() {
            if expected.get(i) != Some(told) {
                let around = expected.iter().skip(i.saturating_sub(1)).take(3).collect::<Vec<_>>();
                let request = &self.request;
                return Err(format!(
                    "{request}: event {i} is {told:?}, expected one before and on: {around:?}"
                ));
            }
        }
        for (position, revision) in &self.bookmarks {
            let owed = expected.iter().skip(*position).find(|(_, shown)| shown.revision <= *revision);
            let before = position.checked_sub(1).and_then(|i| expected.get(i));
            let behind = before.filter(|(_, shown)| shown.revision > *revision);
            if owed.is_some() || behind.is_some() || *revision < self.after {
                let request = &self.request;
                return Err(format!(
                    "{request}: a bookmark of {revision} after {position} events, {owed:?} still to come, after {behind:?}"
                ));
            }
        }
        Ok(())
    }
}

/// What one list showed.
#[derive(Debug)]
pub struct List {
    /// The request, for messages.
    pub request: String,
    /// What it selects.
    pub scope: Scope,
    /// Its resourceVersion.
    pub revision: u64,
    /// It must be as new as this.
    pub least: u64,
    /// Its items.
    pub items: Vec<Shown>,
}

impl List {
    /// Compares it with a complete log.
    pub fn check(&self, log: &Log) -> Result<(), String> {
        let expected = log.listed(&self.scope, self.revision);
        if self.items == expected && self.revision >= self.least {
            return Ok(());
        }
        let odd: Vec<&Shown> = self.items.iter().filter(|i| !expected.contains(i)).collect();
        let missing: Vec<&Shown> = expected.iter().filter(|e| !self.items.contains(e)).collect();
        let List { request, revision, least, .. } = self;
        Err(format!("{request}: a list at {revision} (at least {least}) shows {odd:?} and lacks {missing:?}"))
    }
}

/// The checker notices what it is there for.
#[test]
fn finds_foreign_missing_repeated_and_wrong_events() {
    let version = |key: &str, revision: u64, app: &str| Version {
        shown: Shown { key: key.into(), uid: key.into(), revision, seq: revision },
        app: Some(app.into()),
        color: String::new(),
    };
    let mut log = Log::default();
    for (kind, v) in [
        (Kind::Added, version("team/a", 2, "web")),
        (Kind::Added, version("other/b", 3, "web")),
        (Kind::Modified, version("team/a", 4, "db")),
        (Kind::Modified, version("team/a", 5, "web")),
    ] {
        log.push(kind, v).unwrap();
    }
    assert!(log.push(Kind::Added, version("team/a", 6, "web")).is_err(), "it is there already");
    let scope = Scope {
        namespace: "team".into(),
        selected_namespace: None,
        name: None,
        labels: Labels::Web,
        color: None,
    };
    let segment = |told: Vec<Told>, bookmarks: Vec<(usize, u64)>| {
        Segment { request: String::new(), scope: scope.clone(), after: 1, told, bookmarks }
            .check(&log)
            .is_ok()
    };
    let right = log.told(&scope, 1);
    let kinds: Vec<(Kind, u64, u64)> = right.iter().map(|(k, s)| (*k, s.revision, s.seq)).collect();
    // It leaves with the state that was selected, at the revision of the change.
    assert_eq!(kinds, [(Kind::Added, 2, 2), (Kind::Deleted, 4, 2), (Kind::Added, 5, 5)]);
    assert!(segment(right.clone(), vec![(1, 3), (3, 9)]));
    assert!(segment(right[..2].to_vec(), vec![]), "it may end early");
    let foreign = (Kind::Added, version("other/b", 3, "web").shown);
    assert!(!segment(vec![right[0].clone(), foreign, right[1].clone()], vec![]), "foreign");
    assert!(!segment(vec![right[0].clone(), right[2].clone()], vec![]), "missing");
    assert!(!segment(vec![right[0].clone(), right[0].clone()], vec![]), "repeated");
    assert!(!segment(vec![(Kind::Modified, right[0].1.clone())], vec![]), "another kind");
    assert!(!segment(right[..1].to_vec(), vec![(1, 4)]), "a bookmark ahead");
    assert!(!segment(right.clone(), vec![(3, 4)]), "a bookmark behind");

    let list = |revision: u64, items: Vec<Shown>| {
        List { request: String::new(), scope: scope.clone(), revision, least: 2, items }.check(&log).is_ok()
    };
    assert!(list(3, vec![right[0].1.clone()]) && list(4, vec![]) && !list(4, vec![right[0].1.clone()]));
    assert!(!list(1, vec![]), "older than asked for");

    let acknowledged = |puts: &[u64]| Acknowledged {
        puts: log
            .changes
            .iter()
            .map(|c| c.new.shown.clone())
            .filter(|s| puts.contains(&s.revision))
            .collect(),
        deleted: vec![],
    };
    assert_eq!(log.agrees(&acknowledged(&[2, 3, 4, 5]), &["team", "other"]), Ok(()));
    assert!(log.agrees(&acknowledged(&[2, 3, 4]), &["team", "other"]).is_err(), "never asked for");
    let mut more = acknowledged(&[2, 3, 4, 5]);
    more.deleted.push(("team/a".into(), 5));
    assert!(log.agrees(&more, &["team", "other"]).is_err(), "never told");
}
