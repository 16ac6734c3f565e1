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

#[tokio::test]
async fn nothing_is_collected_where_a_flag_forbids_it() {
    let shared = kaji_runtime::Shared {
        client: silent_client(),
        clock: Arc::new(kaji_meta::time::SystemClock),
        random: Arc::new(kaji_meta::random::SystemRandom),
        decisions: None,
    };
    let informers = Informers::new(silent_client());
    for collects in [true, false] {
        let loops = LoopConfig { garbage_collector: collects, ..LoopConfig::default() };
        let config = Config { loops, ..Config::default() };
        let (_ends, stop) = tokio::sync::watch::channel(false);
        let context = ControllerContext { informers: &informers, shared: &shared, config: &config, stop };
        for descriptor in [garbage_collector::CONTROLLER, storage_version_migrator::CONTROLLER] {
            let mut tasks = JoinSet::new();
            descriptor.spawn(&mut tasks, &context);
            assert_eq!(tasks.is_empty(), !collects, "{}", descriptor.name);
        }
    }
}

/// The names of the metrics of all controllers that begin with such a letter.
fn metric_names(letter: impl Fn(char) -> bool) -> String {
    let (informers, config) = (Informers::new(silent_client()), config());
    let metrics = informers.metrics();
    for descriptor in CONTROLLERS {
        if let Start::Reconcilers(build) = descriptor.start {
            build(&informers, &config);
        }
    }
    // Those of controllers that start as tasks.
    metrics.declare(&garbage_collector::METRICS);
    metrics.declare(&horizontal_pod_autoscaler::METRICS);
    let names = metrics.names().into_iter().filter(|name| name.starts_with(&letter));
    names.map(|name| format!("{name}\n")).collect()
}

/// The names are upstream's, as its `test/instrumentation/documentation` lists them.
#[tokio::test]
async fn metrics_have_the_names_of_upstream() {
    expect_test::expect![[r#"
        attach_detach_controller_attachdetach_controller_forced_detaches
        attachdetach_controller_total_volumes
        clustertrustbundle_publisher_sync_duration_seconds
        clustertrustbundle_publisher_sync_total
        cronjob_controller_job_creation_skew_duration_seconds
        device_taint_eviction_controller_pod_deletion_duration_seconds
        device_taint_eviction_controller_pod_deletions_total
        endpoint_slice_controller_changes
        endpoint_slice_controller_desired_endpoint_slices
        endpoint_slice_controller_endpoints_added_per_sync
        endpoint_slice_controller_endpoints_desired
        endpoint_slice_controller_endpoints_removed_per_sync
        endpoint_slice_controller_endpointslices_changed_per_sync
        endpoint_slice_controller_num_endpoint_slices
        endpoint_slice_controller_services_count_by_traffic_distribution
        endpoint_slice_controller_syncs
        endpoint_slice_mirroring_controller_addresses_skipped_per_sync
        endpoint_slice_mirroring_controller_changes
        endpoint_slice_mirroring_controller_desired_endpoint_slices
        endpoint_slice_mirroring_controller_endpoints_added_per_sync
        endpoint_slice_mirroring_controller_endpoints_desired
        endpoint_slice_mirroring_controller_endpoints_removed_per_sync
        endpoint_slice_mirroring_controller_endpoints_sync_duration
        endpoint_slice_mirroring_controller_endpoints_updated_per_sync
        endpoint_slice_mirroring_controller_num_endpoint_slices
        ephemeral_volume_controller_create_failures_total
        ephemeral_volume_controller_create_total
        garbagecollector_controller_resources_sync_error_total
        horizontal_pod_autoscaler_controller_desired_replicas
        horizontal_pod_autoscaler_controller_metric_computation_duration_seconds
        horizontal_pod_autoscaler_controller_metric_computation_total
        horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers
        horizontal_pod_autoscaler_controller_reconciliation_duration_seconds
        horizontal_pod_autoscaler_controller_reconciliations_total
        horizontal_pod_autoscaler_controller_stale_sync_skips_total
    "#]]
    .assert_eq(&metric_names(|letter| letter < 'j'));
}

#[tokio::test]
async fn further_metrics_have_the_names_of_upstream() {
    expect_test::expect![[r#"
        job_controller_job_finished_indexes_total
        job_controller_job_pods_creation_total
        job_controller_job_pods_finished_total
        job_controller_job_sync_duration_seconds
        job_controller_job_syncs_total
        job_controller_jobs_by_external_controller_total
        job_controller_jobs_finished_total
        job_controller_pod_failures_handled_by_failure_policy_total
        job_controller_terminated_pods_tracking_finalizer_total
        node_collector_evictions_total
        node_collector_unhealthy_nodes_in_zone
        node_collector_update_all_nodes_health_duration_seconds
        node_collector_zone_health
        node_collector_zone_size
        node_controller_cloud_provider_taint_removal_delay_seconds
        node_controller_initial_node_sync_delay_seconds
        node_ipam_controller_cidrset_allocation_tries_per_request
        node_ipam_controller_cidrset_cidrs_allocations_total
        node_ipam_controller_cidrset_cidrs_releases_total
        node_ipam_controller_cidrset_usage_cidrs
        node_ipam_controller_cirdset_max_cidrs
        pod_gc_collector_force_delete_pod_errors_total
        pod_gc_collector_force_delete_pods_total
        pv_collector_bound_pv_count
        pv_collector_bound_pvc_count
        pv_collector_total_pv_count
        pv_collector_unbound_pv_count
        pv_collector_unbound_pvc_count
        replicaset_controller_sorting_deletion_age_ratio
        resourceclaim_controller_creates_total
        resourceclaim_controller_resource_claims
        retroactive_storageclass_errors_total
        retroactive_storageclass_total
        root_ca_cert_publisher_sync_duration_seconds
        root_ca_cert_publisher_sync_total
        route_controller_route_sync_total
        running_managed_controllers
        service_controller_loadbalancer_sync_total
        service_controller_nodesync_error_total
        service_controller_update_loadbalancer_host_latency_seconds
        statefulset_controller_statefulset_max_unavailable
        statefulset_controller_statefulset_unavailable_replicas
        storage_count_attachable_volumes_in_use
        taint_eviction_controller_pod_deletion_duration_seconds
        taint_eviction_controller_pod_deletions_total
        ttl_after_finished_controller_job_deletion_duration_seconds
        volume_operation_errors_total
        volume_operation_total_seconds
    "#]]
    .assert_eq(&metric_names(|letter| letter >= 'j'));
}
