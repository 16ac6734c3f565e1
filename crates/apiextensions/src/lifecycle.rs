//! The life cycle of CustomResourceDefinitions: names accepted, served as resources of the engine ([`Served::serve`]), established
//! ([`set_conditions`]), and, when they are deleted, emptied and unregistered.
//!
//! A definition of a resource, or in a group version, that the server has itself is established, and not served: such requests reach the
//! built-in kinds alone, as upstream's chain of servers does it ([`BuiltIn`]). Its end deletes nothing of theirs.
//!
//! One task follows the definitions by a watch and reconciles the registry with each that changed; which event it was
//! does not matter. Deletion of instances retries until none is left.

use crate::{
    approval,
    built_in::BuiltIn,
    compile::compile,
    conditions,
    conversion::Conversions,
    definitions,
    names::{self, Taken},
    structure::{self, Finding},
    validation::unusable_authorities,
};
use kaji_engine::{ApiRequest, Body, Engine, EngineError};
use kaji_meta::{
    GroupResource, Status, object,
    time::{Clock, Time},
};
use kaji_resource::{FieldManagement, ObjectReader, ObjectWriter, ResourceDef, UpdateOptions, Verb};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt, stream};

/// Keeps a definition in existence until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// How many definitions are served and written at once: writes that wait together share an fsync.
const AT_ONCE: usize = 32;
/// How often clean-up looks again while objects with finalizers linger.
const LINGER: Duration = Duration::from_millis(250);

/// Serves every established definition, then follows them in a task that ends with the engine.
pub async fn start(
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    conversions: Conversions,
) -> Result<(), EngineError> {
    let mut served = Served {
        clock,
        conversions,
        built_in: BuiltIn::of(engine.registry().iter().map(|resource| &*resource.def)),
        by_name: HashMap::new(),
        names: HashMap::new(),
        freed: BTreeSet::new(),
        structures: HashMap::new(),
    };
    let mut compiled = Compiled::default();
    for definition in engine.list(&definitions(), None) {
        served.remember(&definition);
        if conditions::is_true(&definition, "Established") {
            served.compile_changed(&definition, &mut compiled);
        }
    }
    served.serve(&engine, compiled).await?;
    tokio::spawn(follow(Arc::downgrade(&engine), served));
    Ok(())
}

/// What is registered: by definition name, the resource and the state it was compiled from.
struct Served {
    clock: Arc<dyn Clock>,
    conversions: Conversions,
    built_in: BuiltIn,
    by_name: HashMap<String, (GroupResource, State)>,
    /// What each definition looked at so far asks for and has.
    names: HashMap<String, Names>,
    /// Groups in which names were given up.
    freed: BTreeSet<Box<str>>,
    /// What the schemas of each definition were found to be, at which generation.
    structures: HashMap<String, (Box<str>, Option<Finding>)>,
}

/// What is written into a definition's status.
struct Conditions {
    taken: Taken,
    structure: Option<Finding>,
    now: String,
}

/// Definitions that are compiled and not registered yet.
#[derive(Default)]
struct Compiled {
    defs: Vec<ResourceDef>,
    /// By name, what `Served::by_name` is to know of each.
    states: Vec<(String, (GroupResource, State))>,
}

/// A definition's names: what others in its group must know of it.
struct Names {
    group: Box<str>,
    plural: Box<str>,
    accepted: Taken,
    /// A name that it specifies belongs to another definition.
    conflict: bool,
}

/// Names everything that a resource is compiled from.
#[derive(PartialEq)]
struct State {
    /// The spec, by its generation, and the names from the status. When they change, watches end.
    shape: Box<str>,
    terminating: bool,
}

impl State {
    fn of(definition: &Value) -> State {
        let (meta, names) = (&definition["metadata"], &definition["status"]["acceptedNames"]);
        State {
            shape: format!("{} {} {names}", meta["uid"], meta["generation"]).into(),
            terminating: conditions::is_true(definition, "Terminating"),
        }
    }
}

