//! The kinds of certificates.k8s.io, one file each.

pub mod certificatesigningrequests;
pub mod clustertrustbundles;
mod pem;
pub mod podcertificaterequests;
mod request;

use crate::Deps;
use kaji_resource::ResourceDef;

/// Every resource of the group.
pub fn defs(deps: &Deps) -> Vec<ResourceDef> {
    vec![certificatesigningrequests::def(), clustertrustbundles::def(), podcertificaterequests::def(deps)]
}
