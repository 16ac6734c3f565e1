//! A small cluster of test resources, and requests in one line.

use kaji_engine::{Accept, Admission, ApiRequest, Attributes, Engine, EngineOptions, Operation};
use kaji_meta::{GroupResource, GroupVersionKind, ManualClock, SeededRandom, Status, field, object};
use kaji_resource::{
    BoxFuture, CallHooks, CallRequest, ColumnSource, Ctx, DeleteOptions, DeletionHooks, FieldManagement,
    GarbageCollectionPolicy, Generation, Hooks, NoHooks, Reservation, ResourceDef, ScaleDef, Scope,
    SubresourceDef, SubresourceKind, UpdateOptions, UserInfo, Verb, VersionDef,
};
use kaji_schema::{Property, Props, Schema, SchemaRef, Type};
use kaji_store::memory::{MemoryOptions, MemoryStore};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

/// Reservations taken, committed and rolled back; objects gone.
#[derive(Default)]
pub struct Counters {
    pub taken: AtomicI64,
    pub committed: AtomicI64,
    pub rolled_back: AtomicI64,
    pub deleted: AtomicI64,
}

impl Counters {
    pub fn show(&self) -> String {
        let get = |c: &AtomicI64| c.load(Ordering::SeqCst);
        format!(
            "taken {} committed {} rolled back {} deleted {}",
            get(&self.taken),
            get(&self.committed),
            get(&self.rolled_back),
            get(&self.deleted)
        )
    }
}

struct Namespaces;

impl Hooks for Namespaces {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        object::set_at(object, &["spec", "finalizers"], json!(["kubernetes"]));
        object::set_at(object, &["status"], json!({"phase": "Active"}));
    }
}

impl DeletionHooks for Namespaces {
    fn marks_timestamp_only(&self) -> bool {
        true
    }

    fn mark_deleted(&self, _: &Ctx<'_>, object: &mut Value) {
        object::set_at(object, &["status", "phase"], "Terminating");
    }

    fn deletion_waits(&self, object: &Value) -> bool {
        !object::arr_at(object, &["spec", "finalizers"]).is_empty()
    }
}

struct Pods(Arc<Counters>);

impl Hooks for Pods {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn default(&self, _: &str, object: &mut Value) {
        if object::at(object, &["spec", "restartPolicy"]).is_none() {
            object::set_at(object, &["spec", "restartPolicy"], "Always");
        }
    }
    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        object::set_at(object, &["status"], json!({"phase": "Pending"}));
    }
    fn validate_create(&self, _: &Ctx<'_>, object: &Value) -> field::ErrorList {
        if object::arr_at(object, &["spec", "containers"]).is_empty() {
            return vec![field::Error::required(&field::Path::new("spec").child("containers"), "")];
        }
        vec![]
    }
    fn warnings(&self, _: &Ctx<'_>, new: &Value, _: Option<&Value>) -> Vec<String> {
        object::annotation(new, "warn").map(str::to_owned).into_iter().collect()
    }
    fn fills_in_reservations(&self) -> bool {
        true
    }
    fn reserve<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a mut Value,
        _: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<Option<Reservation>, Status>> {
        Box::pin(async move {
            if ctx.dry_run {
                return Ok(None);
            }
            self.0.taken.fetch_add(1, Ordering::SeqCst);
            object::set_at(new, &["spec", "hostname"], "reserved");
            let (commit, rollback) = (self.0.clone(), self.0.clone());
            Ok(Some(Reservation {
                commit: Box::pin(async move {
                    let _ = commit.committed.fetch_add(1, Ordering::SeqCst);
                }),
                rollback: Box::pin(async move {
                    let _ = rollback.rolled_back.fetch_add(1, Ordering::SeqCst);
                }),
            }))
        })
    }
    fn deleted<'a>(&'a self, _: &'a Ctx<'a>, _: &'a Value) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _ = self.0.deleted.fetch_add(1, Ordering::SeqCst);
        })
    }
}

impl DeletionHooks for Pods {
    fn grace_period(&self, _: &Ctx<'_>, _: &Value, options: &DeleteOptions) -> Option<i64> {
        Some(options.grace_period_seconds.unwrap_or(30))
    }
}

