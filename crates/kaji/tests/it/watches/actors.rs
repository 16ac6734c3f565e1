//! Writers and the recorder of one round.
//!
//! Invariants: each object has one writer, which settles what became of a write that was not answered before it goes on; the
//! recorder's log has every change once.

use super::{
    model::{Acknowledged, List, Log, Segment, Shown, Version},
    wire::{self, Event, Failure, Form, Page, Watch},
};
use kaji_meta::{Random, SeededRandom};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Namespaces with names that begin or end alike.
pub const NAMESPACES: [&str; 5] = ["team", "team2", "tea", "a-team", "other"];
/// Names of the objects.
pub const NAMES: [&str; 5] = ["n", "n1", "n10", "team", "x.n1"];
/// Values of the selectable field.
pub const COLORS: [&str; 3] = ["red", "blue", "green"];

/// A kind of objects.
#[derive(Debug)]
pub struct Resource {
    /// `/api/v1` or the like, for each version.
    pub roots: &'static [&'static str],
    /// The plural.
    pub plural: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The path of the field `color`.
    pub field: &'static str,
    /// Whether selectors may use it.
    pub selectable: bool,
    /// The representations that it has.
    pub forms: &'static [Form],
}

/// What is written and read.
pub const RESOURCES: [Resource; 3] = [
    Resource {
        roots: &["/api/v1"],
        plural: "configmaps",
        kind: "ConfigMap",
        field: "data.color",
        selectable: false,
        forms: &Form::ALL,
    },
    Resource {
        roots: &["/api/v1"],
        plural: "events",
        kind: "Event",
        field: "reason",
        selectable: true,
        forms: &Form::ALL,
    },
    Resource {
        roots: &["/apis/example.com/v1", "/apis/example.com/v2"],
        plural: "widgets",
        kind: "Widget",
        field: "spec.color",
        selectable: true,
        forms: &[Form::Json, Form::Table, Form::Partial],
    },
];

impl Resource {
    /// Of its collection.
    pub fn path(&self, root: &str, namespace: &str) -> String {
        let within = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
        format!("{root}{within}/{}", self.plural)
    }
}

/// One round, shared by all that take part.
pub struct Round {
    /// Sends requests.
    pub client: kube::Client,
    /// The latest acknowledged revision.
    pub latest: AtomicU64,
    /// Revisions below this may have been compacted.
    pub compacted: AtomicU64,
    /// The revision of the beginning.
    pub base: u64,
    /// By resource.
    pub logs: Vec<Mutex<Log>>,
    /// By resource, what was acknowledged.
    pub acknowledged: Vec<Mutex<Acknowledged>>,
    /// By resource.
    pub segments: Vec<Mutex<Vec<Segment>>>,
    /// By resource.
    pub lists: Vec<Mutex<Vec<List>>>,
    /// What went wrong.
    pub violations: Mutex<Vec<String>>,
    /// Set once the logs are complete.
    pub complete: watch::Sender<bool>,
}

impl Round {
    /// Notes what must not be.
    pub fn violated(&self, text: String) {
        self.violations.lock().unwrap().push(text);
    }

    fn acknowledge(&self, revision: u64) {
        self.latest.fetch_max(revision, Ordering::SeqCst);
    }

    /// How far it came, for the report of a round that does not end.
    pub fn progress(&self) -> String {
        let acknowledged = self.acknowledged.iter().map(|a| a.lock().unwrap());
        let writes: Vec<(usize, usize)> = acknowledged.map(|a| (a.puts.len(), a.deleted.len())).collect();
        let recorded: Vec<u64> = self.logs.iter().map(|log| log.lock().unwrap().revision).collect();
        let violations = self.violations.lock().unwrap();
        let some = &violations[..violations.len().min(5)];
        format!(
            ": {writes:?} writes and deletes acknowledged, the latest at {}; recorded up to {recorded:?}; {} findings {some:?}",
            self.latest(),
            violations.len()
        )
    }

    /// The latest acknowledged revision.
    pub fn latest(&self) -> u64 {
        self.latest.load(Ordering::SeqCst)
    }
}

/// A number below `n`.
pub fn below(random: &SeededRandom, n: usize) -> usize {
    usize::try_from(random.u64() % n as u64).unwrap_or(0)
}

/// True once in `n` times.
pub fn one_in(random: &SeededRandom, n: u64) -> bool {
    random.u64().is_multiple_of(n)
}

/// One of several.
pub fn pick<'a, T: ?Sized>(random: &SeededRandom, of: &[&'a T]) -> &'a T {
    of[below(random, of.len())]
}

