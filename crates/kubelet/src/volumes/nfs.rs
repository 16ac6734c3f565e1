//! Exports of NFS servers, mounted by the kernel alone: no `mount.nfs` has to be installed.
//!
//! What that program does beside the system call is done here: it resolves the server's name, and tries versions from the
//! newest one on.

use super::mount_options::MountOptions;
use super::mounter::Mounter;
use super::persistent::blocking;
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PORT: u16 = 2049;
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];

/// The options of the system call for a version.
fn data(options: &str, version: Option<&str>, server: IpAddr) -> String {
    let mut words: Vec<String> = options.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect();
    if let Some(version) = version {
        words.push(format!("vers={version}"));
    }
    // Locks of version 3 need daemons on this machine.
    if version == Some("3") && !words.iter().any(|w| matches!(w.as_str(), "lock" | "nolock")) {
        words.push("nolock".to_owned());
    }
    words.push(format!("addr={server}"));
    words.join(",")
}

fn chosen_version(options: &str) -> bool {
    options
        .split(',')
        .any(|w| w.starts_with("vers=") || w.starts_with("nfsvers=") || w.starts_with("minorversion="))
}

/// Whether another version may be spoken.
fn other_version(error: &io::Error) -> bool {
    let code = error.raw_os_error().unwrap_or_default();
    [Errno::PROTONOSUPPORT, Errno::INVAL, Errno::OPNOTSUPP, Errno::PROTO]
        .iter()
        .any(|known| known.raw_os_error() == code)
}

/// Mounts an export.
///
/// # Errors
/// The end of a `FailedMount` text.
pub(super) async fn mount(
    mounter: Arc<dyn Mounter>,
    server: &str,
    path: &str,
    target: &Path,
    options: MountOptions,
) -> Result<(), String> {
    if !mounter.can_mount() {
        return Err("this kubelet may not mount file systems".to_owned());
    }
    let found: Vec<SocketAddr> = tokio::net::lookup_host((server.trim_matches(['[', ']']), PORT))
        .await
        .map_err(|e| format!("the NFS server {server} is not known to this node: {e}"))?
        .collect();
    let address = found.first().ok_or_else(|| format!("the NFS server {server} has no address"))?.ip();
    let host = if server.contains(':') && !server.starts_with('[') {
        format!("[{server}]")
    } else {
        server.to_owned()
    };
    let (source, target) = (format!("{host}:{path}"), PathBuf::from(target));
    blocking(move || try_versions(&*mounter, &source, &target, &options, address)).await
}

fn try_versions(
    mounter: &dyn Mounter,
    source: &str,
    target: &Path,
    options: &MountOptions,
    address: IpAddr,
) -> Result<(), String> {
    let versions: &[Option<&str>] = &VERSIONS.map(Some);
    let versions = if chosen_version(&options.data) { &[None][..] } else { versions };
    let mut last = String::new();
    for version in versions {
        let data = data(&options.data, *version, address);
        match mounter.mount(source, target, "nfs", options.flags, &data) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                return Err(format!(
                    "mount of {source}: the kernel of this node has no NFS client (module nfs)"
                ));
            }
            Err(error) => {
                last = format!("mount of {source}: {error}");
                if !other_version(&error) {
                    break;
                }
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_what_the_program_would_find_out() {
        let address = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(data("hard", Some("4.2"), address), "hard,vers=4.2,addr=192.0.2.7");
        assert_eq!(data("", Some("3"), address), "vers=3,nolock,addr=192.0.2.7");
        assert_eq!(data("vers=3,lock", None, address), "vers=3,lock,addr=192.0.2.7");
        assert!(chosen_version("hard,nfsvers=4") && !chosen_version("hard"));
    }
}