impl CallHooks for Pods {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            let node = object::str_at(&request.body, &["target", "name"]).to_owned();
            let pods = GroupResource::new("", "pods");
            let bind = move |pod: &mut Value| {
                object::set_at(pod, &["spec", "nodeName"], node.as_str());
                Ok(())
            };
            let options = UpdateOptions::new("", FieldManagement::Skip).dry_run(ctx.dry_run);
            ctx.api.update(&pods, ctx.namespace, ctx.name, options, &bind).await?;
            Ok((201, Status::success(201)))
        })
    }
}

struct Orphaning;

impl Hooks for Orphaning {}

struct Reviews;

impl Hooks for Reviews {
    fn calls(&self) -> &dyn CallHooks {
        self
    }
}

impl CallHooks for Reviews {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            let mut answer = request.body;
            object::set_at(
                &mut answer,
                &["status"],
                json!({"authenticated": true, "user": {"username": ctx.user.name}}),
            );
            Ok((201, answer))
        })
    }
}

struct Widgets;

impl Hooks for Widgets {
    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        // `v2` spells `size` as `length`.
        let (old, new) = if (from, to) == ("v1", "v2") { ("size", "length") } else { ("length", "size") };
        if let Some(v) = object::remove_at(object, &["spec", old]) {
            object::set_at(object, &["spec", new], v);
        }
        Ok(())
    }
    fn reset_fields(&self, _: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["status"]],
            "status" => &[&["metadata"], &["spec"]],
            _ => &[],
        }
    }
}

fn object_of(properties: Vec<(&str, Schema)>) -> Schema {
    let properties = properties.into_iter().map(|(n, s)| Property::new(n, s.into())).collect();
    Schema { properties: Some(Props::new(properties)), ..Schema::of(Type::Object) }
}

fn widget_schema(size: &str) -> SchemaRef {
    let colour = Schema { default: Some(Box::new(json!("red"))), ..Schema::of(Type::String) };
    let spec =
        vec![(size, Schema::of(Type::Integer)), ("colour", colour), ("replicas", Schema::of(Type::Integer))];
    let status = vec![("replicas", Schema::of(Type::Integer)), ("selector", Schema::of(Type::String))];
    object_of(vec![
        ("apiVersion", Schema::of(Type::String)),
        ("kind", Schema::of(Type::String)),
        ("metadata", Schema::of(Type::Object)),
        ("spec", object_of(spec)),
        ("status", object_of(status)),
    ])
    .into()
}

struct Mirrors;

impl Hooks for Mirrors {
    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        object::set_at(object, &["metadata", "annotations", "converted"], format!("{from} -> {to}"));
        Ok(())
    }
}

/// Config maps under another name, in the same place.
fn mirrors() -> ResourceDef {
    let def = ResourceDef::builtin("", "v1", "ConfigMap", "mirrors", Scope::Namespaced, &[], Mirrors);
    ResourceDef {
        group: "mirror.example.com".into(),
        shares_storage_of: Some(kaji_meta::GroupResource::new("", "configmaps")),
        ..def
    }
}

/// The custom resource of the tests; its second version may be the one that is stored.
pub fn widgets() -> ResourceDef {
    let scale = SubresourceDef {
        name: "scale".into(),
        kind: SubresourceKind::Scale(ScaleDef {
            spec_replicas: vec!["spec".into(), "replicas".into()],
            status_replicas: vec!["status".into(), "replicas".into()],
            selector: Some(vec!["status".into(), "selector".into()]),
        }),
        verbs: &[Verb::Get, Verb::Patch, Verb::Update],
    };
    let version = |name: &'static str, size| VersionDef {
        name: name.into(),
        served: true,
        deprecation: (name == "v2").then(|| "example.com/v2 Widget is deprecated".into()),
        schema: widget_schema(size),
        columns: ColumnSource::Paths(vec![]),
        selectable: vec![],
        subresources: vec![SubresourceDef::status(), scale.clone()],
    };
    ResourceDef {
        group: "example.com".into(),
        plural: "widgets".into(),
        singular: "widget".into(),
        kind: "Widget".into(),
        list_kind: "WidgetList".into(),
        short_names: vec![],
        categories: vec![],
        scope: Scope::Namespaced,
        versions: vec![version("v1", "size"), version("v2", "length")],
        storage: 0,
        verbs: Verb::ALL,
        stored: true,
        generation: Generation::Spec,
        shares_storage_of: None,
        ttl: None,
        validate_name: kaji_meta::validation::name_is_dns_subdomain,
        metadata_checks: kaji_resource::MetadataChecks::default(),
        storage_prefix: "example.com/widgets".into(),
        pod_template: None,
        allow_create_on_update: false,
        allow_unconditional_update: false,
        returns_deleted_object: false,
        garbage_collection: GarbageCollectionPolicy::DeleteDependents,
        writes_wait_for_caches: false,
        required_to_start: true,
        acknowledged_when_stored: false,
        is_own_namespace: false,
        undiscovered_verbs: &[],
        conversion: kaji_resource::Conversion::Hub,
        hooks: Arc::new(Widgets),
    }
}