/// Waits a moment for a server that is not there.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Whether a refusal says that a server is only starting or ending.
pub fn later(code: u16) -> bool {
    matches!(code, 429 | 503)
}

/// Writes objects that no other writer touches.
pub async fn write(round: Arc<Round>, seed: u64, share: usize, of: usize, writes: usize) {
    let random = SeededRandom::new(seed);
    let own: Vec<(usize, &str, &str)> = (0..RESOURCES.len())
        .flat_map(|r| NAMESPACES.iter().flat_map(move |ns| NAMES.iter().map(move |name| (r, *ns, *name))))
        .enumerate()
        .filter(|(i, _)| i % of == share)
        .map(|(_, object)| object)
        .collect();
    let mut states: BTreeMap<(usize, &str, &str), Shown> = BTreeMap::new();
    for (r, ns, name) in &own {
        let known = round.logs[*r].lock().unwrap().first.get(&format!("{ns}/{name}")).cloned();
        states.extend(known.map(|v| ((*r, *ns, *name), v.shown)));
    }
    for i in 0..writes {
        let object @ (r, ns, name) = own[below(&random, own.len())];
        let resource = &RESOURCES[r];
        let root = pick(&random, resource.roots);
        let seq = (share * 1_000_000_000 + i) as u64 + 1;
        let collection = resource.path(root, ns);
        let known = states.get(&object).cloned();
        let (method, path, body) = match &known {
            Some(_) if one_in(&random, 5) => match one_in(&random, 4) {
                true => ("DELETE", format!("{collection}?fieldSelector=metadata.name%3D{name}"), Value::Null),
                false => ("DELETE", format!("{collection}/{name}"), Value::Null),
            },
            Some(known) => (
                "PUT",
                format!("{collection}/{name}"),
                body(resource, root, ns, name, seq, &random, known.revision),
            ),
            None => ("POST", collection.clone(), body(resource, root, ns, name, seq, &random, 0)),
        };
        let outcome = carry_out(&round, method, &path, &body, &format!("{collection}/{name}"), seq).await;
        let acknowledged = &round.acknowledged[r];
        match outcome {
            Outcome::Now(shown) => {
                round.acknowledge(shown.revision);
                acknowledged.lock().unwrap().puts.push(shown.clone());
                states.insert(object, shown);
            }
            Outcome::Gone => {
                let last = known.unwrap_or_default();
                acknowledged.lock().unwrap().deleted.push((last.uid, last.revision));
                states.remove(&object);
            }
            Outcome::Nothing => {}
        }
    }
}

fn body(
    resource: &Resource,
    root: &str,
    ns: &str,
    name: &str,
    seq: u64,
    random: &SeededRandom,
    revision: u64,
) -> Value {
    let mut labels = json!({"seq": seq.to_string()});
    match random.u64() % 5 {
        0 | 1 => labels["app"] = "web".into(),
        2 => labels["app"] = "db".into(),
        3 => labels["app"] = "mail".into(),
        _ => {}
    }
    let api_version = root.trim_start_matches("/api/").trim_start_matches("/apis/");
    let mut object = json!({"apiVersion": api_version, "kind": resource.kind,
        "metadata": {"name": name, "namespace": ns, "labels": labels}});
    if revision > 0 {
        object["metadata"]["resourceVersion"] = revision.to_string().into();
    }
    let color = COLORS[below(random, COLORS.len())];
    // Long ones fill the buffers of connections, so that readers fall behind.
    let pad = "x".repeat(if one_in(random, 4) { 20_000 } else { 10 });
    match resource.plural {
        "events" => {
            object["reason"] = color.into();
            object["message"] = pad[..pad.len().min(1000)].into();
            object["involvedObject"] = json!({"kind": "Pod", "namespace": ns, "name": "p"});
        }
        "widgets" => object["spec"] = json!({"color": color, "pad": pad}),
        _ => object["data"] = json!({"color": color, "pad": pad}),
    }
    object
}

enum Outcome {
    Now(Shown),
    Gone,
    Nothing,
}

/// Sends a write until it is known what became of it.
async fn carry_out(round: &Round, method: &str, path: &str, body: &Value, object: &str, seq: u64) -> Outcome {
    loop {
        match wire::send(&round.client, method, path, body).await {
            Ok(_) if method == "DELETE" => return Outcome::Gone,
            Ok(answer) => return Outcome::Now(wire::version(&answer, "").shown),
            Err(Failure::Refused(code, _)) if later(code) => pause().await,
            Err(Failure::Refused(code, text)) => {
                round.violated(format!("{method} {path}: {code} {text}"));
                return Outcome::Nothing;
            }
            Err(Failure::Broken) => return settle(round, method, object, seq).await,
        }
    }
}

