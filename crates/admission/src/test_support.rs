//! Fixtures for tests of webhooks and policies: a cluster's objects, and requests about them.

use kaji_engine::{
    Annotations, Attributes, Deadline, Operation, Together, pipeline::options::OperationOptions,
};
use kaji_meta::{GroupResource, GroupVersionKind, GroupVersionResource, SeededRandom, Status, object};
use kaji_resource::{Api, BoxFuture, DeleteOptions, NoHooks, ResourceDef, Scope, UserInfo};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

type Never = Result<Value, Status>;

/// Objects and definitions.
#[derive(Default)]
pub(crate) struct Objects {
    pub objects: Vec<(GroupResource, Arc<Value>)>,
    /// Groups of definitions that share storage.
    pub shared: Vec<Arc<ResourceDef>>,
    /// Kinds of parameters, and whether they are in namespaces.
    pub kinds: Vec<(GroupVersionKind, GroupResource, bool)>,
}

impl Objects {
    pub fn put(&mut self, resource: &str, object: Value) {
        self.put_in("", resource, object);
    }

    /// The same of a group.
    pub fn put_in(&mut self, group: &str, resource: &str, object: Value) {
        self.objects.push((GroupResource::new(group, resource), Arc::new(object)));
    }
}

impl Api for Objects {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let is = |o: &Value| object::namespace(o) == namespace && object::name(o) == name;
        self.objects.iter().find(|(r, o)| r == resource && is(o)).map(|(_, o)| o.clone())
    }

    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let is = |o: &Value| namespace.is_none_or(|n| object::namespace(o) == n);
        self.objects.iter().filter(|(r, o)| r == resource && is(o)).map(|(_, o)| o.clone()).collect()
    }

    fn resource_of(&self, kind: &GroupVersionKind) -> Option<(GroupResource, bool)> {
        self.kinds
            .iter()
            .find(|(k, ..)| k == kind)
            .map(|(_, resource, namespaced)| (resource.clone(), *namespaced))
    }

    fn changed(&self, _: &GroupResource) -> u64 {
        self.objects.len() as u64
    }

    fn sharing(&self, group: &str, resource: &str) -> Vec<Arc<ResourceDef>> {
        let own = |d: &&Arc<ResourceDef>| d.group == group && d.plural == resource;
        if self.shared.iter().any(|d| own(&d)) { self.shared.clone() } else { vec![] }
    }

    fn create<'a>(&'a self, _: &'a GroupResource, _: &'a str, _: Value, _: bool) -> BoxFuture<'a, Never> {
        unreachable!("admission writes nothing")
    }

    fn update<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: bool,
        _: &'a (dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync),
    ) -> BoxFuture<'a, Never> {
        unreachable!("admission writes nothing")
    }

    fn delete<'a>(
        &'a self,
        _: &'a GroupResource,
        _: &'a str,
        _: &'a str,
        _: DeleteOptions,
    ) -> BoxFuture<'a, Never> {
        unreachable!("admission writes nothing")
    }
}

/// One request and what it is made in.
pub(crate) struct Request {
    pub api: Objects,
    pub def: ResourceDef,
    pub user: UserInfo,
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    pub subresource: &'static str,
    pub namespace: &'static str,
    pub name: &'static str,
    pub operation: Operation,
    pub old: Option<Value>,
    pub object: Option<Value>,
    pub dry_run: bool,
    pub again: Option<Box<kaji_engine::Reinvocation>>,
    pub warnings: Mutex<Vec<String>>,
    pub annotations: Annotations,
    pub together: Together,
    pub deadline: Deadline,
    pub random: SeededRandom,
}

impl Request {
    /// A creation of a config map `c` in namespace `n`, which has the label `team: a`.
    pub fn new() -> Request {
        let mut api = Objects::default();
        api.put("namespaces", json!({"metadata": {"name": "n", "labels": {"team": "a"}}}));
        let def = ResourceDef::builtin("", "v1", "ConfigMap", "configmaps", Scope::Namespaced, &[], NoHooks);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "n", "labels": {"app": "x"}}, "data": {"k": "v"}});
        Request {
            api,
            user: UserInfo { name: "alice".into(), ..UserInfo::default() },
            kind: def.gvk("v1"),
            resource: GroupVersionResource::new("", "v1", "configmaps"),
            def,
            subresource: "",
            namespace: "n",
            name: "c",
            operation: Operation::Create,
            old: None,
            object: Some(object),
            dry_run: false,
            again: None,
            warnings: Mutex::default(),
            annotations: Annotations::default(),
            together: Together::default(),
            deadline: Deadline::default(),
            random: SeededRandom::new(1),
        }
    }

    /// The same about an object of a built-in kind.
    pub fn of(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: Scope,
    ) -> Request {
        let def = ResourceDef::builtin(group, version, kind, plural, scope, &[], NoHooks);
        Request {
            kind: def.gvk(version),
            resource: GroupVersionResource::new(group, version, plural),
            namespace: if scope == Scope::Cluster { "" } else { "n" },
            def,
            ..Request::new()
        }
    }

    /// Calls `f` with the attributes.
    pub async fn with<T>(&mut self, f: impl AsyncFnOnce(&mut Attributes<'_>) -> T) -> T {
        let mut attributes = Attributes {
            user: &self.user,
            kind: &self.kind,
            resource: &self.resource,
            subresource: self.subresource,
            namespace: self.namespace,
            name: self.name,
            operation: self.operation,
            options: OperationOptions::None,
            old: self.old.as_ref(),
            object: self.object.as_mut(),
            dry_run: self.dry_run,
            inside: false,
            again: self.again.take(),
            def: &self.def,
            api: &self.api,
            warnings: &self.warnings,
            annotations: &self.annotations,
            together: &self.together,
            now: jiff::Timestamp::UNIX_EPOCH,
            deadline: self.deadline,
            random: &self.random,
        };
        f(&mut attributes).await
    }
}
