//! Admission: plugins that may change or refuse a write before it is made.
//!
//! Invariants: mutating plugins run in order, each seeing what those before it did; validating ones run on the object as
//! it will be stored; dry runs go through all of them.

mod annotations;
mod chain;
mod extras;
mod reinvocation;

use crate::{deadline::Deadline, options, webhook_time::WebhookTime};
use kaji_meta::{GroupResource, GroupVersionKind, GroupVersionResource, Random, Status, object, text};
use kaji_resource::{Api, BoxFuture, ResourceDef, UserInfo};
use serde_json::Value;
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

pub use annotations::Annotations;
pub(crate) use chain::Chain;
pub use chain::Phases;
pub use extras::{ExtraUpdate, TransactionExtras};
pub use reinvocation::Reinvocation;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new object, or a POST to a subresource.
    Create,
    /// A change of an object, by PUT or PATCH, also through a subresource.
    Update,
    /// Removal, or its beginning.
    Delete,
    /// A stream to a subresource (`exec`, `proxy`, …).
    Connect,
}

impl Operation {
    /// `CREATE`, as webhooks and policies spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write, as plugins see it.
///
/// `object` and `old` are in the storage version of `def` (plugins that need another one convert), except for `scale`
/// and for subresources with a separate body, where they are that body and `kind` is its kind.
pub struct Attributes<'a> {
    /// The user of the request.
    pub user: &'a UserInfo,
    /// The kind in the request's version (`autoscaling/v1 Scale` for scale, `policy/v1 Eviction` for eviction, …).
    pub kind: &'a GroupVersionKind,
    /// The resource in the request's version.
    pub resource: &'a GroupVersionResource,
    /// `""` for the main resource.
    pub subresource: &'a str,
    /// `""` for cluster-scoped objects. Of a namespace, its own name.
    pub namespace: &'a str,
    /// `""` while a generated name is not known yet, and for deletions of whole collections.
    pub name: &'a str,
    /// What is being done.
    pub operation: Operation,
    /// The options of the request.
    pub options: options::OperationOptions<'a>,
    /// The stored object; `None` on create.
    pub old: Option<&'a Value>,
    /// The object to be stored; `None` on delete. Validating plugins only read it.
    pub object: Option<&'a mut Value>,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// Made by the server itself, as part of another request that was admitted or as it starts: what others have
    /// configured (webhooks, policies) is not asked about it.
    pub internal: bool,
    /// Whether and why mutating plugins run twice; there during that phase, from the first plugin on that notes something.
    pub reinvocation: Option<Box<Reinvocation>>,
    /// The definition of the resource.
    pub def: &'a ResourceDef,
    /// Other objects.
    pub api: &'a dyn Api,
    /// Texts for the `Warning` header.
    pub warnings: &'a Mutex<Vec<String>>,
    /// What the audit log is to say about this write.
    pub annotations: &'a Annotations,
    /// What the transaction has to do with other objects; for validating plugins, and never on dry run.
    pub extras: &'a TransactionExtras,
    /// The time of the request.
    pub now: jiff::Timestamp,
    /// Until when plugins may wait.
    pub deadline: Deadline,
    /// Counts the time of webhooks.
    pub webhooks: &'a WebhookTime,
    /// Randomness.
    pub random: &'a dyn Random,
}

impl Attributes<'_> {
    /// `deployments.apps`
    pub fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }

    /// The object that is to be stored, to be read.
    pub fn new_object(&self) -> Option<&Value> {
        self.object.as_deref()
    }

    /// Adds a text for the `Warning` header.
    pub fn warn(&self, text: impl Into<String>) {
        warn(self.warnings, text.into());
    }

    /// Upstream's `admission.NewForbidden`: 403 about this object, by the best name there is.
    pub fn forbidden(&self, reason: impl std::fmt::Display) -> Status {
        let from_object = |v: &Value| match (object::name(v), object::generate_name(v)) {
            ("", "") => "Unknown".to_owned(),
            ("", base) => base.to_owned(),
            (name, _) => name.to_owned(),
        };
        let name = match (self.name, self.new_object()) {
            ("", Some(v)) => from_object(v),
            ("", None) => "Unknown".to_owned(),
            (name, _) => name.to_owned(),
        };
        Status::forbidden(&self.group_resource(), &name, reason)
    }

    /// `resource "name"` for log and message texts.
    pub fn describe(&self) -> String {
        format!("{} {}", self.group_resource(), text::quote(self.name))
    }
}

