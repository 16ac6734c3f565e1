//! What several controllers share: claims by controller reference, revision histories, conditions, pods, endpoints, tolerations,
//! codes of syncs, the controllers that run.

pub mod bootstrap_tokens;
pub mod certificates;
pub mod conditions;
pub mod controller_ref;
pub mod discovery;
pub mod endpoints;
pub mod history;
pub mod pods;
pub mod protection;
pub mod publishing;
pub mod running;
pub mod template_hash;
pub mod tolerations;
pub mod workers;
