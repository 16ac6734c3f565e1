//! The clients of a run: those that write and read, and those that watch.
//!
//! Invariants: a client has one operation under way; each operation is recorded with what is known of its outcome, and one that was
//! sent and not answered is uncertain; a watch that is interrupted goes on from the last event or bookmark that it has seen whole.

use super::{
    history::{Change, Event, Operation, Outcome, Recorder, Request, Revision, Version, Watched},
    random::Random,
};
use crate::bench::{
    Error,
    client::{Call, Client, Target},
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// The collection of all objects.
pub const PATH: &str = "/api/v1/namespaces/chaos/configmaps";
/// Objects that clients compete for.
const NAMES: u64 = 12;
/// The field manager of what is applied.
const MANAGER: &str = "chaos";
/// How long an operation may take.
const LIMIT: Duration = Duration::from_secs(8);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(30);
/// How long a watch waits for anything before it is opened anew.
const SILENCE: Duration = Duration::from_secs(10);

/// What all clients share.
pub struct Shared {
    /// The servers.
    pub targets: Vec<Arc<Target>>,
    /// The record.
    pub recorder: Recorder,
    /// The next operation's number.
    pub numbers: AtomicU64,
    /// Clients end.
    pub stop: AtomicBool,
    /// Watches end when they have come as far; 0 while clients write.
    pub until: AtomicU64,
}

/// The version that an object is of; `None` for one that no client here has written.
pub fn version(object: &Value) -> Option<Version> {
    let meta = &object["metadata"];
    Some(Version {
        name: meta["name"].as_str()?.to_owned(),
        uid: meta["uid"].as_str()?.to_owned(),
        revision: meta["resourceVersion"].as_str()?.parse().ok()?,
        value: object["data"]["value"].as_str()?.parse().ok()?,
    })
}

fn malformed(value: &Value) -> Outcome {
    Outcome::Malformed(format!("an answer of another form: {value}"))
}

/// What an error says about the effect of an operation.
fn failure(error: &Error) -> Outcome {
    match error {
        Error::Connect(..) => Outcome::Unsent,
        Error::Status { code, .. } if (400..500).contains(code) => Outcome::Refused(*code),
        other => Outcome::Unknown(other.to_string()),
    }
}

/// One client.
pub struct Actor {
    shared: Arc<Shared>,
    random: Random,
    clients: Vec<Client>,
    /// The last version of each object that this client has seen.
    known: Vec<Option<Version>>,
}

impl Actor {
    /// A client with random numbers of its own.
    pub fn new(shared: &Arc<Shared>, random: Random) -> Actor {
        let clients = shared.targets.iter().map(|target| Client::new(target).limited(LIMIT)).collect();
        Actor { shared: shared.clone(), random, clients, known: vec![None; NAMES as usize] }
    }

    /// Works until the clients are to end.
    pub async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let settled = self.step().await;
            if !settled {
                sleep(PAUSE).await;
            }
        }
    }

    /// One operation. Whether it was answered.
    async fn step(&mut self) -> bool {
        let (at, server) =
            (self.random.below(NAMES) as usize, self.random.below(self.clients.len() as u64) as usize);
        let expected = self.known[at].as_ref().map(|version| version.revision);
        let request = match (self.random.below(100), expected) {
            (0..=14, _) | (15..=34, None) => Request::Create,
            (15..=34, Some(revision)) => Request::Update(revision),
            (35..=42, _) => Request::Patch,
            (43..=49, _) => Request::Apply,
            (50..=54, Some(revision)) => Request::Delete(Some(revision)),
            (50..=57, _) => Request::Delete(None),
            (58..=78, _) => Request::Get,
            (79..=81, _) => Request::GetAny,
            (82..=84, Some(revision)) => Request::ListAt(revision),
            (82..=92, _) => Request::List(0),
            _ => Request::List(5),
        };
        let number = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
        let name = match request {
            Request::List(_) | Request::ListAt(_) => String::new(),
            _ => format!("k{at}"),
        };
        let begin = self.shared.recorder.now();
        let outcome = self.perform(server, &name, &request, number).await;
        let end = self.shared.recorder.now();
        match (&outcome, &request) {
            (Outcome::Object(_), Request::GetAny) => {}
            (Outcome::Object(version), _) => self.known[at] = Some(version.clone()),
            (Outcome::Deleted, _) | (Outcome::Refused(404), _) => self.known[at] = None,
            _ => {}
        }
        let settled = !matches!(outcome, Outcome::Unsent | Outcome::Unknown(_));
        self.shared.recorder.operation(Operation { number, server, name, request, begin, end, outcome });
        settled
    }

    async fn perform(&mut self, server: usize, name: &str, request: &Request, number: u64) -> Outcome {
        let path = format!("{PATH}/{name}");
        // Sizes around those at which stores change their ways.
        let padding = "x".repeat(match self.random.below(20) {
            0 => 200_000,
            1..=4 => 5_000,
            _ => 10,
        });
        let data = json!({"value": number.to_string(), "padding": padding});
        let object = |meta: Value| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}).to_string()
        };
        let call = match request {
            Request::Create => Call::post(PATH, object(json!({"name": name}))),
            Request::Update(revision) => {
                Call::put(path, object(json!({"name": name, "resourceVersion": revision.to_string()})))
            }
            Request::Patch => Call::merge(path, &json!({"data": data})),
            Request::Apply => Call::apply(&path, MANAGER, object(json!({"name": name}))),
            Request::Delete(expected) => {
                let preconditions = expected.map(|revision| json!({"resourceVersion": revision.to_string()}));
                let options =
                    json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
                Call::delete_with(path, options.to_string())
            }
            Request::Get => Call::get(path),
            Request::GetAny => Call::get(format!("{path}?resourceVersion=0")),
            Request::List(0) => return self.list(server, "").await,
            Request::List(page) => return self.list(server, &format!("&limit={page}")).await,
            Request::ListAt(revision) => {
                let exactly = format!("&resourceVersion={revision}&resourceVersionMatch=Exact");
                return self.list(server, &exactly).await;
            }
        };
        match self.clients[server].json(&call).await {
            Ok(_) if matches!(request, Request::Delete(_)) => Outcome::Deleted,
            Ok(value) => version(&value).map_or_else(|| malformed(&value), Outcome::Object),
            Err(error) => failure(&error),
        }
    }

    /// All objects. A later page may come from another server.
    async fn list(&mut self, server: usize, options: &str) -> Outcome {
        let (mut server, mut items, mut token, mut revision) = (server, vec![], String::new(), None);
        loop {
            let call = Call::get(format!("{PATH}?timeoutSeconds=30{options}{token}"));
            let value = match self.clients[server].json(&call).await {
                Ok(value) => value,
                Err(error) => return failure(&error),
            };
            let meta = &value["metadata"];
            let Some(found) = meta["resourceVersion"].as_str().and_then(|text| text.parse::<Revision>().ok())
            else {
                return malformed(&value);
            };
            if revision.is_some_and(|first| first != found) {
                return Outcome::Malformed(format!("pages of revisions {revision:?} and {found}"));
            }
            revision = Some(found);
            for item in value["items"].as_array().into_iter().flatten() {
                match version(item) {
                    Some(version) => items.push(version),
                    None => return malformed(item),
                }
            }
            match meta["continue"].as_str() {
                Some(next) if !next.is_empty() => token = format!("&continue={next}"),
                _ => return Outcome::Listed(found, items),
            }
            server = self.random.below(self.clients.len() as u64) as usize;
        }
    }
}

