//! The pod resources API: which devices, processors and memory the containers of the node have, for monitoring agents on a socket below
//! the kubelet's directory. Upstream's `apis/podresources`.
//!
//! Invariant: it only tells; the socket is for this process's user alone.

pub mod messages;

use crate::metrics::families as f;
use crate::plugins::dra::claims::Claim;
use crate::pods::context::NodeContext;
use crate::pods::core::{Container, Pod};
use crate::pods::model;
use crate::resource_managers::MemoryBlock;
use kaji_grpc::{Router, Status, bind, serve};
use messages as m;
use std::sync::Arc;

/// Below the kubelet's directory.
pub const SOCKET: &str = "pod-resources/kubelet.sock";

/// The pods that run on the node, or are about to.
pub type ActivePods = Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>;

/// Serves the socket, until it is dropped.
pub async fn run(cx: Arc<NodeContext>, pods: ActivePods) {
    let path = cx.config.root_dir.join(SOCKET);
    match bind(&path) {
        Ok(listener) => serve(listener, router(cx, pods)).await,
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "the pod resources API cannot be served")
        }
    }
}

fn router(cx: Arc<NodeContext>, pods: ActivePods) -> Router {
    let list = |version: &'static str, full: bool| {
        let (cx, pods) = (cx.clone(), pods.clone());
        move |_: m::Empty| {
            let labels = [("server_api_version", version)];
            cx.metrics.count(&f::POD_RESOURCES_REQUESTS, &labels);
            if full {
                cx.metrics.count(&f::POD_RESOURCES_LISTS, &labels);
            }
            let pod_resources = pods().iter().map(|pod| of_pod(&cx, pod, full)).collect();
            std::future::ready(Ok::<_, Status>(m::ListResponse { pod_resources }))
        }
    };
    let (get_cx, get_pods, all_cx) = (cx.clone(), pods.clone(), cx.clone());
    let labels = [("server_api_version", "v1")];
    Router::default()
        .unary(m::LIST, list("v1", true))
        .unary(m::LIST_ALPHA, list("v1alpha1", false))
        .unary(m::GET, move |request: m::GetRequest| {
            get_cx.metrics.count(&f::POD_RESOURCES_REQUESTS, &labels);
            get_cx.metrics.count(&f::POD_RESOURCES_GETS, &labels);
            let (name, namespace) = (&request.pod_name, &request.pod_namespace);
            let named = |pod: &&Arc<Pod>| model::name(pod) == name && model::namespace(pod) == namespace;
            let found = get_pods().iter().find(named).map(|pod| of_pod(&get_cx, pod, true));
            if found.is_none() {
                get_cx.metrics.count(&f::POD_RESOURCES_GET_ERRORS, &labels);
            }
            let missing = || Status::unknown(format!("pod {name} in namespace {namespace} not found"));
            std::future::ready(found.ok_or_else(missing).map(|p| m::GetResponse { pod_resources: Some(p) }))
        })
        .unary(m::GET_ALLOCATABLE, move |_: m::Empty| {
            all_cx.metrics.count(&f::POD_RESOURCES_REQUESTS, &labels);
            all_cx.metrics.count(&f::POD_RESOURCES_ALLOCATABLE, &labels);
            let answer = m::AllocatableResources {
                devices: all_cx.devices.usable().into_iter().flat_map(device).collect(),
                cpu_ids: all_cx.managers.allocatable_cpus(),
                memory: all_cx.managers.allocatable_memory().into_iter().map(memory).collect(),
            };
            std::future::ready(Ok::<_, Status>(answer))
        })
}

/// Sidecars and regular containers: others have nothing of their own for long.
fn of_pod(cx: &NodeContext, pod: &Pod, full: bool) -> m::PodResources {
    let sidecars = model::init_containers(pod).iter().filter(|c| model::is_sidecar(c));
    let containers = sidecars.chain(model::containers(pod)).map(|c| of_container(cx, pod, c, full));
    m::PodResources {
        name: model::name(pod).to_owned(),
        namespace: model::namespace(pod).to_owned(),
        containers: containers.collect(),
    }
}

fn of_container(cx: &NodeContext, pod: &Pod, container: &Container, full: bool) -> m::ContainerResources {
    let (uid, name) = (model::uid(pod), container.name.as_str());
    let own = m::ContainerResources {
        name: name.to_owned(),
        devices: cx.devices.of_container(uid, name).into_iter().flat_map(device).collect(),
        ..Default::default()
    };
    if !full {
        return own;
    }
    m::ContainerResources {
        cpu_ids: cx.managers.exclusive_cpus(uid, name),
        memory: cx.managers.memory_of(uid, name).into_iter().map(memory).collect(),
        dynamic_resources: cx.dra.claims_of(pod, container).iter().map(claim).collect(),
        ..own
    }
}

/// A device, once for each of its NUMA nodes.
fn device((resource, id, nodes): (String, String, Vec<i64>)) -> Vec<m::ContainerDevices> {
    let on = |topology| m::ContainerDevices {
        resource_name: resource.clone(),
        device_ids: vec![id.clone()],
        topology,
    };
    if nodes.is_empty() {
        return vec![on(None)];
    }
    nodes.iter().map(|id| on(Some(m::TopologyInfo { nodes: vec![m::NumaNode { id: *id }] }))).collect()
}

fn memory(block: MemoryBlock) -> m::ContainerMemory {
    let nodes = block.nodes.iter().map(|id| m::NumaNode { id: i64::from(*id) }).collect();
    m::ContainerMemory {
        memory_type: block.kind,
        size: block.size,
        topology: Some(m::TopologyInfo { nodes }),
    }
}

fn claim(claim: &Claim) -> m::DynamicResource {
    let of_device = |(driver, device): (&String, &crate::plugins::dra::claims::Device)| m::ClaimResource {
        cdi_devices: device.cdi_devices.iter().map(|name| m::CdiDevice { name: name.clone() }).collect(),
        driver_name: driver.clone(),
        pool_name: device.pool_name.clone(),
        device_name: device.device_name.clone(),
        share_id: device.share_id.clone(),
    };
    m::DynamicResource {
        claim_name: claim.name.clone(),
        claim_namespace: claim.namespace.clone(),
        claim_resources: claim.devices().map(of_device).collect(),
    }
}
