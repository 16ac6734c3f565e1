//! The conversion stage of a write: between the request's version, the version that the pipeline works in, and the stored
//! one; by hooks or by a conversion webhook, which its callers do not distinguish.
//!
//! Field management is pure and does not wait, but needs objects in the versions that managers wrote. So it requests
//! conversions from this stage; one that only the webhook can make fails as missing, is then awaited, and field management
//! runs again.
//!
//! Invariants: a result is used only when no conversion was missing; each round adds a conversion (or an error) that was
//! missing before, so rounds end.

use super::Op;
use crate::{conversion, deadline::Deadline, decode, registry::Resource};
use kaji_meta::{Status, object};
use kaji_resource::VersionDef;
use kaji_store::Revision;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rounds of one computation. Each version that managers wrote needs a few.
const MAX_ROUNDS: usize = 64;

/// An object as stored, in the version that the pipeline works in, with its resourceVersion.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub object: Value,
    pub revision: Revision,
    /// The object as stored, if the pipeline works in the request's version and it is stored in another one.
    pub stored: Option<Value>,
    /// It is stored in a version that is not the storage version any more: even a write that changes nothing is made.
    pub migrate: bool,
}

/// Conversions by webhook that field management has requested.
#[derive(Default)]
struct Requested {
    done: Vec<Conversion>,
    missing: Vec<(Value, String)>,
}

struct Conversion {
    object: Value,
    api_version: String,
    outcome: Result<Value, Status>,
}

/// The conversions of one write.
pub(crate) struct ConversionStage<'a> {
    res: &'a Arc<Resource>,
    /// The request's version.
    version: &'a VersionDef,
    deadline: Deadline,
    /// Objects stay in the version that they are stored in, and no plugin runs: for removing objects of a resource that is
    /// being removed.
    pub raw: bool,
    /// `None` when the resource has no conversion webhook.
    requested: Option<Mutex<Requested>>,
}

impl<'a> ConversionStage<'a> {
    /// The stage of a write in one version of a resource.
    pub fn new(res: &'a Arc<Resource>, version: &'a VersionDef) -> Self {
        let requested = res.def.conversion.webhook().map(|_| Mutex::default());
        ConversionStage { res, version, deadline: Deadline::default(), raw: false, requested }
    }

    /// The same stage, which calls webhooks until the deadline.
    pub fn with_deadline(self, deadline: Deadline) -> Self {
        ConversionStage { deadline, ..self }
    }

    /// Brings an object of the storage version, after hooks have changed it, into the form that is stored.
    pub fn as_stored(&self, object: &mut Value) {
        decode::canonicalize(&self.res.storage_schema, object);
    }

    /// From the request's version to the one that the pipeline works in.
    pub fn to_hub(&self, object: &mut Value) -> Result<(), Status> {
        if self.res.def.conversion.direct() { Ok(()) } else { conversion::convert_in(self.res, object) }
    }

    /// Whether the pipeline works in the request's version.
    pub fn in_hub(&self) -> bool {
        self.res.def.conversion.direct() || self.is_storage()
    }

    /// Whether the stored form is also that of the request's version.
    pub fn is_storage(&self) -> bool {
        self.res.storage_api_version == self.res.api_version(&self.version.name)
    }

    /// An object of the pipeline in the request's version.
    pub fn in_version(&self, hub: &Value) -> Result<Value, Status> {
        let mut object = hub.clone();
        if !self.res.def.conversion.direct() {
            conversion::convert_out(self.res, &mut object, &self.version.name)?;
        }
        Ok(object)
    }

    /// An object of the pipeline as it is stored, if that is in another version.
    pub async fn stored_form(&self, hub: &Value) -> Result<Option<Value>, Status> {
        let res = self.res;
        if self.raw || !res.def.conversion.direct() || object::api_version(hub) == res.storage_api_version {
            return Ok(None);
        }
        let mut object = hub.clone();
        // The stored form has none: the store keeps it.
        object::meta_mut(&mut object).remove("resourceVersion");
        // Defaults of the storage version are for readers; those of the request's version are stored.
        self.converted(object, &res.storage_api_version).await.map(Some)
    }

