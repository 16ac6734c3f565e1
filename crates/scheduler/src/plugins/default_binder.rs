//! DefaultBinder: binds pods through the API's `binding` subresource, many of them together.

use super::Entry;
use crate::framework::{Bind, BindContext, Binding, CycleState, Outcome, Plugin, Points, Status};
use futures_util::future::BoxFuture;
use kaji_runtime::{Target, objects::Pod};
use serde_json::json;
use std::sync::Arc;

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "DefaultBinder",
    weight: 0,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(DefaultBinder);
        Points::of(&plugin).bind(&plugin)
    },
};

struct DefaultBinder;

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }
}

impl Bind for DefaultBinder {
    fn bind<'a>(
        &'a self,
        context: &'a BindContext,
        _state: &'a CycleState,
    ) -> BoxFuture<'a, Outcome<Binding>> {
        Box::pin(async move {
            let meta = &context.pod.pod.metadata;
            let body = json!({
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": context.node},
            });
            let target = Target::of::<Pod>(&meta.namespace, &meta.name).subresource("binding");
            let bound = context.binder.create(target, body).await;
            bound.map(|()| Binding::Bound).map_err(Status::error)
        })
    }
}
