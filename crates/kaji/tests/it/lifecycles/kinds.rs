//! One small valid object of each kind.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the lifecycle of a kind is made with.
pub struct Kind {
    /// `group/version/resource`, the group empty for core.
    pub path: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Whether it lives in namespaces.
    pub namespaced: bool,
    /// An object without apiVersion, kind and name.
    pub body: Value,
    /// A change of its status, where that is a subresource.
    pub status: Option<Value>,
    /// The names of two objects.
    pub names: [&'static str; 2],
}

impl Kind {
    fn new(path: &'static str, kind: &'static str, body: Value) -> Self {
        let names = ["life-a", "life-b"];
        Kind { path, kind, namespaced: true, body, status: None, names }
    }

    fn cluster(self) -> Self {
        Kind { namespaced: false, ..self }
    }

    fn status(self, change: Value) -> Self {
        Kind { status: Some(change), ..self }
    }

    fn named(self, names: [&'static str; 2]) -> Self {
        Kind { names, ..self }
    }
}

fn condition(kind: &str) -> Value {
    json!({"conditions": [{"type": kind, "status": "False", "reason": "E2E", "message": "set by the test",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}]})
}

/// A list with one container in it.
fn containers() -> Value {
    json!([{"name": "c", "image": "registry.k8s.io/pause"}])
}

/// All of them.
pub fn all() -> Vec<Kind> {
    let mut all = core();
    all.extend(networking());
    all.extend(storage());
    all.extend(devices());
    all.extend(policies());
    all.extend(certificates());
    all.extend(workloads());
    all
}

fn core() -> Vec<Kind> {
    let event = json!({"involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Tested", "message": "m",
        "type": "Normal", "source": {"component": "t"}, "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z", "count": 1});
    let event_v1 = json!({"regarding": {"kind": "Pod", "name": "p"}, "reason": "Tested", "note": "n",
        "type": "Normal", "action": "Do", "reportingController": "test-controller",
        "reportingInstance": "test-node", "eventTime": "2026-01-02T03:04:05.000000Z"});
    let template =
        json!({"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers()}}});
    vec![
        Kind::new("/v1/configmaps", "ConfigMap", json!({"data": {"a": "b"}})),
        Kind::new("/v1/secrets", "Secret", json!({"data": {"a": "Yg=="}, "type": "Opaque"})),
        Kind::new("/v1/serviceaccounts", "ServiceAccount", json!({"automountServiceAccountToken": false})),
        Kind::new("/v1/events", "Event", event),
        Kind::new("events.k8s.io/v1/events", "Event", event_v1),
        Kind::new("/v1/podtemplates", "PodTemplate", template),
        Kind::new(
            "/v1/resourcequotas",
            "ResourceQuota",
            json!({"spec": {"hard": {"count/replicasets.apps": "5"}}}),
        )
        .status(json!({"hard": {"count/replicasets.apps": "5"}})),
        Kind::new(
            "/v1/limitranges",
            "LimitRange",
            json!({"spec": {"limits": [{"type": "Container",
            "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]}}),
        ),
        Kind::new("/v1/nodes", "Node", json!({"spec": {"unschedulable": true}}))
            .cluster()
            .status(json!({"phase": "Running"})),
        Kind::new(
            "coordination.k8s.io/v1/leases",
            "Lease",
            json!({"spec": {"holderIdentity": "h",
            "leaseDurationSeconds": 30, "leaseTransitions": 0}}),
        ),
    ]
}

fn networking() -> Vec<Kind> {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let endpoints = json!({"subsets": [{"addresses": [{"ip": "10.0.0.24"}], "ports": [{"port": 80}]}]});
    let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    vec![
        Kind::new("/v1/endpoints", "Endpoints", endpoints),
        Kind::new("discovery.k8s.io/v1/endpointslices", "EndpointSlice", slice),
        Kind::new(
            "/v1/services",
            "Service",
            json!({"spec": {"type": "LoadBalancer",
            "ports": [{"port": 80, "protocol": "TCP"}], "loadBalancerClass": "example.com/internal-vip"}}),
        )
        .status(json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "VIP"}]}})),
        Kind::new("networking.k8s.io/v1/ingresses", "Ingress", json!({"spec": {"defaultBackend": backend}}))
            .status(json!({"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}})),
        Kind::new(
            "networking.k8s.io/v1/ingressclasses",
            "IngressClass",
            json!({"spec": {"controller": "example.com/controller"}}),
        )
        .cluster(),
        Kind::new(
            "networking.k8s.io/v1/ipaddresses",
            "IPAddress",
            json!({"spec": {"parentRef":
            {"resource": "services", "namespace": "default", "name": "kubernetes"}}}),
        )
        .cluster()
        .named(["192.168.7.1", "192.168.7.2"]),
        Kind::new(
            "networking.k8s.io/v1/servicecidrs",
            "ServiceCIDR",
            json!({"spec": {"cidrs": ["10.196.196.0/24"]}}),
        )
        .cluster()
        .status(condition("Ready")),
    ]
}

fn storage() -> Vec<Kind> {
    let attachment = json!({"spec": {"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}}});
    vec![
        Kind::new(
            "storage.k8s.io/v1/storageclasses",
            "StorageClass",
            json!({"provisioner": "example.com/p"}),
        )
        .cluster(),
        Kind::new("storage.k8s.io/v1/csidrivers", "CSIDriver", json!({"spec": {"attachRequired": false}}))
            .cluster(),
        Kind::new("storage.k8s.io/v1/csinodes", "CSINode", json!({"spec": {"drivers": []}})).cluster(),
        Kind::new(
            "storage.k8s.io/v1/csistoragecapacities",
            "CSIStorageCapacity",
            json!({"storageClassName": "fast", "capacity": "1Gi"}),
        ),
        Kind::new("storage.k8s.io/v1/volumeattachments", "VolumeAttachment", attachment)
            .cluster()
            .status(json!({"attached": true})),
        Kind::new(
            "storagemigration.k8s.io/v1/storageversionmigrations",
            "StorageVersionMigration",
            json!({"spec": {"resource": {"group": "", "resource": "foo"}}}),
        )
        .cluster()
        .status(condition("Tested")),
    ]
}

fn devices() -> Vec<Kind> {
    let request =
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "example.com"}}]}});
    let allocated = json!({"devices": {"results": [{"request": "r", "driver": "example.com", "pool": "p", "device": "d"}]}});
    let taint = json!({"spec": {"deviceSelector": {"driver": "example.com"},
        "taint": {"key": "example.com/t", "effect": "NoSchedule"}}});
    let slice = json!({"spec": {"driver": "example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1,
        "resourceSliceCount": 1}, "devices": []}});
    vec![
        Kind::new("resource.k8s.io/v1/deviceclasses", "DeviceClass", json!({"spec": {}})).cluster(),
        Kind::new("resource.k8s.io/v1/devicetaintrules", "DeviceTaintRule", taint)
            .cluster()
            .status(condition("EvictionInProgress")),
        Kind::new("resource.k8s.io/v1/resourceclaims", "ResourceClaim", json!({"spec": request}))
            .status(json!({"allocation": allocated})),
        Kind::new(
            "resource.k8s.io/v1/resourceclaimtemplates",
            "ResourceClaimTemplate",
            json!({"spec": {"spec": request}}),
        ),
        Kind::new("resource.k8s.io/v1/resourceslices", "ResourceSlice", slice).cluster(),
    ]
}

fn policies() -> Vec<Kind> {
    let rules = json!({"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["deployments"]}]});
    let mutation = json!({"patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {\"a\": \"b\"}}}"}});
    vec![
        Kind::new("flowcontrol.apiserver.k8s.io/v1/flowschemas", "FlowSchema", json!({"spec": {
            "matchingPrecedence": 10_000, "priorityLevelConfiguration": {"name": "global-default"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "example-e2e"}}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}}))
        .cluster()
        .status(condition("Dangling")),
        Kind::new("flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", "PriorityLevelConfiguration",
            json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 2,
                "limitResponse": {"type": "Reject"}}}}))
        .cluster()
        .status(condition("Tested")),
        Kind::new("admissionregistration.k8s.io/v1/validatingadmissionpolicies", "ValidatingAdmissionPolicy",
            json!({"spec": {"matchConstraints": rules, "validations": [{"expression": "object.spec.replicas <= 1"}]}}))
        .cluster()
        .status(condition("Tested")),
        Kind::new("admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
            json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}))
        .cluster(),
        Kind::new("admissionregistration.k8s.io/v1/mutatingadmissionpolicies", "MutatingAdmissionPolicy",
            json!({"spec": {"matchConstraints": rules, "mutations": [mutation], "reinvocationPolicy": "Never"}}))
        .cluster(),
        Kind::new("admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding",
            json!({"spec": {"policyName": "p"}}))
        .cluster(),
        Kind::new("scheduling.k8s.io/v1/priorityclasses", "PriorityClass", json!({"value": 2})).cluster(),
        Kind::new("node.k8s.io/v1/runtimeclasses", "RuntimeClass", json!({"handler": "h"})).cluster(),
    ]
}

