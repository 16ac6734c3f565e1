//! The objects around an object: owners above, dependents below, and references beside.
//!
//! Invariants: dependents are objects with an owner reference to the object's uid, over all kinds that the caller may list; kinds that could
//! not be listed are named. A tree ends at a depth and at a number of objects, and says how many it leaves out.

mod references;

use crate::{
    Api, ExplainError, RequestError, Subject,
    discovery::{Discovery, Resource},
    reader::{Found, Reader},
};
use kaji_meta::object::{self, str_at};
use references::references;
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

/// Owners of owners, and dependents of dependents.
pub(crate) const DEPTH: usize = 8;
/// Objects of a tree.
const OBJECTS: usize = 2_000;

/// What hangs together with an object. As JSON it has these names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// The first owner of each, the topmost first.
    pub owners: Vec<Owner>,
    /// The object, with its dependents.
    pub object: Branch,
    /// What could not be read, in the server's words.
    pub unknown: Vec<String>,
}

/// An owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// `apps/v1`
    pub api_version: String,
    /// `Deployment`
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid, by the reference.
    pub uid: String,
    /// Its state in a few words, or why it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Further owners of what it owns.
    pub others: usize,
}

/// An object with what hangs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Branch {
    /// `v1`
    pub api_version: String,
    /// `Pod`
    pub kind: String,
    /// Empty for objects of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its state in a few words, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// What its spec names.
    pub references: Vec<Mention>,
    /// What it owns. Empty for an object that the tree has already.
    pub dependents: Vec<Branch>,
    /// Dependents that are left out.
    pub omitted: usize,
}

/// An object that is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mention {
    /// `v1`
    pub api_version: String,
    /// `ConfigMap`
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Whether it may be missing.
    pub optional: bool,
    /// Whether it is there.
    pub state: Presence,
}

/// What is known of an object that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Presence {
    /// It is there.
    Present,
    /// It is not.
    Absent,
    /// The caller may not read it.
    Unreadable,
    /// The server has no such kind.
    NotServed,
}

/// The tree of an object.
///
/// # Errors
/// When the object cannot be read.
pub async fn tree(api: &dyn Api, subject: &Subject, namespace: &str) -> Result<Tree, ExplainError> {
    let reader = Reader::new(api);
    let discovery = Discovery::read(api).await?;
    let resource = discovery.resolve(&subject.kind)?;
    let namespace = if resource.namespaced { namespace } else { "" };
    let object =
        api.get(&resource.path(namespace, &subject.name)).await.map_err(|refusal| match refusal {
            RequestError::NotFound(text) => ExplainError::NotFound(text),
            RequestError::Forbidden(text) | RequestError::Failed(text) => ExplainError::Unreadable(text),
        })?;
    let dependents = Dependents::read(&reader, &discovery, resource, namespace).await;
    let mut above = vec![];
    owners(&reader, &discovery, &object, &mut above).await;
    above.reverse();
    let mut growth =
        Growth { reader: &reader, discovery: &discovery, dependents: &dependents, uids: BTreeSet::new() };
    let branch = growth.branch(&object, 0).await;
    Ok(Tree { owners: above, object: branch, unknown: reader.refused() })
}

/// Objects by the uids of their owners.
pub(crate) struct Dependents(HashMap<String, Vec<Arc<Value>>>);

impl Dependents {
    /// All objects with owners that may depend on an object of a resource: those of its namespace, or, for objects of the cluster, all.
    pub(crate) async fn read(
        reader: &Reader<'_>,
        discovery: &Discovery,
        of: &Resource,
        namespace: &str,
    ) -> Dependents {
        let of_cluster = !of.namespaced;
        let kinds = discovery.stored().filter(|resource| resource.plural != "events");
        let kinds = kinds.filter(|resource| of_cluster || resource.namespaced);
        let paths: Vec<String> = kinds.map(|resource| resource.path(namespace, "")).collect();
        let mut all: HashMap<String, Vec<Arc<Value>>> = HashMap::new();
        for list in reader.lists(&paths).await.into_iter().flatten() {
            for object in list.iter().filter(|object| !object::owner_references(object).is_empty()) {
                let shared = Arc::new(object.clone());
                for owner in object::owner_references(object) {
                    all.entry(str_at(owner, &["uid"]).to_owned()).or_default().push(shared.clone());
                }
            }
        }
        Dependents(all)
    }

