//! Fixtures for tests of webhooks and policies: a cluster's objects, and requests about them.

use crate::Deps;
use kaji_auth::Union;
use kaji_engine::{
    Annotations, Attributes, Deadline, Operation, TransactionExtras, options::OperationOptions,
};
use kaji_meta::{GroupResource, GroupVersionKind, GroupVersionResource, SeededRandom};
use kaji_resource::{NoHooks, ResourceDef, Scope, UserInfo, testing::FakeApi};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// What plugins get besides objects: an authorizer without opinions.
pub(crate) fn deps() -> Deps {
    Deps::new(Arc::new(Union(vec![])), Arc::default(), Arc::default())
}

/// One request and what it is made in.
pub(crate) struct Request {
    pub api: FakeApi,
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
    pub reinvocation: Option<Box<kaji_engine::Reinvocation>>,
    pub warnings: Mutex<Vec<String>>,
    pub annotations: Annotations,
    pub extras: TransactionExtras,
    pub deadline: Deadline,
    pub webhooks: kaji_engine::WebhookTime,
    pub random: SeededRandom,
}

impl Request {
    /// A creation of a config map `c` in namespace `n`, which has the label `team: a`.
    pub fn new() -> Request {
        let api = FakeApi::default();
        api.put(
            &GroupResource::new("", "namespaces"),
            json!({"metadata": {"name": "n", "labels": {"team": "a"}}}),
        );
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
            reinvocation: None,
            warnings: Mutex::default(),
            annotations: Annotations::default(),
            extras: TransactionExtras::default(),
            deadline: Deadline::default(),
            webhooks: kaji_engine::WebhookTime::default(),
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
            internal: false,
            reinvocation: self.reinvocation.take(),
            def: &self.def,
            api: &self.api,
            warnings: &self.warnings,
            annotations: &self.annotations,
            extras: &self.extras,
            now: jiff::Timestamp::UNIX_EPOCH,
            deadline: self.deadline,
            webhooks: &self.webhooks,
            random: &self.random,
        };
        f(&mut attributes).await
    }
}
