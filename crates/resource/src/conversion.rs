//! Conversion of a resource's objects between versions.
//!
//! Invariant: a converted object keeps its metadata, but for labels and annotations.

use crate::BoxFuture;
use kaji_meta::Status;
use serde_json::Value;
use std::sync::Arc;

/// A conversion webhook: a process outside this one, which may be slow or fail.
pub trait Converter: Send + Sync + 'static {
    /// Converts objects to a version (`example.com/v2`) that none of them is in. The objects may be of several versions.
    /// The answer has one object for each, in the same order, in that version, and with the metadata that it had (but
    /// for labels and annotations): the implementation ensures that, and the structure that the version's schema requires.
    ///
    /// # Errors
    /// Whatever is wrong, as clients are to see it.
    fn convert<'a>(
        &'a self,
        objects: Vec<Value>,
        api_version: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, Status>>;
}

/// How objects are converted, and in which version the pipeline of a write works.
#[derive(Clone, Default)]
pub enum Conversion {
    /// `Hooks::convert`; everything between a request and the store happens in the storage version, as it does to
    /// built-in kinds.
    #[default]
    Hub,
    /// `Hooks::convert`, at the store's edge: a request sees objects in its own version only, as it does of custom
    /// resources. Hooks are called with objects of the request's version, and `Hooks::reserve` changes nothing.
    Direct,
    /// As `Direct`, by a conversion webhook instead of `Hooks::convert`.
    Webhook(Arc<dyn Converter>),
}

impl Conversion {
    /// Whether a request sees objects in its own version only.
    pub fn direct(&self) -> bool {
        !matches!(self, Conversion::Hub)
    }

    /// The conversion webhook, if there is one.
    pub fn webhook(&self) -> Option<&Arc<dyn Converter>> {
        match self {
            Conversion::Webhook(converter) => Some(converter),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Refuses;

    impl Converter for Refuses {
        fn convert<'a>(&'a self, _: Vec<Value>, _: &'a str) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
            Box::pin(std::future::ready(Err(Status::internal("refused"))))
        }
    }

    #[test]
    fn only_a_hub_works_in_the_storage_version() {
        let webhook = Conversion::Webhook(Arc::new(Refuses));
        let (hub, direct) = (Conversion::default(), Conversion::Direct);
        assert_eq!([hub.direct(), direct.direct(), webhook.direct()], [false, true, true]);
        assert_eq!(
            [hub.webhook().is_some(), direct.webhook().is_some(), webhook.webhook().is_some()],
            [false, false, true]
        );
    }
}
