//! The fields of a `KubeSchedulerConfiguration` that concern the process: the lease of its leader, its connection to the API server,
//! and what is diagnosed.
//!
//! Invariants:
//! - A field that is there has its effect, or there is a warning that names it.
//! - Zero and the empty text stand for upstream's defaults.
//!
//! Source: `k8s.io/component-base/config`, `pkg/scheduler/apis/config/validation`.

use super::{ConfigurationError, invalid};
use kaji_meta::duration;
use serde::Deserialize;
use serde_json::Value;
use std::{path::PathBuf, time::Duration};

/// What a configuration says of a process of its own; `None` where the file says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessConfiguration {
    /// The lease of the leader.
    pub leader_election: LeaderElection,
    /// The connection to the API server.
    pub client_connection: ClientConnection,
    /// The fields that have no effect in any process, and why.
    pub warnings: Vec<String>,
}

/// `leaderElection`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaderElection {
    /// Whether there is a leader.
    pub leader_elect: Option<bool>,
    /// How long the lease lasts.
    pub lease_duration: Option<Duration>,
    /// For how long it is tried to renew it.
    pub renew_deadline: Option<Duration>,
    /// The time between attempts.
    pub retry_period: Option<Duration>,
    /// The lease's name.
    pub resource_name: Option<String>,
    /// The lease's namespace.
    pub resource_namespace: Option<String>,
}

/// `clientConnection`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConnection {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// Requests per second; negative for no limit.
    pub qps: Option<f64>,
    /// Requests at once.
    pub burst: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    leader_election: Option<RawElection>,
    client_connection: Option<RawConnection>,
    parallelism: Option<i32>,
    enable_profiling: Option<bool>,
    enable_contention_profiling: Option<bool>,
    delay_cache_until_active: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawElection {
    leader_elect: Option<bool>,
    lease_duration: Option<String>,
    renew_deadline: Option<String>,
    retry_period: Option<String>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawConnection {
    kubeconfig: Option<String>,
    accept_content_types: Option<String>,
    content_type: Option<String>,
    qps: Option<f64>,
    burst: Option<i32>,
}

impl ProcessConfiguration {
    /// The fields that a scheduler has no use for which runs in the process of an API server.
    pub fn without_effect_in_server(&self) -> Vec<&'static str> {
        let election = self.leader_election != LeaderElection::default();
        let connection = self.client_connection != ClientConnection::default();
        let fields = [("leaderElection", election), ("clientConnection", connection)];
        fields.into_iter().filter(|(_, given)| *given).map(|(field, _)| field).collect()
    }

    pub(super) fn parse(raw: &Value) -> Result<Self, ConfigurationError> {
        if raw.is_null() {
            return Ok(ProcessConfiguration::default());
        }
        let raw = Raw::deserialize(raw).map_err(|error| ConfigurationError::Invalid(error.to_string()))?;
        let mut warnings = vec![];
        let client_connection = connection(raw.client_connection.unwrap_or_default(), &mut warnings)?;
        let leader_election = election(raw.leader_election.unwrap_or_default())?;
        if let Some(threads) = raw.parallelism {
            if threads <= 0 {
                return invalid(format!(
                    "parallelism: Invalid value: {threads}: should be an integer value greater than zero"
                ));
            }
            warnings.push("parallelism has no effect: one thread decides on pods".to_owned());
        }
        let profiling = raw.enable_profiling.unwrap_or(true);
        if raw.enable_profiling == Some(true) {
            warnings.push("enableProfiling has no effect: there is no /debug/pprof".to_owned());
        }
        if profiling && raw.enable_contention_profiling == Some(true) {
            warnings.push("enableContentionProfiling has no effect: there is no /debug/pprof".to_owned());
        }
        if raw.delay_cache_until_active == Some(false) {
            warnings.push(
                "delayCacheUntilActive has no effect: caches are always filled when the process leads"
                    .to_owned(),
            );
        }
        Ok(ProcessConfiguration { leader_election, client_connection, warnings })
    }
}

fn text(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn connection(
    raw: RawConnection,
    warnings: &mut Vec<String>,
) -> Result<ClientConnection, ConfigurationError> {
    const JSON: &str = "application/json";
    let burst = raw.burst.unwrap_or_default();
    let Ok(burst) = u32::try_from(burst) else {
        return invalid(format!("clientConnection.burst: Invalid value: {burst}: must be non-negative"));
    };
    for (field, given) in
        [("contentType", raw.content_type), ("acceptContentTypes", raw.accept_content_types)]
    {
        if let Some(given) = text(given).filter(|given| given != JSON) {
            warnings.push(format!(
                "clientConnection.{field} {given:?} has no effect: requests and responses are {JSON}"
            ));
        }
    }
    Ok(ClientConnection {
        kubeconfig: text(raw.kubeconfig).map(PathBuf::from),
        qps: raw.qps.filter(|qps| *qps != 0.0),
        burst: Some(burst).filter(|burst| *burst != 0),
    })
}

fn election(raw: RawElection) -> Result<LeaderElection, ConfigurationError> {
    let elects = raw.leader_elect.unwrap_or(true);
    type Given = (Option<Duration>, Duration);
    let of = |field: &str, given: Option<&str>, default: Duration| -> Result<Given, ConfigurationError> {
        let Some(given) = given else { return Ok((None, default)) };
        let nanos = duration::parse(given)
            .map_err(|error| ConfigurationError::Invalid(format!("leaderElection.{field}: {error}")))?;
        match u64::try_from(nanos) {
            Ok(0) => Ok((None, default)),
            Ok(nanos) => Ok((Some(Duration::from_nanos(nanos)), Duration::from_nanos(nanos))),
            Err(_) if !elects => Ok((None, default)),
            Err(_) => {
                invalid(format!("leaderElection.{field}: Invalid value: {given}: must be greater than zero"))
            }
        }
    };
    let seconds = Duration::from_secs;
    let (lease_duration, lasts) = of("leaseDuration", raw.lease_duration.as_deref(), seconds(15))?;
    let (renew_deadline, deadline) = of("renewDeadline", raw.renew_deadline.as_deref(), seconds(10))?;
    let (retry_period, _) = of("retryPeriod", raw.retry_period.as_deref(), seconds(2))?;
    if elects && lasts <= deadline {
        let deadline = raw.renew_deadline.as_deref().unwrap_or("10s");
        return invalid(format!(
            "leaderElection.leaseDuration: Invalid value: {deadline}: must be greater than `RenewDeadline`"
        ));
    }
    if let Some(lock) = text(raw.resource_lock).filter(|lock| elects && lock != "leases") {
        return invalid(format!(
            "leaderElection.resourceLock: Invalid value: {lock:?}: resourceLock value must be \"leases\""
        ));
    }
    Ok(LeaderElection {
        leader_elect: raw.leader_elect,
        lease_duration,
        renew_deadline,
        retry_period,
        resource_name: text(raw.resource_name),
        resource_namespace: text(raw.resource_namespace),
    })
}