/// A certificate signing request for `CN=life`, made with openssl.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISk1IRUNBUUF3RHpFTk1Bc0dBMVVFQXd3RWJHbG1aVEJaTUJNR0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSApBMElBQkV3VlUzTUhINDl3MzdSZDAzQVp5Q3kveTZmOUFMdWdNTmE2MVVpL0tPS3pEZk5yY2lhVHBybityNThZCjR1RmdCdk5HRDZ3ckE2SkptUGpzYzViSXpLU2dBREFLQmdncWhrak9QUVFEQWdOSUFEQkZBaUJEeG1ocUpSNUYKVmtleXdQeWpoYUIyZ2lTY2llc1FORFVVakE5SnBrNVlEZ0loQU9Hd2c4amoxY1FQT285dEVFc1J3ayt5NjdYVApVeDhxOHUvSmQ5YnNDT0VVCi0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";

fn certificates() -> Vec<Kind> {
    let request = json!({"spec": {"request": REQUEST, "signerName": "example.com/e2e", "usages": ["digital signature"]}});
    vec![
        Kind::new("certificates.k8s.io/v1/certificatesigningrequests", "CertificateSigningRequest", request)
            .cluster()
            .status(json!({"conditions": [{"type": "Failed", "status": "True", "reason": "E2E", "message": "set by the test",
                "lastUpdateTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z"}]})),
        Kind::new(
            "certificates.k8s.io/v1/clustertrustbundles",
            "ClusterTrustBundle",
            json!({"spec": {"trustBundle": BUNDLE}}),
        )
        .cluster(),
        pod_certificate(),
    ]
}

