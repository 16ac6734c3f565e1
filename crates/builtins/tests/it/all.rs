//! What holds for every built-in kind.

use expect_test::expect;
use kaji_builtins::{Deps, all};
use kaji_meta::{ManualClock, SeededRandom};
use kaji_resource::{ColumnSource, GarbageCollectionPolicy, Generation, ResourceDef, Scope};
use serde_json::{Value, json};
use std::{fmt::Write as _, sync::Arc};

pub fn defs() -> Vec<ResourceDef> {
    let now = jiff::Timestamp::UNIX_EPOCH;
    all(&Deps::new(Arc::new(ManualClock::new(now)), Arc::new(SeededRandom::new(7))))
}

/// As `kubectl api-resources -o wide` lists them.
#[test]
fn serves_upstreams_resources() {
    let mut out = String::new();
    let mut defs = defs();
    defs.sort_by_key(|d| (d.group.to_string(), d.plural.to_string()));
    for d in &defs {
        let versions: Vec<_> = d.versions.iter().filter(|v| v.served).map(|v| v.name.to_string()).collect();
        let verbs: Vec<_> = d.verbs.iter().map(|v| v.as_str()).collect();
        let verbs = if d.verbs == kaji_resource::Verb::ALL { "*".to_owned() } else { verbs.join(",") };
        let subs: Vec<_> = d.storage_version().subresources.iter().map(|s| s.name.to_string()).collect();
        let scope = if d.scope == Scope::Namespaced { "ns" } else { "cluster" };
        writeln!(
            out,
            "{} [{}] {}/{} {scope} {} {} [{}] [{}]",
            d.plural,
            d.short_names.join(","),
            d.group,
            versions.join(","),
            d.kind,
            verbs,
            d.categories.join(","),
            subs.join(",")
        )
        .unwrap();
        assert_eq!(d.singular, d.kind.to_lowercase());
    }
    expect![[r#"
        bindings [] /v1 ns Binding create [] []
        componentstatuses [cs] /v1 cluster ComponentStatus get,list [] []
        configmaps [cm] /v1 ns ConfigMap * [] []
        endpoints [ep] /v1 ns Endpoints * [] []
        events [ev] /v1 ns Event * [] []
        limitranges [limits] /v1 ns LimitRange * [] []
        namespaces [ns] /v1 cluster Namespace create,delete,get,list,patch,update,watch [] [status,finalize]
        nodes [no] /v1 cluster Node * [] [status,proxy]
        persistentvolumeclaims [pvc] /v1 ns PersistentVolumeClaim * [] [status]
        persistentvolumes [pv] /v1 cluster PersistentVolume * [] [status]
        pods [po] /v1 ns Pod * [all] [status,ephemeralcontainers,resize,attach,binding,eviction,exec,log,portforward,proxy]
        podtemplates [] /v1 ns PodTemplate * [] []
        replicationcontrollers [rc] /v1 ns ReplicationController * [all] [status,scale]
        resourcequotas [quota] /v1 ns ResourceQuota * [] [status]
        secrets [] /v1 ns Secret * [] []
        serviceaccounts [sa] /v1 ns ServiceAccount * [] [token]
        services [svc] /v1 ns Service * [all] [status,proxy]
        mutatingadmissionpolicies [] admissionregistration.k8s.io/v1 cluster MutatingAdmissionPolicy * [api-extensions] []
        mutatingadmissionpolicybindings [] admissionregistration.k8s.io/v1 cluster MutatingAdmissionPolicyBinding * [api-extensions] []
        mutatingwebhookconfigurations [] admissionregistration.k8s.io/v1 cluster MutatingWebhookConfiguration * [api-extensions] []
        validatingadmissionpolicies [] admissionregistration.k8s.io/v1 cluster ValidatingAdmissionPolicy * [api-extensions] [status]
        validatingadmissionpolicybindings [] admissionregistration.k8s.io/v1 cluster ValidatingAdmissionPolicyBinding * [api-extensions] []
        validatingwebhookconfigurations [] admissionregistration.k8s.io/v1 cluster ValidatingWebhookConfiguration * [api-extensions] []
        customresourcedefinitions [crd,crds] apiextensions.k8s.io/v1 cluster CustomResourceDefinition * [api-extensions] [status]
        apiservices [] apiregistration.k8s.io/v1 cluster APIService * [api-extensions] [status]
        controllerrevisions [] apps/v1 ns ControllerRevision * [] []
        daemonsets [ds] apps/v1 ns DaemonSet * [all] [status]
        deployments [deploy] apps/v1 ns Deployment * [all] [status,scale]
        replicasets [rs] apps/v1 ns ReplicaSet * [all] [status,scale]
        statefulsets [sts] apps/v1 ns StatefulSet * [all] [status,scale]
        selfsubjectreviews [] authentication.k8s.io/v1 cluster SelfSubjectReview create [] []
        tokenreviews [] authentication.k8s.io/v1 cluster TokenReview create [] []
        localsubjectaccessreviews [] authorization.k8s.io/v1 ns LocalSubjectAccessReview create [] []
        selfsubjectaccessreviews [] authorization.k8s.io/v1 cluster SelfSubjectAccessReview create [] []
        selfsubjectrulesreviews [] authorization.k8s.io/v1 cluster SelfSubjectRulesReview create [] []
        subjectaccessreviews [] authorization.k8s.io/v1 cluster SubjectAccessReview create [] []
        horizontalpodautoscalers [hpa] autoscaling/v2,v1 ns HorizontalPodAutoscaler * [all] [status]
        cronjobs [cj] batch/v1 ns CronJob * [all] [status]
        jobs [] batch/v1 ns Job * [all] [status]
        certificatesigningrequests [csr] certificates.k8s.io/v1 cluster CertificateSigningRequest * [] [status,approval]
        clustertrustbundles [] certificates.k8s.io/v1 cluster ClusterTrustBundle * [] []
        podcertificaterequests [] certificates.k8s.io/v1 ns PodCertificateRequest * [] [status]
        leases [] coordination.k8s.io/v1 ns Lease * [] []
        endpointslices [] discovery.k8s.io/v1 ns EndpointSlice * [] []
        events [ev] events.k8s.io/v1 ns Event * [] []
        flowschemas [] flowcontrol.apiserver.k8s.io/v1 cluster FlowSchema * [] [status]
        prioritylevelconfigurations [] flowcontrol.apiserver.k8s.io/v1 cluster PriorityLevelConfiguration * [] [status]
        ingressclasses [] networking.k8s.io/v1 cluster IngressClass * [] []
        ingresses [ing] networking.k8s.io/v1 ns Ingress * [] [status]
        ipaddresses [ip] networking.k8s.io/v1 cluster IPAddress * [] []
        networkpolicies [netpol] networking.k8s.io/v1 ns NetworkPolicy * [] []
        servicecidrs [] networking.k8s.io/v1 cluster ServiceCIDR * [] [status]
        runtimeclasses [] node.k8s.io/v1 cluster RuntimeClass * [] []
        poddisruptionbudgets [pdb] policy/v1 ns PodDisruptionBudget * [] [status]
        clusterrolebindings [] rbac.authorization.k8s.io/v1 cluster ClusterRoleBinding * [] []
        clusterroles [] rbac.authorization.k8s.io/v1 cluster ClusterRole * [] []
        rolebindings [] rbac.authorization.k8s.io/v1 ns RoleBinding * [] []
        roles [] rbac.authorization.k8s.io/v1 ns Role * [] []
        deviceclasses [] resource.k8s.io/v1 cluster DeviceClass * [] []
        devicetaintrules [] resource.k8s.io/v1 cluster DeviceTaintRule * [] [status]
        resourceclaims [] resource.k8s.io/v1 ns ResourceClaim * [] [status]
        resourceclaimtemplates [] resource.k8s.io/v1 ns ResourceClaimTemplate * [] []
        resourceslices [] resource.k8s.io/v1 cluster ResourceSlice * [] []
        priorityclasses [pc] scheduling.k8s.io/v1 cluster PriorityClass * [] []
        csidrivers [] storage.k8s.io/v1 cluster CSIDriver * [] []
        csinodes [] storage.k8s.io/v1 cluster CSINode * [] []
        csistoragecapacities [] storage.k8s.io/v1 ns CSIStorageCapacity * [] []
        storageclasses [sc] storage.k8s.io/v1 cluster StorageClass * [] []
        volumeattachments [] storage.k8s.io/v1 cluster VolumeAttachment * [] [status]
        volumeattributesclasses [vac] storage.k8s.io/v1 cluster VolumeAttributesClass * [] []
        storageversionmigrations [] storagemigration.k8s.io/v1 cluster StorageVersionMigration * [] [status]
    "#]].assert_eq(&out);
}

#[test]
fn rows_have_a_cell_for_every_column() {
    for d in defs().into_iter().filter(|d| d.stored) {
        for v in &d.versions {
            let ColumnSource::Hooks(columns) = &v.columns else { panic!("{d:?} is built in") };
            let row = d.hooks.row(&v.name, &json!({"metadata": {"name": "x"}}), jiff::Timestamp::UNIX_EPOCH);
            assert_eq!(row.len(), columns.len(), "{d:?} {}", v.name);
        }
    }
}

/// Objects are of the right types when hooks see them; a hook must not depend on it.
#[test]
fn odd_objects_do_no_harm() {
    let odd = [
        Value::Null,
        json!([]),
        json!("text"),
        json!({"metadata": 1, "spec": 2, "status": [], "data": "x", "rules": 3, "webhooks": {"a": 1}, "subsets": [1]}),
        json!({"metadata": {"name": 5, "labels": [], "annotations": 7}, "spec": {"ports": {"a": 1}, "names": 5, "limits": [1],
            "devices": [], "versions": 1, "taints": 3, "rules": [1], "template": 5, "clusterIPs": 4, "conversion": 1}, "status": {"conditions": 1}}),
    ];
    for d in defs() {
        for v in &d.versions {
            for o in &odd {
                let mut object = o.clone();
                d.hooks.default(&v.name, &mut object);
                if v.name != d.storage_version().name {
                    let stored = &d.storage_version().name;
                    drop(d.hooks.convert(&mut object.clone(), &v.name, stored));
                    drop(d.hooks.convert(&mut object.clone(), stored, &v.name));
                }
                d.hooks.row(&v.name, &object, jiff::Timestamp::UNIX_EPOCH);
                d.hooks.deletion().deletion_waits(&object);
            }
        }
    }
}

/// Kinds for which a delete returns the object instead of a Status, as upstream's registries are set up.
#[test]
fn deletion_answers_with_the_object() {
    let mut kinds: Vec<String> =
        defs().iter().filter(|d| d.returns_deleted_object).map(|d| d.group_resource().to_string()).collect();
    kinds.sort();
    expect![[r#"
        ["csidrivers.storage.k8s.io", "csinodes.storage.k8s.io", "deviceclasses.resource.k8s.io", "namespaces", "persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "resourcequotas", "resourceslices.resource.k8s.io", "serviceaccounts", "services", "storageclasses.storage.k8s.io", "volumeattachments.storage.k8s.io", "volumeattributesclasses.storage.k8s.io"]"#]]
    .assert_eq(&format!("{kinds:?}"));
}

/// Kinds that count changes of their spec, those that begin with the first version of it, and kinds of which a PUT must
/// name the version that it changes.
#[test]
fn generations_and_unconditional_updates() {
    let names = |want: &dyn Fn(&ResourceDef) -> bool| {
        let mut names: Vec<String> =
            defs().iter().filter(|d| d.stored && want(d)).map(|d| d.plural.to_string()).collect();
        names.sort();
        names.join(" ")
    };
    expect!["cronjobs customresourcedefinitions daemonsets deployments deviceclasses devicetaintrules endpointslices flowschemas horizontalpodautoscalers ingressclasses ingresses jobs mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations networkpolicies poddisruptionbudgets pods podtemplates priorityclasses prioritylevelconfigurations replicasets replicationcontrollers resourceslices statefulsets validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations"].assert_eq(&names(&|d| d.generation == Generation::Spec));
    assert_eq!(names(&|d| d.generation == Generation::Changes), "csidrivers");
    expect!["apiservices clustertrustbundles csidrivers csinodes csistoragecapacities customresourcedefinitions devicetaintrules leases mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations podcertificaterequests poddisruptionbudgets runtimeclasses storageversionmigrations validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations volumeattachments"].assert_eq(&names(&|d| !d.allow_unconditional_update));
}

/// Which fields writers of each endpoint never own, as upstream's strategies say (`GetResetFields`). Kinds without a
/// status have nothing to say.
#[test]
fn fields_that_strategies_set_have_no_managers() {
    let mut out: Vec<String> = vec![];
    for d in defs().iter().filter(|d| d.stored && d.storage_version().has_status()) {
        for v in &d.versions {
            let of = |subresource: &str| {
                let mut paths: Vec<String> =
                    d.hooks.reset_fields(&v.name, subresource).iter().map(|path| path.join(".")).collect();
                paths.sort();
                paths.join(" ")
            };
            let others = v.subresources.iter().map(|s| s.name.as_ref());
            let others: String = others
                .filter(|s| *s != "status" && !of(s).is_empty())
                .map(|s| format!(" | {s}: {}", of(s)))
                .collect();
            out.push(format!("{} {}: {} | {}{others}", d.plural, v.name, of(""), of("status")));
        }
    }
    out.sort();
    expect![[r#"
        apiservices v1: status | metadata spec
        certificatesigningrequests v1: spec status | spec status.conditions | approval: spec status.certificate
        cronjobs v1: status | spec
        customresourcedefinitions v1: status | spec
        daemonsets v1: status | spec
        deployments v1: status | metadata.labels spec
        devicetaintrules v1: status | metadata spec
        devicetaintrules v1beta2: status | metadata spec
        flowschemas v1: status | metadata spec
        horizontalpodautoscalers v1: status | spec
        horizontalpodautoscalers v2: status | spec
        ingresses v1: status | spec
        jobs v1: status | spec
        namespaces v1: status | spec | finalize: status
        nodes v1: status | spec
        persistentvolumeclaims v1: status | spec
        persistentvolumes v1: status | spec
        podcertificaterequests v1:  | spec
        poddisruptionbudgets v1: status | spec
        pods v1: status | metadata.deletionTimestamp metadata.ownerReferences spec
        prioritylevelconfigurations v1: status | metadata spec
        replicasets v1: status | spec
        replicationcontrollers v1: status | spec
        resourceclaims v1: status | metadata spec
        resourceclaims v1beta1: status | metadata spec
        resourceclaims v1beta2: status | metadata spec
        resourcequotas v1: status | spec
        servicecidrs v1: status | metadata spec
        services v1: status | spec
        statefulsets v1: status | spec
        storageversionmigrations v1: status | metadata spec
        validatingadmissionpolicies v1: status | metadata spec
        volumeattachments v1: status | metadata spec"#]]
    .assert_eq(&out.join("\n"));
}

/// Only events expire; they own nothing.
#[test]
fn events_expire_and_are_no_owners() {
    for d in defs() {
        let (group, plural) = (d.group.as_ref(), d.plural.as_ref());
        let event = plural == "events";
        assert_eq!(d.ttl, event.then(|| std::time::Duration::from_secs(3600)), "{group}/{plural}");
        assert_eq!(d.garbage_collection == GarbageCollectionPolicy::Unsupported, event, "{group}/{plural}");
    }
}
