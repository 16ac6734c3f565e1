//! Tests of the table of controllers: names, service accounts and components agree with the controllers' files.

use super::*;
use crate::testing::silent_client;
use kaji_auth::authz::policy;
use kaji_runtime::Informers;
use std::collections::{BTreeSet, HashSet};

/// Every controller in a process, with everything that a configuration can hold.
fn config() -> Config {
    let key = rcgen::KeyPair::generate().unwrap();
    let ca = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
    Config {
        root_ca: ca.pem(),
        authorities: Authorities::one(Arc::new(Authority::new(&ca.pem(), &key.serialize_pem()).unwrap())),
        token_signer: Some(Arc::new(kaji_auth::authn::SigningKey::from_pem(&key.serialize_pem()).unwrap())),
        node_ranges: Some(NodeRanges::new(&["10.0.0.0/8"], MaskSizes::default(), &[]).unwrap()),
        cloud: Some(Arc::new(cloud_provider::fake::FakeCloud::default())),
        features: kaji_meta::Features::ALL,
        ..Config::default()
    }
}

#[test]
fn names_and_components_are_unique() {
    let names: Vec<&str> = names().collect();
    let sorted: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), sorted.len());
    let components: Vec<&str> = CONTROLLERS.iter().flat_map(|d| d.components).copied().collect();
    assert_eq!(components.len(), components.iter().collect::<HashSet<_>>().len());
}

#[test]
fn service_accounts_are_bound_to_roles_of_the_default_policy() {
    let accounts: HashSet<&str> = policy::controller_accounts().collect();
    for descriptor in CONTROLLERS {
        match descriptor.service_account {
            Some(account) => assert!(accounts.contains(account), "{}: {account}", descriptor.name),
            // Upstream's tokens controller runs before any service account has a token: it uses the manager's own user.
            None => assert_eq!(descriptor.name, "serviceaccount-token-controller"),
        }
    }
}

#[tokio::test]
async fn reconcilers_have_the_components_of_their_descriptor() {
    let (informers, config) = (Informers::new(silent_client()), config());
    for descriptor in CONTROLLERS {
        let Start::Reconcilers(build) = descriptor.start else { continue };
        let built: BTreeSet<&str> = build(&informers, &config).iter().map(|c| c.name()).collect();
        let declared: BTreeSet<&str> = descriptor.components.iter().copied().collect();
        assert_eq!(built, declared, "{}", descriptor.name);
    }
}