/// Finds out whether a write happened that was not answered.
async fn settle(round: &Round, method: &str, object: &str, seq: u64) -> Outcome {
    loop {
        match wire::send(&round.client, "GET", object, &Value::Null).await {
            Ok(answer) => {
                let found = wire::version(&answer, "").shown;
                return if found.seq == seq { Outcome::Now(found) } else { Outcome::Nothing };
            }
            Err(Failure::Refused(404, _)) if method == "DELETE" => return Outcome::Gone,
            Err(Failure::Refused(404, _)) => return Outcome::Nothing,
            Err(Failure::Refused(code, text)) if !later(code) => {
                round.violated(format!("GET {object}: {code} {text}"));
                return Outcome::Nothing;
            }
            Err(_) => pause().await,
        }
    }
}

/// Writes an object of each resource, after which no other is written; the last one's revision.
pub async fn fence(round: &Round) -> Vec<u64> {
    let mut revisions = vec![];
    for (r, resource) in RESOURCES.iter().enumerate() {
        let random = SeededRandom::new(0);
        let (root, ns) = (resource.roots[0], "other");
        let name = format!("fence-{}", round.base);
        let collection = resource.path(root, ns);
        let body = body(resource, root, ns, &name, 7, &random, 0);
        let object = format!("{collection}/{name}");
        // A write may still happen after its response was lost and the object was read: then the next is refused with 409.
        let mut outcome = carry_out(round, "POST", &collection, &body, &object, 7).await;
        for _ in 0..100 {
            if matches!(outcome, Outcome::Now(_)) {
                break;
            }
            pause().await;
            outcome = settle(round, "POST", &object, 7).await;
            if matches!(outcome, Outcome::Nothing) {
                outcome = carry_out(round, "POST", &collection, &body, &object, 7).await;
            }
        }
        let Outcome::Now(shown) = outcome else {
            panic!("{object} could not be created{}", round.progress())
        };
        revisions.push(shown.revision);
        round.acknowledged[r].lock().unwrap().puts.push(shown);
    }
    revisions
}

/// A list of everything of a resource.
pub async fn everything(client: &kube::Client, resource: &Resource) -> Page {
    loop {
        let path = resource.path(resource.roots[0], "");
        match wire::list(client, &path, Form::Json, resource.field).await {
            Ok(page) => return page,
            Err(_) => pause().await,
        }
    }
}

/// Keeps a resource's log by a watch of everything, until it has everything up to the end, which `ended` tells.
pub async fn record(round: Arc<Round>, r: usize, mut ended: watch::Receiver<Option<Vec<u64>>>) {
    let resource = &RESOURCES[r];
    loop {
        let from = round.logs[r].lock().unwrap().revision;
        let path = format!("{}?watch=1&resourceVersion={from}", resource.path(resource.roots[0], ""));
        let Ok(mut watch) = Watch::open(&round.client, &path, Form::Json, resource.field).await else {
            pause().await;
            continue;
        };
        loop {
            let end = ended.borrow().as_ref().map(|ends| ends[r]);
            let done = end.is_some_and(|end| round.logs[r].lock().unwrap().revision >= end);
            if done {
                return;
            }
            let event = tokio::select! {
                event = watch.next() => event,
                _ = ended.changed() => continue,
            };
            match event {
                Some(Event::Told(kind, version)) => {
                    let pushed = round.logs[r].lock().unwrap().push(kind, version);
                    if let Err(text) = pushed {
                        return round.violated(format!("the recorder of {}: {text}", resource.plural));
                    }
                }
                Some(Event::Bookmark(..)) => {}
                Some(Event::Error(code, text)) if code != 410 && code != 0 => {
                    return round.violated(format!("the recorder of {}: {code} {text}", resource.plural));
                }
                Some(Event::Error(code, text)) => {
                    return round.violated(format!(
                        "the recorder of {} was too late: {code} {text}",
                        resource.plural
                    ));
                }
                None => break,
            }
        }
    }
}

/// The state that a log begins with.
pub fn beginning(page: Page) -> Log {
    let first: BTreeMap<String, Version> = page.items.into_iter().map(|v| (v.shown.key.clone(), v)).collect();
    Log { now: first.clone(), first, changes: vec![], revision: page.revision }
}
