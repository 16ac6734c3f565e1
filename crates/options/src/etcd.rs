//! Flags of the store: where objects are kept, and upstream's flags for etcd.
//!
//! Invariants: etcd's flags have upstream's names, and upstream's defaults but for one: values are written as JSON unless
//! `--storage-media-type` asks for protobuf; both are read in any case. Flags for etcd without etcd are refused.

use clap::{Args, ValueEnum};
use kaji_etcd::{Endpoints, TlsFiles};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// The scheme of `--store` that names etcd.
const SCHEME: &str = "etcd://";
/// The default of `--etcd-prefix`.
const PREFIX: &str = "/registry";

/// Where objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In the data directory.
    Disk,
    /// In memory only: they end with the process.
    Memory,
    /// In etcd.
    Etcd(Box<EtcdConfig>),
}

/// How built-in kinds are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StorageMediaType {
    /// As JSON.
    #[default]
    #[value(name = "application/json")]
    Json,
    /// As protobuf, behind `k8s\0`.
    #[value(name = "application/vnd.kubernetes.protobuf")]
    Protobuf,
}

/// Which etcd, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Its servers.
    pub endpoints: Endpoints,
    /// What keys begin with.
    pub prefix: String,
    /// How often history is given up; `None` leaves that to others.
    pub compaction: Option<Duration>,
    /// How built-in kinds are written.
    pub media_type: StorageMediaType,
    /// How long `/readyz` waits for etcd.
    pub readiness_timeout: Duration,
}

/// The value of `--store`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Disk,
    Memory,
    Etcd(Vec<String>),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        match (text, text.strip_prefix(SCHEME)) {
            ("disk", _) => Ok(Choice::Disk),
            ("memory", _) => Ok(Choice::Memory),
            (_, Some(hosts)) if !hosts.is_empty() => {
                Ok(Choice::Etcd(hosts.split(',').map(str::to_owned).collect()))
            }
            _ => Err("must be disk, memory or etcd://host:port[,host:port...]".into()),
        }
    }
}

/// Where objects are stored.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Storage")]
pub struct StoreFlags {
    /// Where objects are stored: disk (the data directory), memory (objects and certificates end with the process), or
    /// etcd://host:port,host:port. Default: disk, or etcd with --etcd-servers.
    #[arg(long, value_name = "STORE")]
    store: Option<Choice>,
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// Upstream's flags.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Storage")]
struct EtcdFlags {
    /// The etcd servers to connect to (scheme://host:port), comma separated.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// The authorities of etcd's certificates; the machine's without it.
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// The client certificate for etcd.
    #[arg(long, value_name = "FILE")]
    etcd_certfile: Option<PathBuf>,
    /// The key of the client certificate for etcd.
    #[arg(long, value_name = "FILE")]
    etcd_keyfile: Option<PathBuf>,
    /// What all keys in etcd begin with (default /registry).
    #[arg(long, value_name = "PREFIX")]
    etcd_prefix: Option<String>,
    /// How often history in etcd that is older than this is given up; 0 leaves it (default 5m).
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    etcd_compaction_interval: Option<Duration>,
    /// How long /readyz waits for etcd (default 2s).
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    etcd_readycheck_timeout: Option<Duration>,
    /// How built-in kinds are written to etcd (default application/json). Both are read in any case.
    #[arg(long, value_enum)]
    storage_media_type: Option<StorageMediaType>,
    /// Refused: all objects are in one etcd, by the revisions of which they are ordered.
    #[arg(long, value_name = "GROUP/RESOURCE#SERVERS", value_delimiter = ',')]
    etcd_servers_overrides: Vec<String>,
    /// The kind of etcd.
    #[arg(long, value_parser = ["etcd3"])]
    storage_backend: Option<String>,
}

impl StoreFlags {
    /// Whether objects outlive the process.
    pub fn is_persistent(&self) -> bool {
        self.store != Some(Choice::Memory)
    }

    /// Whether they choose the embedded store.
    pub fn is_embedded(&self) -> bool {
        matches!(self.store, Some(Choice::Disk) | None) && self.etcd.etcd_servers.is_empty()
    }