impl Served {
    fn now(&self) -> String {
        Time::new(self.clock.now()).to_string()
    }

    /// Compiles a definition, unless that very state of it is registered. What comes of it is much smaller than the
    /// definition, so that many can wait to be registered together.
    fn compile_changed(&self, definition: &Value, to: &mut Compiled) {
        let (name, state) = (object::name(definition), State::of(definition));
        if self.by_name.get(name).is_some_and(|(_, known)| *known == state) {
            return;
        }
        match compile(definition, &self.conversions) {
            Ok(def) => {
                let Some(def) = self.built_in.leave(def) else { return };
                to.states.push((name.to_owned(), (def.group_resource(), state)));
                to.defs.push(def);
            }
            Err(error) => tracing::error!(definition = name, %error, "a definition cannot be served"),
        }
    }

    /// Registers what was compiled, all at once. Watches that began with another shape of a definition end.
    async fn serve(&mut self, engine: &Engine, compiled: Compiled) -> Result<(), EngineError> {
        if compiled.defs.is_empty() {
            return Ok(());
        }
        engine.register(compiled.defs).await?;
        for (name, (resource, state)) in compiled.states {
            let known = self.by_name.get(&name);
            if known.is_some_and(|(_, known)| known.shape != state.shape) {
                engine.end_watches(&resource);
            }
            self.by_name.insert(name, (resource, state));
        }
        Ok(())
    }

    fn remember(&mut self, definition: &Value) {
        let text = |path: &[&str]| object::str_at(definition, path).into();
        let names = Names {
            group: text(&["spec", "group"]),
            plural: text(&["spec", "names", "plural"]),
            accepted: Taken::of(&definition["status"]["acceptedNames"]),
            conflict: conditions::status(definition, "NamesAccepted") == Some("False"),
        };
        let (group, accepted) = (names.group.clone(), names.accepted.clone());
        let before = self.names.insert(object::name(definition).to_owned(), names);
        if before.is_some_and(|before| before.accepted != accepted) {
            self.freed.insert(group);
        }
    }

    /// What the schemas of a definition are. Large ones take a while to look at, so that it is done once for each generation.
    fn structure(&mut self, definition: &Value) -> Option<Finding> {
        let (name, meta) = (object::name(definition), &definition["metadata"]);
        let generation: Box<str> = format!("{} {}", meta["uid"], meta["generation"]).into();
        if let Some((_, known)) = self.structures.get(name).filter(|(at, _)| *at == generation) {
            return known.clone();
        }
        let found = structure::finding_of(definition);
        self.structures.insert(name.to_owned(), (generation, found.clone()));
        found
    }

    /// Definitions that may now get names which belonged to another definition.
    fn hopeful(&mut self) -> Vec<String> {
        let freed = std::mem::take(&mut self.freed);
        let hopeful = self.names.iter().filter(|(_, n)| n.conflict && freed.contains(&n.group));
        hopeful.map(|(name, _)| name.clone()).collect()
    }

    fn forget(&mut self, engine: &Engine, name: &str) {
        if let Some(names) = self.names.remove(name) {
            self.freed.insert(names.group);
        }
        self.structures.remove(name);
        if let Some((resource, _)) = self.by_name.remove(name) {
            engine.unregister(&resource);
        }
    }
}

