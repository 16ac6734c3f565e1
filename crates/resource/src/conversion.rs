//! How objects of a resource get from one version to another.

use crate::BoxFuture;
use kaji_meta::Status;
use serde_json::Value;
use std::sync::Arc;

/// Somebody else who converts objects, and may be slow or fail.
pub trait Converter: Send + Sync + 'static {
    /// Converts objects to a version (`example.com/v2`) that none of them is in. The objects may be of several versions.
    /// The answer has one object for each, in the same order, in that version, and with the metadata that it had (but
    /// for labels and annotations): whoever implements this sees to that, and to the shape that the version's schema asks
    /// for.
    ///
    /// # Errors
    /// Whatever is wrong, as clients are to see it.
    fn convert<'a>(
        &'a self,
        objects: Vec<Value>,
        api_version: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, Status>>;
}

/// Who converts, and in which version the pipeline of a write works.
#[derive(Clone, Default)]
pub enum Conversion {
    /// `Hooks::convert`; everything between a request and the store happens in the storage version, as it does to
    /// built-in kinds.
    #[default]
    Hub,
    /// `Hooks::convert`, at the store's edge: a request sees objects in its own version only, as it does of custom
    /// resources. Hooks are called with objects of the request's version, and `Hooks::reserve` changes nothing.
    Direct,
    /// The same, by somebody else.
    Foreign(Arc<dyn Converter>),
}

impl Conversion {
    /// Whether a request sees objects in its own version only.
    pub fn direct(&self) -> bool {
        !matches!(self, Conversion::Hub)
    }

    /// Who else converts, if it is somebody else.
    pub fn foreign(&self) -> Option<&Arc<dyn Converter>> {
        match self {
            Conversion::Foreign(converter) => Some(converter),
            _ => None,
        }
    }
}
