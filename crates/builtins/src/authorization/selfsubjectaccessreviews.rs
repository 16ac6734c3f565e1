//! SelfSubjectAccessReviews.

use super::review::{AccessReviews, GROUP, Subject};
use crate::{Deps, shared::created};
use kaji_resource::{ResourceDef, Scope};

/// The definition of SelfSubjectAccessReviews.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks =
        AccessReviews { subject: Subject::Caller, kind: "SelfSubjectAccessReview", deps: deps.clone() };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        Scope::Cluster,
        created::COLUMNS,
        hooks,
    )
    .review()
}