/// Follows definitions until the engine is gone. Names to look at again wait in `pending`.
async fn follow(engine: Weak<Engine>, mut served: Served) {
    let mut pending: BTreeSet<String> = BTreeSet::new();
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Some(mut events) = watch(&strong).await else { return };
        // A fresh watch begins with what there is; what went in between is found by comparing.
        let present: BTreeSet<String> =
            strong.list(&definitions(), None).iter().map(|d| object::name(d).to_owned()).collect();
        let known = served.names.keys().chain(served.by_name.keys());
        let gone: BTreeSet<String> = known.filter(|n| !present.contains(*n)).cloned().collect();
        gone.iter().for_each(|name| served.forget(&strong, name));
        drop(strong);
        loop {
            let timer = async {
                if pending.is_empty() {
                    std::future::pending().await
                } else {
                    tokio::time::sleep(LINGER).await
                }
            };
            tokio::select! {
                biased;
                piece = events.next() => match piece {
                    Some(piece) => pending.extend(changed(&piece)),
                    None => break,
                },
                () = timer => {}
            }
            let Some(engine) = engine.upgrade() else { return };
            let names: Vec<String> = std::mem::take(&mut pending).into_iter().collect();
            for some in names.chunks(AT_ONCE) {
                pending.extend(reconcile(&engine, &mut served, some).await);
            }
            pending.extend(served.hopeful());
        }
    }
}

/// A watch over all definitions; `None` once the engine has ended.
async fn watch(engine: &Arc<Engine>) -> Option<futures_util::stream::BoxStream<'static, bytes::Bytes>> {
    let request = ApiRequest {
        query: [("watch", "true")].into(),
        ..ApiRequest::own(Verb::Watch, definitions(), "v1", "apiextensions")
    };
    match engine.handle(request).await.body {
        Body::Watch(stream) => Some(stream),
        _ => None,
    }
}

/// The names in a piece of a watch stream.
fn changed(piece: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Event {
        object: Named,
    }
    #[derive(Deserialize)]
    struct Named {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(default)]
        name: String,
    }
    serde_json::Deserializer::from_slice(piece)
        .into_iter::<Event>()
        .map_while(Result::ok)
        .map(|e| e.object.metadata.name)
        .filter(|n| !n.is_empty())
        .collect()
}

/// Why a definition is not reconciled.
#[derive(Debug)]
enum ReconcileError {
    Status(Status),
    Engine(EngineError),
}

impl std::fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReconcileError::Status(status) => status.fmt(f),
            ReconcileError::Engine(error) => error.fmt(f),
        }
    }
}

/// Reconciles definitions. Gives back those to look at again later.
async fn reconcile(engine: &Arc<Engine>, served: &mut Served, names: &[String]) -> Vec<String> {
    let mut later = vec![];
    let mut note = |name: &str, outcome: Result<bool, ReconcileError>| {
        if let Err(error) = &outcome {
            tracing::warn!(definition = name, %error, "a definition could not be reconciled");
        }
        if !outcome.unwrap_or(false) {
            later.push(name.to_owned());
        }
    };
    let (mut established, mut compiled, mut changes) = (vec![], Compiled::default(), vec![]);
    for name in names {
        let Some(definition) = engine.get(&definitions(), "", name) else {
            served.forget(engine, name);
            continue;
        };
        let cleaned = !object::finalizers(&definition).any(|f| f == FINALIZER);
        if object::deletion_timestamp(&definition).is_some() && !cleaned {
            note(name, clean_up(engine, served, &definition).await);
            continue;
        }
        let taken = taken(engine, served, &definition);
        let decided = Conditions { taken, structure: served.structure(&definition), now: served.now() };
        // One at a time, and without a second copy: decoded, a definition takes ten times its size.
        let mut wanted = Arc::unwrap_or_clone(definition);
        let before = wanted["status"].clone();
        set_conditions(&mut wanted, &decided);
        // Visible to those evaluated after it, which may be before it is written.
        served.remember(&wanted);
        if wanted["status"] != before {
            changes.push((name.clone(), decided));
        }
        if conditions::is_true(&wanted, "Established") {
            served.compile_changed(&wanted, &mut compiled);
            established.push(name);
        }
        // Compiling takes as long as hundreds of reads, which are not to wait for more than one of them.
        tokio::task::yield_now().await;
    }
    // Served first: a client that waits for the condition may create at once.
    if let Err(error) = served.serve(engine, compiled).await {
        established.iter().for_each(|name| note(name, Err(ReconcileError::Engine(error.clone()))));
        return later;
    }
    let writes = changes.into_iter().map(|(name, decided)| write(engine.clone(), name, decided));
    let mut written = stream::iter(writes).buffer_unordered(AT_ONCE);
    while let Some((name, outcome)) = written.next().await {
        note(&name, outcome);
    }
    later
}

