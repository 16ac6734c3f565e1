//! Admission plugins of the server itself, in upstream's order. Source: kubernetes `plugin/pkg/admission`.
//!
//! Invariant: a plugin looks up what an object names only after the caches have caught up with all acknowledged writes.

mod accounts;
mod classes;
mod limits;
mod pod;
mod pods;
mod priority;
mod quota;

use kaji_auth::Authorizer;
use kaji_engine::{Admission, Attributes};
use kaji_meta::{GroupResource, Status};
use serde_json::Value;
use std::sync::Arc;

/// Every plugin that is on by default, as far as this server has it.
/// `authorizer` answers plugins that ask what a user may do.
pub fn plugins(_authorizer: &Arc<dyn Authorizer>) -> Vec<Arc<dyn Admission>> {
    vec![
        Arc::new(limits::LimitRanger),
        Arc::new(accounts::ServiceAccount),
        Arc::new(priority::Priority),
        Arc::new(pods::DefaultTolerationSeconds),
        Arc::new(classes::DefaultStorageClass),
        Arc::new(pods::RuntimeClass),
        Arc::new(classes::DefaultIngressClass),
        Arc::new(quota::ResourceQuota::new()),
    ]
}

/// Whether a write is to this resource itself, not to a subresource.
fn is(a: &Attributes<'_>, group: &str, resource: &str) -> bool {
    a.subresource.is_empty() && a.resource.resource == resource && a.resource.group == group
}

/// An object of the cluster by name.
async fn find(
    a: &Attributes<'_>,
    resource: &GroupResource,
    name: &str,
) -> Result<Option<Arc<Value>>, Status> {
    a.api.sync().await?;
    Ok(a.api.get(resource, "", name))
}