    /// What they choose.
    ///
    /// # Errors
    /// For flags that contradict each other, and endpoints or files that cannot be used.
    pub fn kind(self) -> Result<StoreKind, String> {
        if let Some(first) = self.etcd.etcd_servers_overrides.first() {
            return Err(format!(
                "--etcd-servers-overrides {first:?}: all objects are kept in one etcd, by the revisions of which they are ordered; \
                 remove the flag, and copy the objects of the other etcd first"
            ));
        }
        let named = match (self.store, self.etcd.etcd_servers.is_empty()) {
            (Some(Choice::Disk) | None, true) => return self.etcd.unused().map(|()| StoreKind::Disk),
            (Some(Choice::Memory), true) => return self.etcd.unused().map(|()| StoreKind::Memory),
            (Some(Choice::Etcd(hosts)), true) => hosts,
            (None, false) => self.etcd.etcd_servers.clone(),
            (Some(_), false) => return Err("--store and --etcd-servers contradict each other".into()),
        };
        self.etcd.config(&named).map(|config| StoreKind::Etcd(Box::new(config)))
    }
}

impl EtcdFlags {
    fn unused(&self) -> Result<(), String> {
        let given = [
            ("--etcd-cafile", self.etcd_cafile.is_some()),
            ("--etcd-certfile", self.etcd_certfile.is_some()),
            ("--etcd-keyfile", self.etcd_keyfile.is_some()),
            ("--etcd-prefix", self.etcd_prefix.is_some()),
            ("--etcd-compaction-interval", self.etcd_compaction_interval.is_some()),
            ("--etcd-readycheck-timeout", self.etcd_readycheck_timeout.is_some()),
            ("--storage-media-type", self.storage_media_type.is_some()),
            ("--storage-backend", self.storage_backend.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(format!("{flag} needs --etcd-servers or --store etcd://...")),
            None => Ok(()),
        }
    }

    fn config(self, servers: &[String]) -> Result<EtcdConfig, String> {
        let files =
            TlsFiles { ca: self.etcd_cafile, certificate: self.etcd_certfile, key: self.etcd_keyfile };
        let endpoints = Endpoints::new(servers, files).map_err(|e| e.to_string())?;
        let compaction = self.etcd_compaction_interval.unwrap_or(Duration::from_secs(300));
        Ok(EtcdConfig {
            endpoints,
            prefix: self.etcd_prefix.unwrap_or_else(|| PREFIX.into()),
            compaction: (!compaction.is_zero()).then_some(compaction),
            media_type: self.storage_media_type.unwrap_or_default(),
            readiness_timeout: self.etcd_readycheck_timeout.unwrap_or(Duration::from_secs(2)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreFlags,
    }

    fn kind(line: &str) -> Result<StoreKind, String> {
        let line = Line::try_parse_from(std::iter::once("kaji").chain(line.split_whitespace()));
        line.map_err(|e| e.to_string())?.store.kind()
    }

    fn etcd(line: &str) -> EtcdConfig {
        match kind(line) {
            Ok(StoreKind::Etcd(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stores_that_flags_choose() {
        assert_eq!(kind(""), Ok(StoreKind::Disk));
        assert_eq!(kind("--store disk"), Ok(StoreKind::Disk));
        assert_eq!(kind("--store memory"), Ok(StoreKind::Memory));
        let config = etcd("--store etcd://h1:2379,h2");
        let origins: Vec<_> = config.endpoints.list().iter().map(|e| e.origin().to_string()).collect();
        assert_eq!(origins, ["http://h1:2379/", "http://h2:2379/"]);
        assert_eq!(
            (config.prefix.as_str(), config.compaction),
            ("/registry", Some(Duration::from_secs(300)))
        );
        assert_eq!(config.media_type, StorageMediaType::Json);
        let config = etcd(
            "--etcd-servers http://h1:2379,http://h2:2379 --etcd-prefix /x --etcd-compaction-interval 0 \
             --storage-media-type application/vnd.kubernetes.protobuf --storage-backend etcd3",
        );
        assert_eq!(
            (config.endpoints.list().len(), config.prefix.as_str(), config.compaction),
            (2, "/x", None)
        );
        assert_eq!(config.media_type, StorageMediaType::Protobuf);
    }

    #[test]
    fn flags_that_contradict_each_other() {
        let refused = |line: &str| kind(line).unwrap_err();
        assert!(refused("--store etcd://").contains("must be disk, memory or etcd://"));
        assert!(refused("--store tape").contains("must be disk, memory or etcd://"));
        assert_eq!(
            refused("--store disk --etcd-servers http://h"),
            "--store and --etcd-servers contradict each other"
        );
        assert_eq!(refused("--etcd-prefix /x"), "--etcd-prefix needs --etcd-servers or --store etcd://...");
        assert_eq!(
            refused("--etcd-servers https://h --etcd-certfile /c"),
            "--etcd-certfile and --etcd-keyfile must be specified together"
        );
        assert!(
            refused("--etcd-servers http://h --etcd-servers-overrides /events#http://e:2379")
                .contains("all objects are kept in one etcd")
        );
        assert!(refused("--etcd-servers http://h --storage-backend etcd2").contains("etcd3"));
    }
}