/// Writes what was decided.
async fn write(
    engine: Arc<Engine>,
    name: String,
    decided: Conditions,
) -> (String, Result<bool, ReconcileError>) {
    let change = |d: &mut Value| {
        set_conditions(d, &decided);
        Ok(())
    };
    let outcome = match engine
        .update(&definitions(), "", &name, UpdateOptions::new("status", FieldManagement::Record), &change)
        .await
    {
        Err(status) if status.code != 404 => Err(ReconcileError::Status(status)),
        _ => Ok(true),
    };
    (name, outcome)
}

/// Names, the conditions that follow from them, and what follows from annotations and schemas.
fn set_conditions(definition: &mut Value, Conditions { taken, structure, now }: &Conditions) {
    let outcome = names::accept(definition, taken);
    let accepted = outcome.conflict.is_none();
    if !definition["status"].is_object() {
        definition["status"] = json!({});
    }
    definition["status"]["acceptedNames"] = outcome.accepted;
    let (reason, message) = outcome.conflict.unwrap_or(("NoConflicts", "no conflicts found".into()));
    conditions::set(definition, "NamesAccepted", accepted, reason, &message, now);
    if let Some((approved, reason, message)) = approval::condition(definition) {
        let kind = "KubernetesAPIApprovalPolicyConformant";
        conditions::set(definition, kind, approved, reason, &message, now);
    }
    let established = conditions::is_true(definition, "Established");
    if accepted && !established && unusable_authorities(definition).is_some() {
        let message = "The conversion webhook CABundle is invalid";
        conditions::set(definition, "Established", false, "InvalidCABundle", message, now);
    } else if accepted {
        let message = "the initial names have been accepted";
        conditions::set(definition, "Established", true, "InitialNamesAccepted", message, now);
    } else if conditions::status(definition, "Established").is_none() {
        conditions::set(definition, "Established", false, "NotAccepted", "not all names are accepted", now);
    }
    structure::note(definition, structure.as_ref(), now);
}

/// Names that others in the definition's group have: other definitions and resources that are no definition's.
fn taken(engine: &Engine, served: &Served, definition: &Value) -> Taken {
    let group = object::str_at(definition, &["spec", "group"]);
    let own = object::str_at(definition, &["spec", "names", "plural"]);
    let mut taken = Taken::default();
    let mut custom = BTreeSet::from([own]);
    for (name, names) in served.names.iter().filter(|(_, n)| &*n.group == group) {
        custom.insert(&*names.plural);
        if name != object::name(definition) {
            taken.add(&names.accepted);
        }
    }
    for resource in
        engine.registry().iter().filter(|r| r.def.group == group && !custom.contains(r.def.plural.as_ref()))
    {
        let def = &resource.def;
        taken.resources.extend([&def.plural, &def.singular].map(|n| n.as_ref().into()));
        taken.kinds.push(def.kind.as_ref().into());
    }
    taken
}

