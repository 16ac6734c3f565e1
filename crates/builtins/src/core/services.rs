//! Services: cluster IPs, IP families and node ports are filled in when the write is about to be committed.

mod addresses;
mod allocate;
mod families;
mod ports;
mod proxied;
mod validate;

use crate::{
    Deps,
    shared::{
        metadata,
        net::{cidr_warnings, ip_warnings},
        rules,
        table::{age, labels, name},
        value::{Fields, copy_field, default_text, drop_field, ensure_object, list_mut, put, set_default},
    },
};
use allocate::{Allocators, node_ports};
use families::{same_families, same_ips};
use kaji_meta::{
    GroupResource, GroupVersionKind, Status,
    field::{ErrorList, Path},
    object, validation,
};
use kaji_resource::{
    BoxFuture, CallHooks, Carries, Column, ConnectRequest, Ctx, DeleteOptions, Hooks, Location, Reservation,
    ResourceDef, Scope, SelectableField, SubresourceDef, Verb, age_column, name_column,
};
pub use ports::ports_of;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

const EXTERNAL_NAME: &str = "ExternalName";

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Type",
        "string",
        0,
        "type determines how the Service is exposed. Defaults to ClusterIP. Valid options are ExternalName, ClusterIP, NodePort, and LoadBalancer. \"ClusterIP\" allocates a cluster-internal IP address for load-balancing to endpoints. Endpoints are determined by the selector or if that is not specified, by manual construction of an Endpoints object or EndpointSlice objects. If clusterIP is \"None\", no virtual IP is allocated and the endpoints are published as a set of endpoints rather than a virtual IP. \"NodePort\" builds on ClusterIP and allocates a port on every node which routes to the same endpoints as the clusterIP. \"LoadBalancer\" builds on NodePort and creates an external load-balancer (if supported in the current cloud) which routes to the same endpoints as the clusterIP. \"ExternalName\" aliases this service to the specified externalName. Several other fields do not apply to ExternalName services. More info: https://kubernetes.io/docs/concepts/services-networking/service/#publishing-services-service-types",
    ),
    Column::new(
        "Cluster-IP",
        "string",
        0,
        "clusterIP is the IP address of the service and is usually assigned randomly. If an address is specified manually, is in-range (as per system configuration), and is not in use, it will be allocated to the service; otherwise creation of the service will fail. This field may not be changed through updates unless the type field is also being changed to ExternalName (which requires this field to be blank) or the type field is being changed from ExternalName (in which case this field may optionally be specified, as describe above).  Valid values are \"None\", empty string (\"\"), or a valid IP address. Setting this to \"None\" makes a \"headless service\" (no virtual IP), which is useful when direct endpoint connections are preferred and proxying is not required.  Only applies to types ClusterIP, NodePort, and LoadBalancer. If this field is specified when creating a Service of type ExternalName, creation will fail. This field will be wiped when updating a Service to type ExternalName. More info: https://kubernetes.io/docs/concepts/services-networking/service/#virtual-ips-and-service-proxies",
    ),
    Column::new(
        "External-IP",
        "string",
        0,
        "externalIPs is a list of IP addresses for which nodes in the cluster will also accept traffic for this service.  These IPs are not managed by Kubernetes.  The user is responsible for ensuring that traffic arrives at a node with this IP.  A common example is external load-balancers that are not part of the Kubernetes system.",
    ),
    Column::new(
        "Port(s)",
        "string",
        0,
        "The list of ports that are exposed by this service. More info: https://kubernetes.io/docs/concepts/services-networking/service/#virtual-ips-and-service-proxies",
    ),
    age_column(),
    Column::new(
        "Selector",
        "string",
        1,
        "Route service traffic to pods with label keys and values matching this selector. If empty or not present, the service is assumed to have an external process managing its endpoints, which Kubernetes will not modify. Only applies to types ClusterIP, NodePort, and LoadBalancer. Ignored if type is ExternalName. More info: https://kubernetes.io/docs/concepts/services-networking/service/",
    ),
];

/// The verbs of `proxy` subresources.
pub(super) const PROXY_VERBS: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];

fn service_type(svc: &Value) -> &str {
    svc.at("spec").text("type")
}

fn cluster_ips(svc: &Value) -> Vec<&str> {
    svc.at("spec").strings("clusterIPs").collect()
}

fn families(svc: &Value) -> Vec<&str> {
    svc.at("spec").strings("ipFamilies").collect()
}