/// A request for a pod's certificate, and the certificate, which must be fresh.
fn pod_certificate() -> Kind {
    let key = KeyPair::generate().unwrap();
    let stub = CertificateParams::default().serialize_request(&key).unwrap();
    let from = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - 60;
    let at = |after: u64| UNIX_EPOCH + Duration::from_secs(from + after);
    let text = |after: u64| jiff::Timestamp::try_from(at(after)).unwrap().to_string();
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (at(0).into(), at(3600).into());
    let condition = json!([{"type": "Issued", "status": "True", "reason": "E2E", "message": "set by the test",
        "lastTransitionTime": text(60)}]);
    Kind::new(
        "certificates.k8s.io/v1/podcertificaterequests",
        "PodCertificateRequest",
        json!({"spec": {"signerName": "example.com/e2e", "podName": "p", "podUID": "1", "serviceAccountName": "s",
            "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3", "maxExpirationSeconds": 86400,
            "stubPKCS10Request": BASE64_STANDARD.encode(stub.der())}}),
    )
    .status(json!({"certificateChain": params.self_signed(&key).unwrap().pem(), "notBefore": text(0),
        "notAfter": text(3600), "beginRefreshAt": text(900), "conditions": condition}))
}

/// A certificate that signs itself.
const BUNDLE: &str = "-----BEGIN CERTIFICATE-----\n\
    MIIBdTCCARugAwIBAgIUYVgza8XYWnL80Ykt0newV5rl7N8wCgYIKoZIzj0EAwIw\n\
    DzENMAsGA1UEAwwEbGlmZTAgFw0yNjExMjExNTIwMzlaGA8yMTI2MTAyODE1MjAz\n\
    OVowDzENMAsGA1UEAwwEbGlmZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABEwV\n\
    U3MHH49w37Rd03AZyCy/y6f9ALugMNa61Ui/KOKzDfNrciaTprn+r58Y4uFgBvNG\n\
    D6wrA6JJmPjsc5bIzKSjUzBRMB0GA1UdDgQWBBQEKZHkl+6iLAmuMHq5DjNo5pW2\n\
    2jAfBgNVHSMEGDAWgBQEKZHkl+6iLAmuMHq5DjNo5pW22jAPBgNVHRMBAf8EBTAD\n\
    AQH/MAoGCCqGSM49BAMCA0gAMEUCIDNNrfB2qaU/90mkT17hdCYWOFHxzykxubPb\n\
    RRjShVpnAiEAxo6oNsdYadQYSXgFgpzdCDqFHhXwOtw0ew0qld+eLGs=\n\
    -----END CERTIFICATE-----\n";

fn workloads() -> Vec<Kind> {
    let volume = json!({"name": "v", "csi": {"driver": "e2e.example.com", "readOnly": true, "volumeAttributes": {"a": "b"}}});
    let mounted = json!([{"name": "c", "image": "registry.k8s.io/pause", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers(), "restartPolicy": "OnFailure"}});
    vec![
        Kind::new("/v1/pods", "Pod", json!({"spec": {"containers": mounted, "volumes": [volume]}}))
            .status(json!({"phase": "Running", "message": "set by the test"})),
        Kind::new(
            "batch/v1/cronjobs",
            "CronJob",
            json!({"spec": {"schedule": "* */1 * * ?",
            "jobTemplate": {"spec": {"template": pod}}}}),
        )
        .status(json!({"lastScheduleTime": "2026-01-02T03:04:05Z"})),
    ]
}
