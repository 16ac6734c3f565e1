//! The leases of nodes: renewed by updates, as upstream's kubelet renews its own.

use crate::kube_rs::until;
use k8s_openapi::api::coordination::v1::Lease;
use kaji_testenv::TestEnv;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;

/// The managers of the fields of a lease, with their operations.
fn managers(lease: &Lease) -> String {
    let entries = lease.metadata.managed_fields.iter().flatten();
    let entry = |e: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        format!("{} {}", text(&e.manager), text(&e.operation))
    };
    entries.map(entry).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn a_lease_is_renewed_by_updates_of_the_kubelet_and_made_again_when_it_is_deleted() {
    let env = TestEnv::builder().controllers(["*"]).nodes(1).virtual_clock().start().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(env.client(), "kube-node-lease");
    let time = |lease: Option<&Lease>| lease?.spec.as_ref()?.renew_time.clone();
    until(&leases, "sim-1", "a lease", |lease| lease.is_some()).await;
    let first = leases.get("sim-1").await.unwrap();
    assert_eq!(managers(&first), "kubelet Update");
    let owners = first.metadata.owner_references.as_deref().unwrap_or_default();
    assert_eq!(owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["sim-1"]);
    env.advance(Duration::from_secs(10)).unwrap();
    until(&leases, "sim-1", "a renewal", |lease| time(lease) > time(Some(&first))).await;
    assert_eq!(managers(&leases.get("sim-1").await.unwrap()), "kubelet Update");
    // What another client adds meanwhile stays: the update conflicts, and the lease is read.
    let body = Patch::Merge(json!({"metadata": {"annotations": {"note": "stays"}}}));
    let noted = leases.patch("sim-1", &PatchParams::apply("another"), &body).await.unwrap();
    env.advance(Duration::from_secs(10)).unwrap();
    until(&leases, "sim-1", "a renewal after a conflict", |lease| time(lease) > time(Some(&noted))).await;
    let renewed = leases.get("sim-1").await.unwrap();
    assert_eq!(renewed.metadata.annotations.unwrap_or_default()["note"], "stays");
    // One that is gone is made anew.
    leases.delete("sim-1", &DeleteParams::default()).await.unwrap();
    env.advance(Duration::from_secs(10)).unwrap();
    until(&leases, "sim-1", "another lease", |lease| {
        lease.is_some_and(|l| l.metadata.uid != first.metadata.uid)
    })
    .await;
    env.stop().await;
}
