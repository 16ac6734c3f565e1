//! From a request to the verb that serves it.
//!
//! Invariant: a write runs to its end even when the caller's future is dropped meanwhile, so that what it has reserved is
//! either committed or released: [`Engine::handle`] spawns it, [`Engine::handle_to_completion`] leaves that to the caller.
//! Both are boxed: the future of an `async fn` would be compiled, with all verbs, in each crate that awaits it.

use crate::{
    attribution, audit::AuditContext, decode, encode, engine::Engine, registry::Resource,
    request::ApiRequest, response::ApiResponse, verbs,
};
use kaji_meta::{GroupResource, Status, validation::path_segment_name};
use kaji_resource::{BoxFuture, SubresourceKind, Verb};
use std::sync::Arc;

impl Engine {
    /// Serves a request, a write in a task. Every error becomes the response.
    ///
    /// # Panics
    /// When the request's handler does.
    pub fn handle(self: &Arc<Self>, req: ApiRequest) -> BoxFuture<'_, ApiResponse> {
        Box::pin(async move {
            if matches!(req.verb, Verb::Get | Verb::List | Verb::Watch) {
                return self.handle_to_completion(req).await;
            }
            let (engine, audit) = (self.clone(), req.audit.clone());
            let write = tokio::spawn(async move { engine.handle_to_completion(req).await });
            match write.await.map_err(tokio::task::JoinError::try_into_panic) {
                Ok(response) => response,
                Err(Ok(panic)) => {
                    audit.iter().for_each(|a| a.panicked());
                    std::panic::resume_unwind(panic)
                }
                Err(Err(_)) => Status::service_unavailable("the server is shutting down").into(),
            }
        })
    }

    /// Serves a request in the caller's task. The future of a write has to be polled to its end: a caller with a future that
    /// may be dropped spawns a task.
    ///
    /// # Panics
    /// When the request's handler does.
    pub fn handle_to_completion(self: &Arc<Self>, mut req: ApiRequest) -> BoxFuture<'_, ApiResponse> {
        let parent = req.trace.take();
        let work = Box::pin(async move {
            let Some(res) = self.registry().lookup(&req.group, &req.version, &req.resource).cloned() else {
                return Status::generic_not_found().into();
            };
            match req.accept.settle(has_protobuf(&res, &req)) {
                Some(accept) => req.accept = accept,
                None => return encode::no_such_form().into(),
            }
            let deprecation = res.def.version(&req.version).and_then(|v| v.deprecation.clone());
            if let (Some(text), Some(audit)) = (&deprecation, &req.audit) {
                note_deprecation(text, &**audit);
            }
            if let Err(status) = decode::check_footprint(&req.content_type, &req.body) {
                return status.into();
            }
            let served =
                attribution::within(self.options.attributions.as_ref(), &req, serve(self, &res, &req));
            let mut response = served.await.unwrap_or_else(ApiResponse::from);
            if let Some(text) = deprecation {
                response.warnings.insert(0, text.into_owned());
            }
            response
        });
        match parent {
            None => work,
            parent => Box::pin(kaji_traces::within(parent, work)),
        }
    }
}

/// Upstream's annotations about a version that is going to be removed.
fn note_deprecation(text: &str, audit: &dyn AuditContext) {
    audit.annotate("k8s.io/deprecated", "true");
    if let Some(release) = removed_release(text) {
        audit.annotate("k8s.io/removed-release", release);
    }
}

/// The release in which a deprecated version is removed, if its warning names one.
pub fn removed_release(warning: &str) -> Option<&str> {
    warning.split_once("unavailable in v")?.1.split(['+', ' ', ',', ';']).next()
}

/// Whether what a request is about has a protobuf form: built-in kinds, and the Scale of anything.
fn has_protobuf(res: &Resource, req: &ApiRequest) -> bool {
    let Some(version) = res.def.version(&req.version) else { return false };
    let sub = version.subresource(&req.subresource);
    !decode::is_custom(&version.schema) || sub.is_some_and(|s| matches!(s.kind, SubresourceKind::Scale(_)))
}

