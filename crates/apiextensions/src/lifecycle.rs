//! The life of definitions: accepted, served, established, and, in the end, emptied and forgotten.
//!
//! One task follows the definitions by a watch and brings the registry level with each that changed; which event it was
//! does not matter. Deletion of instances retries until none is left.

use crate::{
    compile::compile,
    conditions, definitions,
    names::{self, Taken},
};
use kaji_engine::{Accept, ApiRequest, Body, Engine, EngineError};
use kaji_meta::{
    GroupResource, Status, object,
    time::{Clock, Time},
};
use kaji_resource::{Api, UserInfo, Verb};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt;

/// Keeps a definition in existence until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// How often clean-up looks again while objects with finalizers linger.
const LINGER: Duration = Duration::from_millis(250);

/// Serves every established definition, then follows them in a task that ends with the engine.
pub async fn start(engine: Arc<Engine>, clock: Arc<dyn Clock>) -> Result<(), EngineError> {
    let mut served = Served { by_name: HashMap::new(), names: HashMap::new(), clock };
    for definition in engine.list(&definitions(), None) {
        served.remember(&definition);
        if conditions::is_true(&definition, "Established") {
            served.serve(&engine, &definition).await?;
        }
    }
    tokio::spawn(follow(Arc::downgrade(&engine), served));
    Ok(())
}

/// What is registered: by definition name, the resource and the state it was compiled from.
struct Served {
    clock: Arc<dyn Clock>,
    by_name: HashMap<String, (GroupResource, Value)>,
    /// What each definition looked at so far asks for and has: group, plural, accepted names.
    names: HashMap<String, (String, String, Value)>,
}

impl Served {
    fn now(&self) -> String {
        Time::new(self.clock.now()).to_string()
    }

    /// Registers a definition unless that very state is registered.
    async fn serve(&mut self, engine: &Engine, definition: &Value) -> Result<(), EngineError> {
        let going = conditions::is_true(definition, "Terminating");
        let state = json!([definition["spec"], definition["status"]["acceptedNames"], going]);
        let name = object::name(definition);
        if self.by_name.get(name).is_some_and(|(_, known)| *known == state) {
            return Ok(());
        }
        match compile(definition) {
            Ok(def) => {
                let resource = def.group_resource();
                engine.register(vec![def]).await?;
                self.by_name.insert(name.to_owned(), (resource, state));
            }
            Err(error) => tracing::error!(definition = name, %error, "a definition cannot be served"),
        }
        Ok(())
    }

    fn remember(&mut self, definition: &Value) {
        let text = |path: &[&str]| object::str_at(definition, path).to_owned();
        let names = (
            text(&["spec", "group"]),
            text(&["spec", "names", "plural"]),
            definition["status"]["acceptedNames"].clone(),
        );
        self.names.insert(object::name(definition).to_owned(), names);
    }

    fn forget(&mut self, engine: &Engine, name: &str) {
        self.names.remove(name);
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
        let gone: Vec<String> = served.names.keys().filter(|n| !present.contains(*n)).cloned().collect();
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
                piece = events.next() => match piece {
                    Some(piece) => pending.extend(changed(&piece)),
                    None => break,
                },
                () = timer => {}
            }
            let Some(engine) = engine.upgrade() else { return };
            for name in std::mem::take(&mut pending) {
                match level(&engine, &mut served, &name).await {
                    Ok(true) => {}
                    Ok(false) => drop(pending.insert(name)),
                    Err(error) => {
                        tracing::warn!(definition = %name, %error, "a definition could not be brought level");
                        pending.insert(name);
                    }
                }
            }
        }
    }
}

/// A watch over all definitions; `None` once the engine has ended.
async fn watch(engine: &Arc<Engine>) -> Option<futures_util::stream::BoxStream<'static, bytes::Bytes>> {
    let gr = definitions();
    let request = ApiRequest {
        verb: Verb::Watch,
        group: gr.group,
        version: "v1".into(),
        resource: gr.resource,
        namespace: String::new(),
        name: String::new(),
        subresource: String::new(),
        subpath: String::new(),
        query: vec![("watch".into(), "true".into())],
        accept: Accept::default(),
        content_type: String::new(),
        body: bytes::Bytes::new(),
        user: UserInfo {
            name: "system:apiserver".into(),
            groups: vec!["system:masters".into()],
            ..UserInfo::default()
        },
        user_agent: "apiextensions".into(),
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

/// Why a definition is not level.
#[derive(Debug)]
enum LevelError {
    Status(Status),
    Engine(EngineError),
}

impl std::fmt::Display for LevelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LevelError::Status(status) => status.fmt(f),
            LevelError::Engine(error) => error.fmt(f),
        }
    }
}