/// One watch, over as many connections as it takes.
pub struct Watcher {
    shared: Arc<Shared>,
    random: Random,
    only: Option<String>,
    from: Revision,
    seen: Watched,
}

/// Why a connection of a watch has ended.
enum Ended {
    Interrupted,
    Expired,
    Done,
}

impl Watcher {
    /// A watch of one object, or of all, from a revision.
    pub fn new(shared: &Arc<Shared>, random: Random, only: Option<String>, from: Revision) -> Watcher {
        let seen = Watched { only: only.clone(), from, to: from, events: vec![] };
        Watcher { shared: shared.clone(), random, only, from, seen }
    }

    /// Follows until everything has come.
    pub async fn run(mut self) {
        loop {
            let server = self.random.below(self.shared.targets.len() as u64) as usize;
            let target = self.shared.targets[server].clone();
            match self.follow(&target).await {
                Ended::Done => break,
                Ended::Interrupted => sleep(PAUSE).await,
                Ended::Expired => self.begin_anew(&target).await,
            }
        }
        self.shared.recorder.watched(self.seen);
    }

    fn is_done(&self) -> bool {
        let until = self.shared.until.load(Ordering::Relaxed);
        until > 0 && self.from >= until
    }

    async fn follow(&mut self, target: &Arc<Target>) -> Ended {
        let selector =
            self.only.as_ref().map_or(String::new(), |name| format!("&fieldSelector=metadata.name%3D{name}"));
        let seconds = self.random.between(1, 30);
        let call = Call::get(format!(
            "{PATH}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={seconds}{selector}",
            self.from
        ));
        let mut client = Client::new(target);
        let Ok(Ok(response)) = timeout(LIMIT, client.open(&call)).await else { return Ended::Interrupted };
        match response.status().as_u16() {
            200 => {}
            410 => return Ended::Expired,
            _ => return Ended::Interrupted,
        }
        let (mut body, mut line) = (response.into_body(), vec![]);
        loop {
            if self.is_done() {
                return Ended::Done;
            }
            let wait = if self.shared.until.load(Ordering::Relaxed) > 0 { PAUSE * 10 } else { SILENCE };
            let Ok(Ok(Some(piece))) = timeout(wait, client.next(&mut body)).await else {
                return Ended::Interrupted;
            };
            for part in piece.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if line.ends_with(b"\n") {
                    if let Some(ended) = self.line(&line) {
                        return ended;
                    }
                    line.clear();
                }
            }
        }
    }

    /// Takes one event.
    fn line(&mut self, line: &[u8]) -> Option<Ended> {
        let Ok(value) = serde_json::from_slice::<Value>(line) else { return Some(Ended::Interrupted) };
        let (object, seen) = (&value["object"], self.shared.recorder.now());
        let change = match value["type"].as_str() {
            Some("ADDED") => Change::Added,
            Some("MODIFIED") => Change::Modified,
            Some("DELETED") => Change::Deleted,
            Some("BOOKMARK") => {
                let revision =
                    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
                self.from = revision.unwrap_or(0).max(self.from);
                self.seen.to = self.from;
                return None;
            }
            _ if object["code"] == 410 => return Some(Ended::Expired),
            _ => return Some(Ended::Interrupted),
        };
        let Some(version) = version(object) else { return Some(Ended::Interrupted) };
        self.from = version.revision.max(self.from);
        self.seen.to = self.from;
        self.seen.events.push(Event { change, version, seen });
        None
    }

    /// History is gone: a list says where to begin.
    async fn begin_anew(&mut self, target: &Arc<Target>) {
        let mut client = Client::new(target).limited(LIMIT);
        let Ok(list) = client.json(&Call::get(PATH)).await else { return };
        let revision = list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        if let Some(from) = revision {
            let next = Watched { only: self.only.clone(), from, to: from, events: vec![] };
            self.shared.recorder.watched(std::mem::replace(&mut self.seen, next));
            self.from = from;
        }
    }
}