/// Futures of verbs other than GET are large, and futures are moved several times before they run: they are boxed.
async fn serve(engine: &Arc<Engine>, res: &Arc<Resource>, req: &ApiRequest) -> Result<ApiResponse, Status> {
    let def = &res.def;
    let version = def.version(&req.version).ok_or_else(Status::generic_not_found)?;
    if !def.namespaced() && !req.namespace.is_empty() {
        return Err(Status::generic_not_found());
    }
    let sub = match req.subresource.as_str() {
        "" => None,
        name => Some(version.subresource(name).ok_or_else(Status::generic_not_found)?),
    };
    let verbs = sub.map_or(def.verbs, |s| s.verbs);
    if !verbs.contains(&req.verb) {
        return Err(method_not_allowed());
    }
    // Of a namespaced resource, only lists and watches span namespaces.
    if def.namespaced() && req.namespace.is_empty() && !matches!(req.verb, Verb::List | Verb::Watch) {
        return Err(if req.name.is_empty() { method_not_allowed() } else { Status::generic_not_found() });
    }
    let streams =
        sub.is_some_and(|s| matches!(s.kind, SubresourceKind::Call { .. } | SubresourceKind::Connect { .. }));
    if req.verb == Verb::Get && !streams && req.query.flag("export") == Some(true) {
        let text = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(Status::bad_request(text));
    }
    if def.stored && !req.name.is_empty() && !matches!(req.verb, Verb::List | Verb::Watch | Verb::Create) {
        let wrong = path_segment_name(&req.name, false);
        if !wrong.is_empty() {
            let name = kaji_meta::text::quote(&req.name);
            let why = wrong.join(";");
            return Err(Status::bad_request(format!("Name parameter invalid: {name}: {why}")));
        }
    }
    // A deletion may be one of an object that cannot be read: it looks itself.
    if def.stored
        && !(sub.is_none() && req.verb == Verb::Delete)
        && let Err(status) = res.readable()
    {
        return Err(match (sub, req.verb) {
            (None, Verb::List) => Box::pin(verbs::unreadable::named(engine, res, req, status)).await,
            _ => status,
        });
    }
    match sub.map(|s| &s.kind) {
        None if !def.stored => Box::pin(verbs::call::call(engine, res, req)).await,
        None => main(engine, res, req).await,
        Some(SubresourceKind::Scale(_)) => Box::pin(verbs::scale::scale(engine, res, req)).await,
        Some(SubresourceKind::Call { .. }) => Box::pin(verbs::call::call(engine, res, req)).await,
        Some(SubresourceKind::Connect { .. }) => Box::pin(verbs::connect::connect(engine, res, req)).await,
        Some(SubresourceKind::Status | SubresourceKind::Update) => match req.verb {
            Verb::Get => verbs::get::get(engine, res, req).await,
            Verb::Update => Box::pin(verbs::update::update(engine, res, req)).await,
            Verb::Patch => Box::pin(verbs::patch::patch(engine, res, req)).await,
            _ => Err(method_not_allowed()),
        },
    }
}

async fn main(engine: &Arc<Engine>, res: &Arc<Resource>, req: &ApiRequest) -> Result<ApiResponse, Status> {
    match req.verb {
        Verb::Get => verbs::get::get(engine, res, req).await,
        Verb::List => Box::pin(verbs::list::list(engine, res, req)).await,
        Verb::Watch => Box::pin(verbs::watch::watch(engine, res, req)).await,
        Verb::Create => Box::pin(verbs::create::create(engine, res, req)).await,
        Verb::Update => Box::pin(verbs::update::update(engine, res, req)).await,
        Verb::Patch => Box::pin(verbs::patch::patch(engine, res, req)).await,
        Verb::Delete => Box::pin(verbs::delete::delete(engine, res, req)).await,
        Verb::DeleteCollection => Box::pin(verbs::deletecollection::deletecollection(engine, res, req)).await,
    }
}

fn method_not_allowed() -> Status {
    Status::generic(405, "", &GroupResource::default(), "", "")
}
