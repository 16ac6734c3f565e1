//! Bindings, which exist only to be created for a pod.

use super::pods::binding;
use kaji_meta::{Status, object};
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Ctx, Hooks, ResourceDef, Scope};
use serde_json::Value;

/// The bindings resource: `create` binds the pod of the same name.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("", "v1", "Binding", "bindings", Scope::Namespaced, &[], Bindings).review()
}

struct Bindings;

impl Hooks for Bindings {
    fn calls(&self) -> &dyn CallHooks {
        self
    }
}

impl CallHooks for Bindings {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            let name = object::name(&request.body);
            binding::bind(ctx, name, &request.body).await
        })
    }
}
