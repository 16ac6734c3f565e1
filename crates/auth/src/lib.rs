//! Who somebody is and what they may do: the parts of authentication and authorization that need no HTTP.

pub mod authn;
pub mod authz;
pub mod names;

pub use authz::{
    Always, Attributes, Authorizer, Decision, Grants, Masters, Outcome, PolicyRule, Rules, Union,
};