    /// Those of one object.
    pub(crate) fn of(&self, uid: &str) -> &[Arc<Value>] {
        self.0.get(uid).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Adds the first owner, its first owner and so on; further owners are counted.
async fn owners(reader: &Reader<'_>, discovery: &Discovery, object: &Value, above: &mut Vec<Owner>) {
    let references = object::owner_references(object);
    let controller = object::controller_of(object).or_else(|| references.first());
    let Some(owner) = controller.filter(|_| above.len() < DEPTH) else { return };
    let text = |member: &str| str_at(owner, &[member]).to_owned();
    let (api_version, kind, name, uid) = (text("apiVersion"), text("kind"), text("name"), text("uid"));
    let found = match discovery.of_kind(&api_version, &kind) {
        Some(resource) => {
            let namespace = if resource.namespaced { object::namespace(object) } else { "" };
            reader.get(&resource.path(namespace, &name)).await
        }
        None => Found::Absent,
    };
    let status = match &found {
        Found::Object(found) if object::uid(found) == uid => status(found),
        Found::Object(_) => "another object has its name now".to_owned(),
        Found::Absent => "not there".to_owned(),
        Found::Unreadable => "not readable".to_owned(),
    };
    above.push(Owner { api_version, kind, name, uid, status, others: references.len() - 1 });
    if let Some(found) = found.object() {
        Box::pin(owners(reader, discovery, found, above)).await;
    }
}

/// A tree that is being made.
struct Growth<'a> {
    reader: &'a Reader<'a>,
    discovery: &'a Discovery,
    dependents: &'a Dependents,
    /// Of objects in the tree.
    uids: BTreeSet<String>,
}

impl Growth<'_> {
    async fn branch(&mut self, object: &Value, depth: usize) -> Branch {
        let mut branch = Branch {
            api_version: object::api_version(object).to_owned(),
            kind: object::kind(object).to_owned(),
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
            uid: object::uid(object).to_owned(),
            status: status(object),
            references: vec![],
            dependents: vec![],
            omitted: 0,
        };
        if !self.uids.insert(branch.uid.clone()) {
            return branch;
        }
        for reference in references(object) {
            branch.references.push(Mention {
                state: self.presence(&reference, &branch.namespace).await,
                api_version: reference.api_version.to_owned(),
                kind: reference.kind.to_owned(),
                name: reference.name,
                optional: reference.optional,
            });
        }
        let dependents = self.dependents;
        let below = dependents.of(&branch.uid);
        for (place, dependent) in below.iter().enumerate() {
            if depth >= DEPTH || self.uids.len() >= OBJECTS {
                branch.omitted = below.len() - place;
                break;
            }
            branch.dependents.push(Box::pin(self.branch(dependent, depth + 1)).await);
        }
        branch
    }

    async fn presence(&self, reference: &references::Reference, namespace: &str) -> Presence {
        let Some(resource) = self.discovery.of_kind(reference.api_version, reference.kind) else {
            return Presence::NotServed;
        };
        let namespace = if resource.namespaced { namespace } else { "" };
        match self.reader.get(&resource.path(namespace, &reference.name)).await {
            Found::Object(_) => Presence::Present,
            Found::Absent => Presence::Absent,
            Found::Unreadable => Presence::Unreadable,
        }
    }
}

/// What an object's state is, in a word, where it has one.
fn status(object: &Value) -> String {
    if object::deletion_timestamp(object).is_some() {
        return "being deleted".to_owned();
    }
    let phase = str_at(object, &["status", "phase"]);
    if !phase.is_empty() {
        return phase.to_owned();
    }
    let wanted = object::i64_at(object, &["spec", "replicas"]);
    wanted.map_or_else(String::new, |wanted| {
        let ready = object::i64_at(object, &["status", "readyReplicas"]).unwrap_or(0);
        format!("{ready}/{wanted} ready")
    })
}

/// ` (Running)`, or nothing.
fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, owner) in self.owners.iter().enumerate() {
            let more = match owner.others {
                0 => String::new(),
                others => format!(" (and {others} more owners)"),
            };
            let (kind, name, status) = (&owner.kind, &owner.name, in_brackets(&owner.status));
            writeln!(f, "{}{kind}/{name}{status}{more}", "  ".repeat(depth))?;
        }
        self.object.write(f, self.owners.len(), "* ")?;
        self.unknown.iter().try_for_each(|text| writeln!(f, "unknown: {text}"))
    }
}

impl Branch {
    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize, mark: &str) -> fmt::Result {
        let indent = "  ".repeat(depth);
        writeln!(f, "{indent}{mark}{}/{}{}", self.kind, self.name, in_brackets(&self.status))?;
        for mention in &self.references {
            let state = match (mention.state, mention.optional) {
                (Presence::Present, _) => "",
                (Presence::Absent, true) => " (not there, optional)",
                (Presence::Absent, false) => " (not there)",
                (Presence::Unreadable, _) => " (not readable)",
                (Presence::NotServed, _) => " (kind not served)",
            };
            writeln!(f, "{indent}  -> {}/{}{state}", mention.kind, mention.name)?;
        }
        self.dependents.iter().try_for_each(|dependent| dependent.write(f, depth + 1, ""))?;
        match self.omitted {
            0 => Ok(()),
            omitted => writeln!(f, "{indent}  ... {omitted} more dependents"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixture;
    use serde_json::json;

    fn owned(kind: &str, name: &str) -> Value {
        json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true}]})
    }

    #[tokio::test]
    async fn owners_dependents_and_references() {
        let server = fixture(&[
            json!({"kind": "Deployment", "name": "web", "spec": {"replicas": 1}, "status": {"readyReplicas": 1}}),
            json!({"kind": "ReplicaSet", "name": "web-1", "metadata": owned("Deployment", "web")}),
            json!({"kind": "Pod", "name": "web-1-a", "metadata": owned("ReplicaSet", "web-1"), "status": {"phase": "Running"},
                "spec": {"volumes": [{"configMap": {"name": "settings"}}, {"secret": {"secretName": "gone", "optional": true}}]}}),
            json!({"kind": "ConfigMap", "name": "settings"}),
        ]);
        let subject = Subject { kind: "replicaset".into(), name: "web-1".into() };
        let text = tree(&server, &subject, "d").await.unwrap();
        expect_test::expect![[r"
            Deployment/web (1/1 ready)
              * ReplicaSet/web-1
                Pod/web-1-a (Running)
                  -> ConfigMap/settings
                  -> Secret/gone (not there, optional)
        "]]
        .assert_eq(&text.to_string());
        let value = serde_json::to_value(&text).unwrap();
        assert_eq!(value["owners"][0]["status"], "1/1 ready");
        assert_eq!(value["object"]["dependents"][0]["uid"], "Pod-web-1-a");
        let mentions = &value["object"]["dependents"][0]["references"];
        assert_eq!((&mentions[0]["state"], &mentions[1]["state"]), (&json!("present"), &json!("absent")));
    }
}
