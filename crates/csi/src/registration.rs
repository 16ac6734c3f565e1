//! The registration of plug-ins: a plug-in (or a sidecar of its) serves a socket in the kubelet's directory, says there what it is, and
//! gets the answer whether it was taken. Upstream's `pluginregistration` v1.

use kaji_grpc::{CallError, Client};
use prost::Message;
use std::path::Path;
use std::time::Duration;

/// Of the Registration service.
pub const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
/// Of the Registration service.
pub const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";

/// A call's deadline; upstream's for the connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The request for a plug-in's information, and the answer to its status.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// What a plug-in is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginInfo {
    /// `CSIPlugin`, `DevicePlugin`, `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Of a CSI driver its name, of a device plug-in its resource's.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where its service is; empty for the socket that it registers by.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Of its service.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Whether a plug-in was taken.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegistrationStatus {
    /// It was.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why it was not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A socket by which a plug-in registers.
pub struct Registrar(Client);

impl Registrar {
    /// At a path.
    #[must_use]
    pub fn new(socket: &Path) -> Registrar {
        Registrar(Client::new(socket))
    }

    /// What the plug-in is.
    ///
    /// # Errors
    /// The plug-in's, or the connection's.
    pub async fn info(&self) -> Result<PluginInfo, CallError> {
        self.0.unary(GET_INFO, Empty {}, TIMEOUT).await
    }

    /// Lets the plug-in know whether it was taken; `error` says why it was not.
    ///
    /// # Errors
    /// The plug-in's, or the connection's.
    pub async fn notify(&self, error: Option<String>) -> Result<(), CallError> {
        let status =
            RegistrationStatus { plugin_registered: error.is_none(), error: error.unwrap_or_default() };
        self.0.unary::<_, Empty>(NOTIFY, status, TIMEOUT).await.map(drop)
    }
}

/// A version of a plug-in's interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

/// The highest of the versions that a CSI driver offers and that is understood: 0.x or 1.x.
///
/// # Errors
/// The end of upstream's message.
pub fn highest_supported(versions: &[String]) -> Result<Version, String> {
    let parse = |text: &String| -> Option<Version> {
        let core = text.trim_start_matches('v').split(['-', '+']).next()?;
        let parts: Option<Vec<u64>> = core.split('.').map(|part| part.parse().ok()).collect();
        parts.filter(|p| p.len() > 1).map(Version)
    };
    let known: Vec<Version> = versions.iter().filter_map(parse).collect();
    if known.is_empty() {
        return Err(format!("could not parse {versions:?} as version"));
    }
    let found = known.into_iter().filter(|v| v.0.first().is_some_and(|major| *major <= 1)).max();
    found.ok_or_else(|| {
        "failed to find any supported version, only versions with major 0 or 1 are supported".to_owned()
    })
}
