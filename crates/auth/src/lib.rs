//! Authentication and authorization, without the parts that need HTTP.

pub mod authn;
pub mod authz;
pub mod cluster_info;
pub mod names;
pub mod public_keys;

pub use authz::{
    Always, Attributes, Authorizer, Decision, Grants, Masters, Outcome, PolicyRule, Rules, Union,
};