/// Deletes all objects of a definition that is going; true once it may go itself. While finalizers of others keep it, it is
/// served, and as upstream does, takes objects again.
async fn clean_up(
    engine: &Arc<Engine>,
    served: &mut Served,
    definition: &Value,
) -> Result<bool, ReconcileError> {
    let name = object::name(definition);
    let going = Going { engine, uid: object::uid(definition), name };
    // An event may be older than the definition's end: one that is gone must not be served again.
    let present = engine.get(&definitions(), "", name);
    if present.is_none_or(|found| object::uid(&found) != going.uid) {
        return Ok(true);
    }
    let established = conditions::is_true(definition, "Established");
    let built_in = served.built_in.has(&resource_of(definition));
    if !built_in && (established || served.by_name.contains_key(name)) {
        // From now on it takes no new objects. One that another server has established may not have been served here at all.
        let mut compiled = Compiled::default();
        served.compile_changed(definition, &mut compiled);
        served.serve(engine, compiled).await.map_err(ReconcileError::Engine)?;
        if !empty(&going, served, definition).await? {
            return Ok(false);
        }
    }
    let (reason, message) = if built_in {
        ("OverlappingBuiltInResource", "instances overlap with built-in resources in storage")
    } else if established {
        ("InstanceDeletionCompleted", "removed all instances")
    } else {
        ("NeverEstablished", "resource was never established")
    };
    going.note(&served.now(), reason, message).await?;
    if object::finalizers(definition).all(|f| f == FINALIZER) {
        // Forgotten first: a client that sees the definition gone must not find its resource still served.
        served.forget(engine, name);
    }
    let release = |d: &mut Value| {
        let kept: Vec<Value> = object::finalizers(d).filter(|f| *f != FINALIZER).map(Value::from).collect();
        object::set_at(d, &["metadata", "finalizers"], kept);
    };
    going.change("", release).await.map(|()| true)
}

/// The resource of a definition, by its accepted names.
fn resource_of(definition: &Value) -> GroupResource {
    GroupResource::new(
        object::str_at(definition, &["spec", "group"]),
        object::str_at(definition, &["status", "acceptedNames", "plural"]),
    )
}

/// Deletes the objects of a definition; whether none is left. Objects that cannot be read are left, which a condition says.
async fn empty(going: &Going<'_>, served: &Served, definition: &Value) -> Result<bool, ReconcileError> {
    let engine = going.engine;
    let resource = resource_of(definition);
    let remaining = || engine.readable(&resource).map(|()| engine.list(&resource, None));
    let left = match remaining() {
        Ok(left) => left,
        Err(status) => {
            let message = format!("could not list instances: {}", status.message);
            going.note(&served.now(), "InstanceDeletionFailed", &message).await?;
            return Ok(false);
        }
    };
    if left.is_empty() {
        return Ok(true);
    }
    let message = "CustomResource deletion is in progress";
    going.note(&served.now(), "InstanceDeletionInProgress", message).await?;
    for instance in left.iter().filter(|i| object::deletion_timestamp(i).is_none()) {
        // Upstream's finalizer asks no plugins either; nor may a converter keep a definition from going.
        match engine.discard(&resource, object::namespace(instance), object::name(instance)).await {
            Err(status) if status.code != 404 && status.code != 409 => {
                return Err(ReconcileError::Status(status));
            }
            _ => {}
        }
    }
    Ok(remaining().is_ok_and(|left| left.is_empty()))
}

/// A definition that is being deleted. Another server may be done with it first, and a client may have made a new one of the
/// name: that is left alone.
struct Going<'a> {
    engine: &'a Arc<Engine>,
    uid: &'a str,
    name: &'a str,
}

impl Going<'_> {
    /// Changes it, if it is still there.
    async fn change(
        &self,
        subresource: &str,
        change: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<(), ReconcileError> {
        let change = |definition: &mut Value| {
            if object::uid(definition) != self.uid {
                return Err(Status::not_found(&definitions(), self.name));
            }
            change(definition);
            Ok(())
        };
        let options = UpdateOptions::new(subresource, FieldManagement::Record);
        match self.engine.update(&definitions(), "", self.name, options, &change).await {
            Err(status) if status.code != 404 => Err(ReconcileError::Status(status)),
            _ => Ok(()),
        }
    }

    /// Writes the `Terminating` condition.
    async fn note(&self, now: &str, reason: &str, message: &str) -> Result<(), ReconcileError> {
        // These mean that something is left to terminate; the other reasons that nothing is.
        let terminating = ["InstanceDeletionInProgress", "InstanceDeletionFailed"].contains(&reason);
        self.change("status", |d| conditions::set(d, "Terminating", terminating, reason, message, now)).await
    }
}
