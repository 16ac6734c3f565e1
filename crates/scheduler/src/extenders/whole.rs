//! Pods and nodes with all of their fields, as extenders get them. Other parts of the scheduler read projections.
//!
//! Invariant: an object that informers do not show yet is read from the server, so that an extender is never sent another one.

use crate::{framework::Listers, pod_info::PodInfo};
use kaji_runtime::{Client, Error, Meta, ObjectSnapshot, Projection, Target};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, value::RawValue};
use std::{marker::PhantomData, sync::Arc};

/// Names a resource.
pub trait WholeResource: Send + Sync + 'static {
    /// Plural.
    const RESOURCE: &'static str;
    /// Kind.
    const KIND: &'static str;
}

/// Pods.
pub enum Pods {}
/// Nodes.
pub enum Nodes {}

impl WholeResource for Pods {
    const RESOURCE: &'static str = "pods";
    const KIND: &'static str = "Pod";
}

impl WholeResource for Nodes {
    const RESOURCE: &'static str = "nodes";
    const KIND: &'static str = "Node";
}

/// An object as the server has it, but for `managedFields`.
pub struct Whole<R> {
    meta: Meta,
    json: Box<RawValue>,
    of: PhantomData<fn() -> R>,
}

/// A pod.
pub type WholePod = Whole<Pods>;
/// A node.
pub type WholeNode = Whole<Nodes>;

impl<R> Whole<R> {
    /// The object's text.
    pub fn json(&self) -> &RawValue {
        &self.json
    }
}

impl<'de, R> Deserialize<'de> for Whole<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let meta = object.get("metadata").cloned().unwrap_or_default();
        let meta = kaji_meta::json::from_value(&meta).map_err(D::Error::custom)?;
        let json = serde_json::value::to_raw_value(&object).map_err(D::Error::custom)?;
        Ok(Whole { meta, json, of: PhantomData })
    }
}

impl<R: WholeResource> Projection for Whole<R> {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = R::RESOURCE;
    const KIND: &'static str = R::KIND;

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// A pod as a whole: the very one, not another of its name.
///
/// # Errors
/// It cannot be read, or is gone.
pub async fn pod(listers: &Listers, client: &Client, pod: &PodInfo) -> Result<Arc<WholePod>, Error> {
    let is = |whole: &WholePod| whole.meta.uid == pod.uid();
    if let Some(known) = listers.get::<WholePod>().by_key(&pod.key()).filter(|known| is(known)) {
        return Ok(known.clone());
    }
    let meta = &pod.pod.metadata;
    let target = Target::of::<WholePod>(&meta.namespace, &meta.name);
    let read: WholePod = client.get(&target.path()).await?;
    match is(&read) {
        true => Ok(Arc::new(read)),
        false => Err(Error::Decode(format!("pod {} was replaced by another one", pod.key()))),
    }
}

/// A node as a whole.
///
/// # Errors
/// It cannot be read, or is gone.
pub async fn node(
    known: &ObjectSnapshot<WholeNode>,
    client: &Client,
    name: &str,
) -> Result<Arc<WholeNode>, Error> {
    match known.get("", name) {
        Some(known) => Ok(known.clone()),
        None => client.get(&Target::of::<WholeNode>("", name).path()).await.map(Arc::new),
    }
}
