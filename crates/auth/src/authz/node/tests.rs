//! What nodes may do, and in which words they may not.

use super::*;
use crate::authz::{policy, rbac::tests::Script, tests::ready};
use expect_test::expect;
use serde_json::json;

#[derive(Default)]
struct World {
    pods: Script,
    volumes: Script,
    attachments: Script,
    slices: Script,
    requests: Script,
}

impl World {
    fn authorizer(&self) -> Node {
        let feeds = Feeds {
            pods: Box::new(self.pods.clone()),
            volumes: Box::new(self.volumes.clone()),
            attachments: Box::new(self.attachments.clone()),
            slices: Box::new(self.slices.clone()),
            certificate_requests: Box::new(self.requests.clone()),
        };
        Node::new(feeds, policy::node_rules())
    }
}

fn kubelet(node: &str) -> UserInfo {
    UserInfo { name: format!("{NODE_PREFIX}{node}"), groups: vec![NODES.into()], ..UserInfo::default() }
}

/// Asks `verb group/resource[/subresource] [namespace]/[name] [field selector]`.
fn ask(node: &Node, user: &UserInfo, question: &str) -> String {
    let mut words = question.split(' ');
    let [verb, what, place, selector] = [0; 4].map(|_| words.next().unwrap_or_default());
    let mut what = what.split('/');
    let [group, resource, subresource] = [0; 3].map(|_| what.next().unwrap_or_default());
    let (namespace, name) = place.split_once('/').unwrap_or_default();
    let labels = selector.strip_prefix("labels:").and_then(|s| kaji_meta::labels::Selector::parse(s).ok());
    let selector = (!selector.is_empty() && labels.is_none())
        .then(|| kaji_meta::fields::Selector::parse(selector).ok())
        .flatten();
    let a = Attributes {
        subresource,
        namespace,
        name,
        field_selector: selector.as_ref(),
        label_selector: labels.as_ref(),
        ..Attributes::resource(user, verb, group, resource)
    };
    let outcome = ready(node.authorize(&a));
    if outcome.allowed() { "yes".into() } else { format!("no: {}", outcome.reason) }
}

