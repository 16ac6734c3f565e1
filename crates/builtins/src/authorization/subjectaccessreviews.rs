//! SubjectAccessReviews.

use super::review::{AccessReviews, GROUP, Subject};
use crate::{Deps, shared::created};
use kaji_resource::{ResourceDef, Scope};

/// The definition of SubjectAccessReviews.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks = AccessReviews { subject: Subject::Named, kind: "SubjectAccessReview", deps: deps.clone() };
    ResourceDef::builtin(
        GROUP,
        "v1",
        "SubjectAccessReview",
        "subjectaccessreviews",
        Scope::Cluster,
        created::COLUMNS,
        hooks,
    )
    .review()
}