fn policy(svc: &Value) -> &str {
    svc.at("spec").text("ipFamilyPolicy")
}

fn is_headless(svc: &Value) -> bool {
    cluster_ips(svc) == ["None"]
}

/// Whether the service can be reached from outside the cluster.
fn accessible(svc: &Value) -> bool {
    match service_type(svc) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !svc.at("spec").list("externalIPs").is_empty(),
        _ => false,
    }
}

fn needs_health_check(svc: &Value) -> bool {
    service_type(svc) == "LoadBalancer" && svc.at("spec").text("externalTrafficPolicy") == "Local"
}

fn needs_cluster_ip(svc: &Value) -> bool {
    service_type(svc) != EXTERNAL_NAME
}

/// Whether node ports of the old object are worth keeping for the new one.
fn wants_node_ports(svc: &Value) -> bool {
    match service_type(svc) {
        "NodePort" => true,
        "LoadBalancer" => svc.at("spec").opt_flag("allocateLoadBalancerNodePorts").unwrap_or(true),
        _ => false,
    }
}

struct Services {
    allocators: Arc<Allocators>,
}

fn default_spec(spec: &mut Value) {
    default_text(spec, "sessionAffinity", "None");
    match spec.text("sessionAffinity") {
        "None" => drop_field(spec, "sessionAffinityConfig"),
        "ClientIP" if !spec.at("sessionAffinityConfig").at("clientIP").has("timeoutSeconds") => {
            put(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
        }
        _ => {}
    }
    default_text(spec, "type", "ClusterIP");
    for port in list_mut(spec, "ports") {
        default_text(port, "protocol", "TCP");
        let target = port.at("targetPort");
        if target.is_null() || target == 0 || target == "" {
            let number = port.at("port").clone();
            put(port, "targetPort", number);
        }
    }
}

impl Hooks for Services {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn complete_stored(&self, object: &mut Value) {
        families::complete_stored(object);
    }

    fn default(&self, _version: &str, object: &mut Value) {
        default_spec(ensure_object(object, "spec"));
        let open = accessible(object);
        let ty = service_type(object).to_owned();
        let spec = ensure_object(object, "spec");
        if open {
            default_text(spec, "externalTrafficPolicy", "Cluster");
        }
        if ["NodePort", "LoadBalancer", "ClusterIP"].contains(&ty.as_str()) {
            rules::default_opt_text(spec, "internalTrafficPolicy", "Cluster");
        }
        if ty == "LoadBalancer" {
            rules::default_flag(spec, "allocateLoadBalancerNodePorts", true);
            if let Some(balancer) = object.pointer_mut("/status/loadBalancer") {
                for point in list_mut(balancer, "ingress").iter_mut().filter(|p| !p.text("ip").is_empty()) {
                    set_default(point, "ipMode", || "VIP".into());
                }
            }
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({"loadBalancer": {}}));
        hide_internal_policy(object);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut full = object.clone();
        families::normalize(&mut full, None);
        match families::init(&mut full, None, &self.allocators.configured) {
            Ok(()) => validate::service(&full, None),
            Err(errors) => errors,
        }
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if !ctx.subresource.is_empty() {
            return;
        }
        keep_allocated(new, old);
        families::normalize(new, Some(old));
        drop_by_type(new, old);
        hide_internal_policy(new);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        if ctx.subresource == "status" {
            return validate::status(new, old);
        }
        let mut full = new.clone();
        match families::init(&mut full, Some(old), &self.allocators.configured) {
            Ok(()) => validate::update(&full, old),
            Err(errors) => errors,
        }
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        if ctx.subresource == "status" { status_warnings(new) } else { warnings(new) }
    }

    fn fills_in_reservations(&self) -> bool {
        true
    }

    fn reserve<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<Option<Reservation>, Status>> {
        Box::pin(async move { self.allocators.reserve(ctx, new, old).await })
    }

    fn deleted<'a>(&'a self, ctx: &'a Ctx<'a>, object: &'a Value) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (namespace, name) = (object::namespace(object), object::name(object));
            let endpoints = GroupResource::new("", "endpoints");
            if ctx.api.get(&endpoints, namespace, name).is_some() {
                // Its absence is what is wanted; any other failure leaves it to the endpoints controller.
                let _ = ctx.api.delete(&endpoints, namespace, name, DeleteOptions::default()).await;
            }
            self.allocators.ports.release(object);
            self.allocators.give_back(&ports_of(object)).await;
            if needs_cluster_ip(object) && !is_headless(object) {
                self.allocators.addresses.queue_of(object, &cluster_ips(object));
            }
            self.allocators.addresses.flush(ctx.api).await;
        })
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let ports = ports_cell(object.at("spec").list("ports"));
        vec![
            name(object),
            service_type(object).into(),
            cluster_ips(object).first().copied().unwrap_or("<none>").into(),
            external_ip(object).into(),
            (if ports.is_empty() { "<none>".to_owned() } else { ports }).into(),
            age(object, now),
            labels(object.at("spec").at("selector")).into(),
        ]
    }
}

