//! LocalSubjectAccessReviews.

use super::review::{AccessReviews, GROUP, Subject};
use crate::{Deps, shared::created};
use kaji_resource::{ResourceDef, Scope};

/// The definition of LocalSubjectAccessReviews.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks =
        AccessReviews { subject: Subject::NamedLocal, kind: "LocalSubjectAccessReview", deps: deps.clone() };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        Scope::Namespaced,
        created::COLUMNS,
        hooks,
    )
    .review()
}