/// An admission plugin.
pub trait Admission: Send + Sync + 'static {
    /// Its name, as `--enable-admission-plugins` spells it.
    fn name(&self) -> &'static str;

    /// In which phases it may act on an operation on a resource, whatever the object. Called once for each, and kept.
    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource, operation);
        Phases::BOTH
    }

    /// In which phases metrics name it: fewer than it acts in where upstream's plugin of this name acts in fewer.
    fn measured_phases(&self) -> Phases {
        Phases::BOTH
    }

    /// Whether it acts on this write; [`Admission::phases`] accepts its resource and operation. Cheap; called before each
    /// of its phases.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// Whether it must see updates that change nothing. False for plugins that only look at the request's target.
    fn handles_unchanged(&self) -> bool {
        true
    }

    /// Whether it runs what users have configured (webhooks, policies) rather than code of this server: only then
    /// `metadata.managedFields` is validated after it.
    fn dynamic(&self) -> bool {
        false
    }

    /// Changes or refuses the write.
    fn admit<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let _ = attributes;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Refuses the write, seeing it as it will be stored.
    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let _ = attributes;
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Observes how long the plugins of a phase took together.
pub trait AdmissionSteps: Send + Sync + 'static {
    /// The mutating phase of a request's write has ended, or the validating one.
    fn ended(&self, validating: bool, operation: Operation, rejected: bool, took: Duration);
}

/// Adds a text for the `Warning` header, once. A webhook may send very many: what is beyond any header is dropped.
pub(crate) fn warn(warnings: &Mutex<Vec<String>>, text: String) {
    const MOST: usize = 256;
    if let Ok(mut all) = warnings.lock()
        && all.len() < MOST
        && !all.contains(&text)
    {
        all.push(text);
    }
}

/// Whether any plugin handles this write.
pub(crate) fn handled(chain: &Chain, attributes: &Attributes<'_>) -> bool {
    chain.of(attributes).all().any(|plugin| plugin.handles(attributes))
}

/// Whether a plugin that may damage managed fields handles this write.
pub(crate) fn handled_dynamically(chain: &Chain, attributes: &Attributes<'_>) -> bool {
    let selected = chain.of(attributes);
    selected.mutating.iter().any(|plugin| plugin.dynamic() && plugin.handles(attributes))
}

/// Whether any plugin must see an update that changes nothing.
pub(crate) fn handles_unchanged(chain: &Chain, attributes: &Attributes<'_>) -> bool {
    chain.of(attributes).all().any(|plugin| plugin.handles_unchanged() && plugin.handles(attributes))
}

/// Runs the mutating phase.
pub(crate) async fn admit(chain: &Chain, attributes: &mut Attributes<'_>) -> Result<(), Status> {
    let since = Instant::now();
    let outcome = attributes.deadline.within(mutate(chain, attributes)).await;
    observe(chain, attributes, false, outcome.is_err(), since);
    outcome
}

/// What the server writes itself was admitted with the request that it is part of.
fn observe(chain: &Chain, attributes: &Attributes<'_>, validating: bool, rejected: bool, since: Instant) {
    if let Some(steps) = chain.steps.as_ref().filter(|_| !attributes.internal) {
        steps.ended(validating, attributes.operation, rejected, since.elapsed());
    }
}

async fn mutate(chain: &Chain, attributes: &mut Attributes<'_>) -> Result<(), Status> {
    let plugins = chain.of(attributes);
    for plugin in &plugins.mutating {
        if plugin.handles(attributes) {
            plugin.admit(attributes).await?;
        }
    }
    if !attributes.reinvocation.as_mut().is_some_and(|again| again.begin()) {
        return Ok(());
    }
    // What a webhook or policy has changed is shown to all of them once more.
    for plugin in &plugins.mutating {
        if plugin.handles(attributes) {
            plugin.admit(attributes).await?;
        }
    }
    Ok(())
}

/// Runs the validating phase.
pub(crate) async fn validate(chain: &Chain, attributes: &Attributes<'_>) -> Result<(), Status> {
    let plugins = chain.of(attributes);
    let check = async {
        for plugin in &plugins.validating {
            if plugin.handles(attributes) {
                plugin.validate(attributes).await?;
            }
        }
        Ok(())
    };
    let since = Instant::now();
    let outcome = attributes.deadline.within(check).await;
    observe(chain, attributes, true, outcome.is_err(), since);
    outcome
}