impl CallHooks for Services {
    fn connect<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: ConnectRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Location>, Status>> {
        Box::pin(async move { proxied::location(ctx, request.options).map(Some) })
    }
}

/// The policy means nothing for an ExternalName service and is not shown.
fn hide_internal_policy(svc: &mut Value) {
    if service_type(svc) == EXTERNAL_NAME {
        drop_field(ensure_object(svc, "spec"), "internalTrafficPolicy");
    }
}

/// Keeps what the cluster has given the service, where an update does not mention it.
fn keep_allocated(new: &mut Value, old: &Value) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        let spec = ensure_object(new, "spec");
        if spec.text("clusterIP").is_empty() {
            copy_field(spec, old.at("spec"), "clusterIP");
        }
        if spec.list("clusterIPs").is_empty() && !cluster_ips(old).is_empty() {
            copy_field(spec, old.at("spec"), "clusterIPs");
        }
    }
    if wants_node_ports(old) && wants_node_ports(new) {
        let asked: BTreeSet<i64> = node_ports(new).into_iter().collect();
        let used: Vec<i64> = node_ports(old).into_iter().filter(|p| asked.contains(p)).collect();
        for port in
            list_mut(ensure_object(new, "spec"), "ports").iter_mut().filter(|p| p.int("nodePort") == 0)
        {
            let before = old.at("spec").list("ports").iter().rfind(|p| p.text("name") == port.text("name"));
            let number = before.map_or(0, |p| p.int("nodePort"));
            if number != 0 && !used.contains(&number) {
                put(port, "nodePort", number);
            }
        }
    }
    if needs_health_check(old) && needs_health_check(new) {
        let spec = ensure_object(new, "spec");
        if spec.int("healthCheckNodePort") == 0 {
            copy_field(spec, old.at("spec"), "healthCheckNodePort");
        }
    }
}

/// A change of type drops fields that the new type does not have, unless the client has changed them as well.
fn drop_by_type(new: &mut Value, old: &Value) {
    let same = |new: &Value, field: &str| new.at("spec").at(field) == old.at("spec").at(field);
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        let (ips, all) = (same(new, "clusterIP") && same_ips(old, new), same_families(old, new));
        let keep_policy = policy(old) != policy(new);
        let spec = ensure_object(new, "spec");
        if ips {
            drop_field(spec, "clusterIP");
            drop_field(spec, "clusterIPs");
        }
        if all {
            drop_field(spec, "ipFamilies");
        }
        if !keep_policy {
            drop_field(spec, "ipFamilyPolicy");
        }
    }
    let exposes = |s: &Value| ["NodePort", "LoadBalancer"].contains(&service_type(s));
    if exposes(old) && !exposes(new) {
        let had = node_ports(old);
        if node_ports(new).iter().all(|p| had.contains(p)) {
            list_mut(ensure_object(new, "spec"), "ports").iter_mut().for_each(|p| drop_field(p, "nodePort"));
        }
    }
    let balanced = |s: &Value| service_type(s) == "LoadBalancer";
    let unbalanced = balanced(old) && !balanced(new);
    let gone = [
        (needs_health_check(old) && !needs_health_check(new), "healthCheckNodePort"),
        (unbalanced, "allocateLoadBalancerNodePorts"),
        (unbalanced, "loadBalancerClass"),
        (accessible(old) && !accessible(new), "externalTrafficPolicy"),
    ];
    for (_, field) in gone.iter().filter(|(gone, _)| *gone) {
        if same(new, field) {
            drop_field(ensure_object(new, "spec"), field);
        }
    }
    if !balanced(new) {
        put(ensure_object(new, "status"), "loadBalancer", json!({}));
    }
}

