//! systemd-logind, which tells of an imminent shutdown and waits for those that hold a delay lock. Upstream's `nodeshutdown/systemd`.
//!
//! Invariant: a signal counts only when logind sent it, which the bus says: each client of the bus can send signals of any name.

use super::dbus::{BUS, Bus, DbusError, Endpoint};
use super::wire::{Message, Value};
use futures_util::future::BoxFuture;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Where the system's bus listens.
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// Where settings of logind are added.
const SETTINGS: &str = "/etc/systemd/logind.conf.d";
/// Upstream's file there.
const SETTINGS_FILE: &str = "99-kubelet.conf";

const MANAGER: Endpoint = Endpoint {
    name: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const PROPERTIES: Endpoint = Endpoint { interface: "org.freedesktop.DBus.Properties", ..MANAGER };
const SYSTEMD: Endpoint = Endpoint {
    name: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const SIGNAL: &str = "PrepareForShutdown";
const HANGUP: i32 = 1;

/// Why logind cannot be used.
#[derive(Debug, Error)]
pub enum LogindError {
    /// The bus, or an answer of a service on it.
    #[error(transparent)]
    Bus(#[from] DbusError),
    /// Its settings.
    #[error("failed writing logind shutdown inhibit override file {path:?}: {error}")]
    Settings {
        /// The file or its directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Holds up a shutdown until it is dropped.
#[derive(Debug)]
pub struct InhibitLock(pub OwnedFd);

/// Tells of shutdowns.
pub trait Logind: Send {
    /// How long logind waits for locks at most.
    fn most_delay(&mut self) -> BoxFuture<'_, Result<Duration, LogindError>>;

    /// Asks logind to wait this long.
    fn set_most_delay(&mut self, most: Duration) -> BoxFuture<'_, Result<(), LogindError>>;

    /// Takes a lock.
    fn inhibit(&mut self) -> BoxFuture<'_, Result<InhibitLock, LogindError>>;

    /// Asks for the signals that [`Logind::next`] waits for.
    fn follow(&mut self) -> BoxFuture<'_, Result<(), LogindError>>;

    /// Waits until a shutdown begins (true), or one is given up (false).
    fn next(&mut self) -> BoxFuture<'_, Result<bool, LogindError>>;
}

/// Where logind is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogindPaths {
    /// The socket of the bus.
    pub bus: PathBuf,
    /// The directory of settings that are added to logind's own.
    pub settings: PathBuf,
}

impl Default for LogindPaths {
    fn default() -> LogindPaths {
        LogindPaths { bus: SYSTEM_BUS.into(), settings: SETTINGS.into() }
    }
}

impl LogindPaths {
    /// Connects to it.
    ///
    /// # Errors
    /// There is no bus, or it refuses this process.
    pub async fn connect(&self) -> Result<Box<dyn Logind>, LogindError> {
        let bus = Bus::connect(&self.bus).await?;
        Ok(Box::new(DbusLogind { bus, settings: self.settings.clone() }))
    }
}

/// logind behind a message bus.
struct DbusLogind {
    bus: Bus,
    settings: PathBuf,
}

fn text(of: &str) -> Value {
    Value::Text(of.to_owned())
}

fn write_settings(directory: &Path, most: Duration) -> Result<(), LogindError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| LogindError::Settings { path, error }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    let file = directory.join(SETTINGS_FILE);
    let seconds = most.as_secs();
    let settings = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n");
    fs::write(&file, settings).map_err(failed(&file))
}

impl DbusLogind {
    /// Whether the present owner of logind's name sent this.
    async fn sent_by_logind(&mut self, signal: &Message) -> Result<bool, DbusError> {
        let owner = self.bus.call(BUS, "GetNameOwner", &[text(MANAGER.name)]).await;
        match owner.as_ref().map(|reply| reply.body.as_slice()) {
            Ok([Value::Text(owner), ..]) => Ok(Some(owner) == signal.sender.as_ref()),
            Ok(_) => Err(DbusError::Reply("GetNameOwner")),
            // It has no owner.
            Err(DbusError::Call { .. }) => Ok(false),
            Err(_) => owner.map(|_| false),
        }
    }
}

impl Logind for DbusLogind {
    fn most_delay(&mut self) -> BoxFuture<'_, Result<Duration, LogindError>> {
        Box::pin(async {
            let arguments = [text(MANAGER.interface), text("InhibitDelayMaxUSec")];
            let reply = self.bus.call(PROPERTIES, "Get", &arguments).await?;
            match reply.body.first() {
                Some(Value::Variant(value)) => match **value {
                    Value::Long(microseconds) => Ok(Duration::from_micros(microseconds)),
                    _ => Err(DbusError::Reply("Get").into()),
                },
                _ => Err(DbusError::Reply("Get").into()),
            }
        })
    }

    fn set_most_delay(&mut self, most: Duration) -> BoxFuture<'_, Result<(), LogindError>> {
        Box::pin(async move {
            write_settings(&self.settings, most)?;
            let arguments = [text("systemd-logind.service"), text("all"), Value::Int(HANGUP)];
            self.bus.call(SYSTEMD, "KillUnit", &arguments).await?;
            Ok(())
        })
    }

    fn inhibit(&mut self) -> BoxFuture<'_, Result<InhibitLock, LogindError>> {
        Box::pin(async {
            let why = "Kubelet needs time to handle node shutdown";
            let arguments = [text("shutdown"), text("kubelet"), text(why), text("delay")];
            let reply = self.bus.call(MANAGER, "Inhibit", &arguments).await?;
            match reply.body.as_slice() {
                [Value::Descriptor(number), ..] => {
                    let number = usize::try_from(*number).unwrap_or(usize::MAX);
                    let lock = reply.descriptors.into_iter().nth(number);
                    lock.map(InhibitLock).ok_or(LogindError::Bus(DbusError::Reply("Inhibit")))
                }
                _ => Err(DbusError::Reply("Inhibit").into()),
            }
        })
    }

    fn follow(&mut self) -> BoxFuture<'_, Result<(), LogindError>> {
        Box::pin(async {
            let Endpoint { name, path, interface } = MANAGER;
            let rule = format!(
                "type='signal',sender='{name}',path='{path}',interface='{interface}',member='{SIGNAL}'"
            );
            self.bus.call(BUS, "AddMatch", &[Value::Text(rule)]).await?;
            Ok(())
        })
    }

    fn next(&mut self) -> BoxFuture<'_, Result<bool, LogindError>> {
        Box::pin(async {
            loop {
                let signal = self.bus.signal().await?;
                let of_shutdown = signal.interface.as_deref() == Some(MANAGER.interface)
                    && signal.member.as_deref() == Some(SIGNAL);
                if !of_shutdown {
                    continue;
                }
                let [Value::Bool(begins), ..] = signal.body.as_slice() else {
                    tracing::error!(
                        "Failed obtaining shutdown event, PrepareForShutdown event was not bool type as expected"
                    );
                    continue;
                };
                let begins = *begins;
                if self.sent_by_logind(&signal).await? {
                    return Ok(begins);
                }
                tracing::warn!(
                    sender = signal.sender,
                    "a shutdown signal was not sent by logind and is ignored"
                );
            }
        })
    }
}