fn defs(counters: &Arc<Counters>) -> Vec<ResourceDef> {
    use Scope::{Cluster, Namespaced};
    let binding =
        SubresourceDef::call("binding", GroupVersionKind::new("", "v1", "Binding"), &[Verb::Create]);
    vec![
        ResourceDef::builtin("", "v1", "Namespace", "namespaces", Cluster, &[], Namespaces)
            .return_deleted_object()
            .own_namespace()
            .sub(&[SubresourceDef::status(), SubresourceDef::update("finalize", &[Verb::Update])]),
        ResourceDef::builtin("", "v1", "ConfigMap", "configmaps", Namespaced, &[], NoHooks),
        ResourceDef::builtin("", "v1", "Pod", "pods", Namespaced, &[], Pods(counters.clone()))
            .sub(&[SubresourceDef::status(), binding])
            .with_generation(),
        ResourceDef::builtin("apps", "v1", "Deployment", "deployments", Namespaced, &[], NoHooks)
            .sub(&[SubresourceDef::status(), SubresourceDef::scale()])
            .with_generation(),
        ResourceDef::builtin("batch", "v1", "Job", "jobs", Namespaced, &[], Orphaning)
            .with_garbage_collection(GarbageCollectionPolicy::OrphanDependents)
            .named(|_, _| vec![]),
        ResourceDef::builtin("coordination.k8s.io", "v1", "Lease", "leases", Namespaced, &[], NoHooks)
            .create_on_update(),
        ResourceDef::builtin("", "v1", "Event", "events", Namespaced, &[], NoHooks)
            .expire(std::time::Duration::from_secs(3600)),
        ResourceDef::builtin(
            "authentication.k8s.io",
            "v1",
            "TokenReview",
            "tokenreviews",
            Cluster,
            &[],
            Reviews,
        )
        .review(),
        widgets(),
        mirrors(),
    ]
}

/// Refuses objects in namespaces that do not exist, as every cluster's first plugin does.
struct NamespaceExists;

impl Admission for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        writes && !a.namespace.is_empty() && a.resource.resource != "namespaces"
    }

    fn handles_unchanged(&self) -> bool {
        false
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let namespaces = GroupResource::new("", "namespaces");
            a.api.sync().await?;
            let found = a.api.get(&namespaces, "", a.namespace);
            found.map(drop).ok_or_else(|| Status::not_found(&namespaces, a.namespace))
        })
    }
}

/// A running engine.
pub struct Env {
    pub engine: Arc<Engine>,
    pub clock: Arc<ManualClock>,
    pub counters: Arc<Counters>,
}

/// One answer.
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Answer {
    /// Code and body, one key a line of the first two levels, then the warnings.
    pub fn show(&self) -> String {
        let mut out = format!("{}\n", self.code);
        let _ = writeln!(out, "{}", serde_json::to_string_pretty(&self.body).unwrap());
        for w in &self.warnings {
            let _ = writeln!(out, "warning: {w}");
        }
        out
    }

    /// Code, reason and message of a failure, or the resourceVersion of an object.
    pub fn brief(&self) -> String {
        let message = object::str_at(&self.body, &["message"]);
        let mut out = match object::kind(&self.body) {
            "Status" if self.code >= 300 => {
                format!("{} {}: {message}", self.code, object::str_at(&self.body, &["reason"]))
            }
            "Status" => format!("{} {}", self.code, self.body),
            kind => format!("{} {kind} {}", self.code, object::resource_version(&self.body)),
        };
        for w in &self.warnings {
            let _ = write!(out, "\nwarning: {w}");
        }
        out
    }
}