    /// What a reader of this version sees of an object that is stored in another: a write answers with what was written,
    /// as it is read.
    pub async fn read_back(&self, mut form: Value) -> Result<Value, Status> {
        self.normalize(&mut form);
        self.converted(form, &self.res.api_version(&self.version.name)).await
    }

    /// An object in another version, by hooks or webhook, before the deadline.
    pub async fn converted(&self, object: Value, api_version: &str) -> Result<Value, Status> {
        self.deadline.within(conversion::convert_to(self.res, object, api_version)).await
    }

    /// Brings a stored object into the form that readers see.
    pub fn normalize(&self, object: &mut Value) {
        if let Some(normalizer) = self.res.def.hooks.normalizer() {
            normalizer.normalize(object);
        }
    }

    /// A stored object, which carries its resourceVersion, as the pipeline works on it.
    pub async fn state(&self, mut object: Value, revision: Revision) -> Result<State, Status> {
        let migrate = object::api_version(&object) != self.res.storage_api_version;
        if self.raw {
            return Ok(State { object, revision, migrate, stored: None });
        }
        if self.res.def.conversion.direct() {
            let here = self.res.api_version(&self.version.name);
            let stored = (object::api_version(&object) != here).then(|| object.clone());
            object = self.converted(object, &here).await?;
            return Ok(State { object, revision, migrate, stored });
        }
        if migrate {
            conversion::convert_in(self.res, &mut object)?;
        }
        Ok(State { object, revision, migrate, stored: None })
    }

    fn lock(requested: &Mutex<Requested>) -> MutexGuard<'_, Requested> {
        requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For field management: the object in another version of the resource. `None` if hooks convert it.
    ///
    /// # Errors
    /// What the webhook answered, or that the conversion is still missing; then [`ConversionStage::compute`] fetches it.
    pub fn converted_by_webhook(&self, object: &Value, api_version: &str) -> Option<Result<Value, Status>> {
        let mut requested = Self::lock(self.requested.as_ref()?);
        let same = |c: &&Conversion| c.api_version == api_version && c.object == *object;
        if let Some(conversion) = requested.done.iter().find(same) {
            return Some(conversion.outcome.clone());
        }
        requested.missing.push((object.clone(), api_version.to_owned()));
        Some(Err(Status::internal("a conversion is still missing")))
    }

    /// Fetches the conversions that were missing since the last call. Returns whether any was.
    async fn fetch(&self) -> bool {
        let Some(requested) = &self.requested else { return false };
        let missing = std::mem::take(&mut Self::lock(requested).missing);
        let any = !missing.is_empty();
        for (object, api_version) in missing {
            let outcome = self.converted(object.clone(), &api_version).await;
            Self::lock(requested).done.push(Conversion { object, api_version, outcome });
        }
        any
    }

    /// Computes something with field management, until no conversion is missing.
    ///
    /// # Errors
    /// Those of the computation.
    pub async fn compute<T>(&self, mut run: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
        for _ in 0..MAX_ROUNDS {
            let outcome = run();
            if !self.fetch().await {
                return outcome;
            }
        }
        Err(Status::internal("field management requests conversions without end"))
    }
}

/// Records the field managers of a new object.
///
/// # Errors
/// Those of field management, and of conversions for it.
pub(crate) async fn record_new(op: &Op<'_>, object: &mut Value) -> Result<(), Status> {
    if op.conversion.requested.is_none() {
        return super::manage::record(op, None, object);
    }
    let recorded = op.conversion.compute(|| {
        let mut new = object.clone();
        super::manage::record(op, None, &mut new).map(|()| new)
    });
    *object = recorded.await?;
    Ok(())
}