fn warnings(svc: &Value) -> Vec<String> {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let (spec, path) = (svc.at("spec"), Path::new("spec"));
    let mut all = vec![];
    if object::annotation(svc, HINTS).is_some() {
        let better = "service.kubernetes.io/topology-mode";
        all.push(format!("annotation {HINTS} is deprecated, please use {better} instead"));
    }
    let single = spec.text("clusterIP");
    if !single.is_empty() && single != "None" {
        for (i, ip) in cluster_ips(svc).into_iter().enumerate() {
            all.extend(ip_warnings(&path.child("clusterIPs").index(i), ip));
        }
    }
    let headless = service_type(svc) == "ClusterIP" && single == "None";
    let external: Vec<&str> = spec.strings("externalIPs").collect();
    let mut say = |when: bool, text: &str| {
        if when {
            all.push(text.to_owned());
        }
    };
    let balancer = spec.text("loadBalancerIP");
    say(headless && !balancer.is_empty(), "spec.loadBalancerIP is ignored for headless services");
    say(headless && !external.is_empty(), "spec.externalIPs is ignored for headless services");
    say(
        headless && spec.text("sessionAffinity") != "None",
        "spec.SessionAffinity is ignored for headless services",
    );
    for (i, ip) in external.iter().enumerate() {
        all.extend(ip_warnings(&path.child("externalIPs").index(i), ip));
    }
    let named = service_type(svc) == EXTERNAL_NAME;
    if !external.is_empty() && !headless && !named {
        all.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
    }
    all.extend(ip_warnings(&path.child("loadBalancerIP"), balancer));
    for (i, range) in spec.strings("loadBalancerSourceRanges").enumerate() {
        all.extend(cidr_warnings(&path.child("loadBalancerSourceRanges").index(i), range));
    }
    if named && !external.is_empty() {
        all.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !named && !spec.text("externalName").is_empty() {
        all.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if spec.text("trafficDistribution") == "PreferClose" {
        all.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into());
    }
    all
}

fn status_warnings(svc: &Value) -> Vec<String> {
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let points = svc.at("status").at("loadBalancer").list("ingress");
    points.iter().enumerate().flat_map(|(i, p)| ip_warnings(&path.index(i), p.text("ip"))).collect()
}

fn external_ip(svc: &Value) -> String {
    let ips: Vec<&str> = svc.at("spec").strings("externalIPs").collect();
    match service_type(svc) {
        "ClusterIP" | "NodePort" if ips.is_empty() => "<none>".into(),
        "ClusterIP" | "NodePort" => ips.join(","),
        "LoadBalancer" => {
            let points = svc.at("status").at("loadBalancer").list("ingress");
            let mut all = balancer_addresses(points);
            all.extend(ips.into_iter().map(str::to_owned));
            if all.is_empty() { "<pending>".into() } else { all.join(",") }
        }
        EXTERNAL_NAME => svc.at("spec").text("externalName").to_owned(),
        _ => "<unknown>".into(),
    }
}

/// The addresses (or else host names) of a load balancer, sorted.
pub(crate) fn balancer_addresses(points: &[Value]) -> Vec<String> {
    let shown =
        points.iter().map(|p| if p.text("ip").is_empty() { p.text("hostname") } else { p.text("ip") });
    let all: BTreeSet<&str> = shown.filter(|s| !s.is_empty()).collect();
    all.into_iter().map(str::to_owned).collect()
}

fn ports_cell(ports: &[Value]) -> String {
    let shown = ports.iter().map(|p| match p.int("nodePort") {
        0 => format!("{}/{}", p.int("port"), p.text("protocol")),
        n => format!("{}:{n}/{}", p.int("port"), p.text("protocol")),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// The definition of Services.
pub fn def(deps: &Deps) -> ResourceDef {
    let proxy = GroupVersionKind::new("", "v1", "ServiceProxyOptions");
    let hooks = Services { allocators: Arc::new(Allocators::new(deps)) };
    ResourceDef::builtin("", "v1", "Service", "services", Scope::Namespaced, COLUMNS, hooks)
        .storage_prefix("services/specs")
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .return_deleted_object()
        .short(&["svc"])
        .category(&["all"])
        .named(validation::name_is_dns_label)
        .create_on_update()
        .sub(&[
            SubresourceDef::status(),
            SubresourceDef::connect("proxy", proxy, Carries::Requests, PROXY_VERBS),
        ])
        .select(&[SelectableField::new("spec.clusterIP"), SelectableField::new("spec.type")])
}

#[cfg(test)]
mod tests;