impl Env {
    pub async fn new() -> Env {
        Env::with(vec![Arc::new(NamespaceExists)]).await
    }

    pub async fn with(admission: Vec<Arc<dyn kaji_engine::Admission>>) -> Env {
        Env::on(MemoryOptions::default(), admission).await
    }

    pub async fn on(store: MemoryOptions, admission: Vec<Arc<dyn kaji_engine::Admission>>) -> Env {
        Env::over(Arc::new(MemoryStore::with_options(store).unwrap()), admission).await
    }

    pub async fn over(store: Arc<MemoryStore>, admission: Vec<Arc<dyn kaji_engine::Admission>>) -> Env {
        Env::configured(store, EngineOptions { admission, ..EngineOptions::default() }).await
    }

    pub async fn configured(store: Arc<MemoryStore>, options: EngineOptions) -> Env {
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let options =
            EngineOptions { clock: clock.clone(), random: Arc::new(SeededRandom::new(1)), ..options };
        let engine = Engine::open(store, options).await.unwrap();
        let counters = Arc::new(Counters::default());
        engine.register(defs(&counters)).await.unwrap();
        let env = Env { engine, clock, counters };
        let made = env.create("v1/namespaces", json!({"metadata": {"name": "default"}})).await;
        assert_eq!(made.code, 201, "{}", made.show());
        env
    }

    /// `path`: `v1/configmaps/default/x/status` or `apps/v1/...`, with a query after `?`; cluster-scoped without the
    /// namespace.
    pub fn request(&self, verb: Verb, path: &str, body: impl ToString) -> ApiRequest {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut parts: Vec<&str> = path.split('/').collect();
        let group = if parts[0].starts_with('v') && parts[0].len() == 2 { "" } else { parts.remove(0) };
        let (version, resource) = (parts.remove(0), parts.remove(0));
        let cluster = matches!(resource, "namespaces" | "tokenreviews");
        if cluster {
            parts.insert(0, "");
        }
        let part = |i: usize| parts.get(i).copied().unwrap_or("").to_owned();
        ApiRequest {
            verb,
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            namespace: part(0),
            name: part(1),
            subresource: part(2),
            subpath: String::new(),
            query: kaji_meta::Query::parse(query),
            accept: Accept::default(),
            content_type: "application/json".into(),
            body: body.to_string().into(),
            user: UserInfo { name: "alice".into(), ..UserInfo::default() },
            user_agent: "tester/1.0".into(),
            audit_id: String::new(),
            audit: None,
            memory: None,
            further_authorizer: None,
            deadline: Default::default(),
            webhooks: Default::default(),
            trace: None,
        }
    }

    pub async fn send(&self, request: ApiRequest) -> Answer {
        let response = self.engine.handle(request).await;
        let bytes = response.body.into_bytes().expect("no watch");
        let body = serde_json::from_slice(&bytes).unwrap();
        Answer { code: response.code, body, warnings: response.warnings }
    }

    pub async fn create(&self, path: &str, body: impl ToString) -> Answer {
        self.send(self.request(Verb::Create, path, body)).await
    }

    pub async fn put(&self, path: &str, body: impl ToString) -> Answer {
        self.send(self.request(Verb::Update, path, body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Verb::Get, path, "")).await
    }

    pub async fn delete(&self, path: &str, body: impl ToString) -> Answer {
        self.send(self.request(Verb::Delete, path, body)).await
    }

    /// `kind`: `json`, `merge`, `strategic` or `apply`.
    pub async fn patch(&self, kind: &str, path: &str, body: impl ToString) -> Answer {
        let content_type = match kind {
            "json" => "application/json-patch+json",
            "merge" => "application/merge-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            _ => "application/apply-patch+yaml",
        };
        self.send(ApiRequest { content_type: content_type.into(), ..self.request(Verb::Patch, path, body) })
            .await
    }
}
