//! The calls of a device plug-in.

use super::messages::{
    self as m, AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest, PreferredAllocationResponse,
};
use kaji_grpc::{CallError, Client, Messages};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(10);
/// Upstream's for `PreStartContainer`; an allocation may set a device up.
const LONG: Duration = Duration::from_secs(30);

/// A plug-in on its socket.
pub(super) struct Endpoint {
    client: Client,
    pub(super) options: DevicePluginOptions,
}

fn list(ids: &BTreeSet<String>) -> Vec<String> {
    ids.iter().cloned().collect()
}

impl Endpoint {
    /// Connects, and asks what the plug-in can do.
    pub(super) async fn connect(socket: &Path) -> Result<Endpoint, CallError> {
        let client = Client::new(socket);
        let options = client.unary(m::GET_OPTIONS, Empty {}, SHORT).await?;
        Ok(Endpoint { client, options })
    }

    pub(super) async fn watch(&self) -> Result<Messages<ListAndWatchResponse>, CallError> {
        self.client.server_streaming(m::LIST_AND_WATCH, Empty {}, LONG).await
    }

    pub(super) async fn allocate(
        &self,
        devices: &BTreeSet<String>,
    ) -> Result<Option<ContainerAllocateResponse>, CallError> {
        let container_requests = vec![ContainerAllocateRequest { device_ids: list(devices) }];
        let request = AllocateRequest { container_requests };
        let answer: m::AllocateResponse = self.client.unary(m::ALLOCATE, request, LONG).await?;
        Ok(answer.container_responses.into_iter().next())
    }

    /// The devices that the plug-in would choose; none if it leaves that to the kubelet.
    pub(super) async fn preferred(
        &self,
        available: &BTreeSet<String>,
        included: &BTreeSet<String>,
        size: usize,
    ) -> Result<BTreeSet<String>, CallError> {
        if !self.options.get_preferred_allocation_available {
            return Ok(BTreeSet::new());
        }
        let one = ContainerPreferredAllocationRequest {
            available_device_ids: list(available),
            must_include_device_ids: list(included),
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![one] };
        let answer: PreferredAllocationResponse = self.client.unary(m::GET_PREFERRED, request, LONG).await?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.map(|r| r.device_ids.into_iter().collect()).unwrap_or_default())
    }

    pub(super) async fn pre_start(&self, devices: &BTreeSet<String>) -> Result<(), CallError> {
        let request = PreStartContainerRequest { device_ids: list(devices) };
        self.client.unary::<_, Empty>(m::PRE_START, request, LONG).await.map(drop)
    }
}