#[test]
fn pods_authorize_their_references() {
    let world = World::default();
    let pod = json!({
        "spec": {
            "nodeName": "a",
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"envFrom": [{"secretRef": {"name": "env-from"}}, {"configMapRef": {"name": "cm-from"}}]}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}]}],
            "ephemeralContainers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "cm-env"}}}]}],
            "volumes": [
                {"name": "v", "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "cm-projected"}}]}},
                {"name": "w", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "e", "ephemeral": {}},
                {"name": "s", "secret": {"secretName": "mounted"}},
            ],
            "resourceClaims": [{"name": "r", "resourceClaimName": "direct"}, {"name": "t", "resourceClaimTemplateName": "x"}],
        },
        "status": {"resourceClaimStatuses": [{"name": "t", "resourceClaimName": "made"}]},
    });
    world.pods.put("n/p", Some(pod.clone()));
    world.volumes.put("/pv", Some(json!({"spec": {
        "claimRef": {"namespace": "n", "name": "claim"},
        "csi": {"nodeStageSecretRef": {"namespace": "m", "name": "stage"}, "controllerPublishSecretRef": {"namespace": "m", "name": "hidden"}},
        "azureFile": {"secretName": "azure"},
    }})));
    let node = world.authorizer();
    let reached = [
        "get /pods n/p",
        "get /secrets n/pull",
        "list /secrets n/env-from",
        "watch /secrets n/env",
        "get /secrets n/projected",
        "get /secrets n/mounted",
        "get /configmaps n/cm-from",
        "get /configmaps n/cm-env",
        "get /configmaps n/cm-projected",
        "get /serviceaccounts n/sa",
        "create /serviceaccounts/token n/sa",
        "get /persistentvolumeclaims n/claim",
        "patch /persistentvolumeclaims/status n/claim",
        "get /persistentvolumeclaims n/p-e",
        "get /persistentvolumes /pv",
        "get /secrets m/stage",
        "get /secrets n/azure",
        "get resource.k8s.io/resourceclaims n/direct",
        "get resource.k8s.io/resourceclaims n/made",
    ];
    for question in reached {
        assert_eq!(ask(&node, &kubelet("a"), question), "yes", "{question}");
        assert!(
            ask(&node, &kubelet("b"), question).starts_with("no: no relationship found between node 'b'"),
            "{question}"
        );
    }
    for question in ["get /secrets n/other", "get /secrets m/pull", "get /secrets m/hidden", "get /pods n/q"]
    {
        assert!(ask(&node, &kubelet("a"), question).starts_with("no: "), "{question}");
    }
    let mut mirror = pod.clone();
    mirror["metadata"] = json!({"annotations": {"kubernetes.io/config.mirror": "x"}});
    world.pods.put("n/p", Some(mirror));
    assert_eq!(ask(&node, &kubelet("a"), "get /pods n/p"), "yes");
    assert!(ask(&node, &kubelet("a"), "get /secrets n/pull").starts_with("no"));
    world.pods.put("n/p", Some(pod.clone()));
    world.pods.put("n/q", Some(pod));
    world.pods.put("n/p", None);
    assert_eq!(ask(&node, &kubelet("a"), "get /secrets n/pull"), "yes", "another pod still needs it");
    world.pods.put("n/q", None);
    assert!(reached.iter().all(|q| ask(&node, &kubelet("a"), q).starts_with("no")));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn node_may_write_its_own_objects() {
    let world = World::default();
    world.attachments.put("/va", Some(json!({"spec": {"nodeName": "a"}})));
    world.slices.put("/slice", Some(json!({"spec": {"nodeName": "a"}})));
    world.requests.put("n/pcr", Some(json!({"spec": {"nodeName": "a"}})));
    let node = world.authorizer();
    let questions = [
        "get /nodes /a",
        "get /nodes /b",
        "list /nodes",
        "list /nodes /a",
        "create /nodes",
        "patch /nodes/status /a",
        "delete /nodes /a",
        "list /pods",
        "list /pods / spec.nodeName=a",
        "list /pods / spec.nodeName=b",
        "list /pods / spec.nodeName!=a",
        "create /pods n/",
        "patch /pods/status n/p",
        "create /pods/eviction n/p",
        "update /pods n/p",
        "create /pods/binding n/p",
        "get coordination.k8s.io/leases kube-node-lease/a",
        "update coordination.k8s.io/leases kube-node-lease/b",
        "list coordination.k8s.io/leases kube-node-lease/",
        "get coordination.k8s.io/leases default/a",
        "create coordination.k8s.io/leases kube-node-lease/",
        "get storage.k8s.io/csinodes /a",
        "get storage.k8s.io/csinodes /b",
        "list storage.k8s.io/csinodes",
        "get storage.k8s.io/csinodes/x /a",
        "get storage.k8s.io/volumeattachments /va",
        "list storage.k8s.io/volumeattachments",
        "get resource.k8s.io/resourceslices /slice",
        "list resource.k8s.io/resourceslices",
        "list resource.k8s.io/resourceslices / spec.nodeName=a",
        "get certificates.k8s.io/podcertificaterequests n/pcr",
        "list certificates.k8s.io/podcertificaterequests",
        "delete certificates.k8s.io/podcertificaterequests n/pcr",
        "list /secrets",
        "list /secrets n/",
        "delete /secrets n/s",
        "list /persistentvolumes",
        "list /persistentvolumes / labels:kaji.dev/local-path-node=a",
        "watch /persistentvolumes / labels:x=y,kaji.dev/local-path-node=a",
        "list /persistentvolumes / labels:kaji.dev/local-path-node=b",
        "list /persistentvolumes / labels:kaji.dev/local-path-node!=a",
        "list /persistentvolumes / labels:kaji.dev/local-path-node",
        "delete /persistentvolumes / labels:kaji.dev/local-path-node=a",
        "list /persistentvolumes /v labels:kaji.dev/local-path-node=a",
        "create /serviceaccounts n/sa",
        "list /services",
        "create /events n/",
        "list apps/deployments",
        "create authorization.k8s.io/subjectaccessreviews",
    ];
    let answers: Vec<String> =
        questions.iter().map(|q| format!("{q}: {}", ask(&node, &kubelet("a"), q))).collect();
    expect![[r#"
        get /nodes /a: yes
        get /nodes /b: no: node 'a' cannot read 'b', only its own Node object
        list /nodes: no: node 'a' cannot read all nodes, only its own Node object
        list /nodes /a: yes
        create /nodes: yes
        patch /nodes/status /a: yes
        delete /nodes /a: no: 
        list /pods: no: can only list/watch pods with spec.nodeName field selector
        list /pods / spec.nodeName=a: yes
        list /pods / spec.nodeName=b: no: can only list/watch pods with spec.nodeName field selector
        list /pods / spec.nodeName!=a: no: can only list/watch pods with spec.nodeName field selector
        create /pods n/: yes
        patch /pods/status n/p: yes
        create /pods/eviction n/p: yes
        update /pods n/p: no: 
        create /pods/binding n/p: no: 
        get coordination.k8s.io/leases kube-node-lease/a: yes
        update coordination.k8s.io/leases kube-node-lease/b: no: can only access node lease with the same name as the requesting node
        list coordination.k8s.io/leases kube-node-lease/: no: can only get, create, update, patch, or delete a node lease
        get coordination.k8s.io/leases default/a: no: can only access leases in the "kube-node-lease" system namespace
        create coordination.k8s.io/leases kube-node-lease/: yes
        get storage.k8s.io/csinodes /a: yes
        get storage.k8s.io/csinodes /b: no: can only access CSINode with the same name as the requesting node
        list storage.k8s.io/csinodes: no: can only get, create, update, patch, or delete a CSINode
        get storage.k8s.io/csinodes/x /a: no: cannot authorize CSINode subresources
        get storage.k8s.io/volumeattachments /va: yes
        list storage.k8s.io/volumeattachments: no: can only get individual resources of this type
        get resource.k8s.io/resourceslices /slice: yes
        list resource.k8s.io/resourceslices: no: can only list/watch/deletecollection resourceslices with nodeName field selector
        list resource.k8s.io/resourceslices / spec.nodeName=a: yes
        get certificates.k8s.io/podcertificaterequests n/pcr: yes
        list certificates.k8s.io/podcertificaterequests: no: can only list/watch podcertificaterequests with nodeName field selector
        delete certificates.k8s.io/podcertificaterequests n/pcr: no: nodes may not delete podcertificaterequests
        list /secrets: no: can only read namespaced object of this type
        list /secrets n/: no: No Object name found
        delete /secrets n/s: no: can only read resources of this type
        list /persistentvolumes: no: can only get individual resources of this type
        list /persistentvolumes / labels:kaji.dev/local-path-node=a: yes
        watch /persistentvolumes / labels:x=y,kaji.dev/local-path-node=a: yes
        list /persistentvolumes / labels:kaji.dev/local-path-node=b: no: can only get individual resources of this type
        list /persistentvolumes / labels:kaji.dev/local-path-node!=a: no: can only get individual resources of this type
        list /persistentvolumes / labels:kaji.dev/local-path-node: no: can only get individual resources of this type
        delete /persistentvolumes / labels:kaji.dev/local-path-node=a: no: can only get individual resources of this type
        list /persistentvolumes /v labels:kaji.dev/local-path-node=a: no: can only get individual resources of this type
        create /serviceaccounts n/sa: no: can only create token subresource of serviceaccount
        list /services: yes
        create /events n/: yes
        list apps/deployments: no: 
        create authorization.k8s.io/subjectaccessreviews: yes"#]].assert_eq(&answers.join("\n"));
}

#[test]
fn identifies_nodes_by_name_and_group() {
    let node = World::default().authorizer();
    let outside_group = UserInfo { name: "system:node:a".into(), ..UserInfo::default() };
    assert_eq!(ask(&node, &outside_group, "get /nodes /a"), "no: ");
    assert_eq!(ask(&node, &kubelet(""), "get /nodes /a"), r#"no: unknown node for user "system:node:""#);
    assert!(ready(node.rules(&kubelet("a"), "n")).incomplete);
    assert!(!ready(node.rules(&outside_group, "n")).incomplete);
}