/// Brings one definition level. False: look again later.
async fn level(engine: &Arc<Engine>, served: &mut Served, name: &str) -> Result<bool, LevelError> {
    let Some(definition) = engine.get(&definitions(), "", name) else {
        served.forget(engine, name);
        return Ok(true);
    };
    if object::deletion_timestamp(&definition).is_some() {
        return clean_up(engine, served, &definition).await;
    }
    let now = served.now();
    let taken = taken(engine, served, &definition);
    let mut wanted = (*definition).clone();
    judge(&mut wanted, &taken, &now);
    served.remember(&wanted);
    if conditions::is_true(&wanted, "Established") {
        // Served first: who waits for the condition may create at once.
        served.serve(engine, &wanted).await.map_err(LevelError::Engine)?;
    }
    if wanted != *definition {
        let change = |d: &mut Value| {
            judge(d, &taken, &now);
            Ok(())
        };
        match engine.update(&definitions(), "", name, "status", false, &change).await {
            Err(status) if status.code != 404 => return Err(LevelError::Status(status)),
            _ => {}
        }
    }
    Ok(true)
}

/// Names and the two conditions that follow from them.
fn judge(definition: &mut Value, taken: &Taken, now: &str) {
    let outcome = names::accept(definition, taken);
    let accepted = outcome.conflict.is_none();
    if !definition["status"].is_object() {
        definition["status"] = json!({});
    }
    definition["status"]["acceptedNames"] = outcome.accepted;
    let (reason, message) = outcome.conflict.unwrap_or(("NoConflicts", "no conflicts found".into()));
    conditions::set(definition, "NamesAccepted", accepted, reason, &message, now);
    if accepted {
        let message = "the initial names have been accepted";
        conditions::set(definition, "Established", true, "InitialNamesAccepted", message, now);
    } else if conditions::status(definition, "Established").is_none() {
        conditions::set(definition, "Established", false, "NotAccepted", "not all names are accepted", now);
    }
}

/// Names that others in the definition's group have: other definitions and resources that are no definition's.
fn taken(engine: &Engine, served: &Served, definition: &Value) -> Taken {
    let group = object::str_at(definition, &["spec", "group"]);
    let own = object::str_at(definition, &["spec", "names", "plural"]);
    let mut taken = Taken::default();
    let mut custom = BTreeSet::from([own]);
    for (name, (_, plural, accepted)) in served.names.iter().filter(|(_, (g, ..))| g == group) {
        custom.insert(plural);
        if name != object::name(definition) {
            taken.add(accepted);
        }
    }
    for resource in
        engine.registry().iter().filter(|r| r.def.group == group && !custom.contains(r.def.plural.as_ref()))
    {
        let def = &resource.def;
        taken.resources.extend([def.plural.to_string(), def.singular.to_string()]);
        taken.kinds.insert(def.kind.to_string());
    }
    taken
}

/// Deletes all objects of a definition that is going; true once it may go itself.
async fn clean_up(engine: &Arc<Engine>, served: &mut Served, definition: &Value) -> Result<bool, LevelError> {
    let name = object::name(definition);
    if !object::finalizers(definition).any(|f| f == FINALIZER) {
        return Ok(true);
    }
    let resource = GroupResource::new(
        object::str_at(definition, &["spec", "group"]),
        object::str_at(definition, &["status", "acceptedNames", "plural"]),
    );
    if served.by_name.contains_key(name) {
        // From now on it takes no new objects.
        served.serve(engine, definition).await.map_err(LevelError::Engine)?;
        let left = engine.list(&resource, None);
        if !left.is_empty() {
            note(
                engine,
                &served.now(),
                name,
                "InstanceDeletionInProgress",
                "CustomResource deletion is in progress",
            )
            .await?;
            for instance in left.iter().filter(|i| object::deletion_timestamp(i).is_none()) {
                let place = (object::namespace(instance), object::name(instance));
                match engine.delete(&resource, place.0, place.1, Default::default()).await {
                    Err(status) if status.code != 404 && status.code != 409 => {
                        return Err(LevelError::Status(status));
                    }
                    _ => {}
                }
            }
            if !engine.list(&resource, None).is_empty() {
                return Ok(false);
            }
        }
    }
    note(engine, &served.now(), name, "InstanceDeletionCompleted", "removed all instances").await?;
    // Forgotten first: who sees the definition gone must not find its resource still served.
    served.forget(engine, name);
    let release = |d: &mut Value| {
        let kept: Vec<Value> = object::finalizers(d).filter(|f| *f != FINALIZER).map(Value::from).collect();
        object::set_at(d, &["metadata", "finalizers"], kept);
        Ok(())
    };
    match engine.update(&definitions(), "", name, "", false, &release).await {
        Err(status) if status.code != 404 => return Err(LevelError::Status(status)),
        _ => {}
    }
    Ok(true)
}

/// Writes the `Terminating` condition.
async fn note(
    engine: &Arc<Engine>,
    now: &str,
    name: &str,
    reason: &str,
    message: &str,
) -> Result<(), LevelError> {
    // In progress means that something terminates; completed that nothing is left to.
    let terminating = reason != "InstanceDeletionCompleted";
    let change = |d: &mut Value| {
        conditions::set(d, "Terminating", terminating, reason, message, now);
        Ok(())
    };
    match engine.update(&definitions(), "", name, "status", false, &change).await {
        Err(status) if status.code != 404 => Err(LevelError::Status(status)),
        _ => Ok(()),
    }
}
