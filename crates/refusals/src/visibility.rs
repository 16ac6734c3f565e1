//! Which entries of a memory a user may see: those about objects that the user may read.
//!
//! Invariants: an answer shows at most [`SHOWN`] entries, the latest, and asks the authorizer at most as many questions.

use kaji_auth::{Attributes, Authorizer};
use kaji_decisions::About;
use kaji_resource::UserInfo;
use std::{collections::HashMap, sync::Arc};

/// Entries in one answer: each may be a question to an authorizer.
pub const SHOWN: usize = 500;

/// The entries that a user may see, of `entries` in their order: the user's own ones, and those about objects that the user may `get`
/// (`list` the resource, for an object without a name).
pub async fn visible<E>(
    authorizer: &Arc<dyn Authorizer>,
    user: &UserInfo,
    entries: impl IntoIterator<Item = E>,
    describe: impl Fn(&E) -> (About, bool),
) -> Vec<E> {
    let mut decided: HashMap<About, bool> = HashMap::new();
    let mut visible = vec![];
    for entry in entries {
        if visible.len() == SHOWN {
            break;
        }
        let (about, own) = describe(&entry);
        let allowed = match decided.get(&about) {
            _ if own => true,
            Some(allowed) => *allowed,
            None if decided.len() >= SHOWN => false,
            None => {
                let allowed = may_read(authorizer, user, &about).await;
                decided.insert(about, allowed);
                allowed
            }
        };
        if allowed {
            visible.push(entry);
        }
    }
    visible
}

async fn may_read(authorizer: &Arc<dyn Authorizer>, user: &UserInfo, about: &About) -> bool {
    let About { group, resource, namespace, name } = about;
    let verb = if name.is_empty() { "list" } else { "get" };
    let question = Attributes { namespace, name, ..Attributes::resource(user, verb, group, resource) };
    authorizer.authorize(&question).await.allowed()
}
