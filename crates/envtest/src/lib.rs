//! A drop-in for the binaries that controller-runtime's envtest starts: the same program under the names `kube-apiserver`
//! and `etcd`.
//!
//! Invariants:
//! - A flag that kube-apiserver has is carried out, or without effect here and noted in the log, or refused. It is never
//!   silently ignored.
//! - The API server keeps its objects in memory and writes no file but a certificate into `--cert-dir`, when there is none.
//! - `etcd` answers `/health` and holds nothing.

mod assets;
mod etcd;
mod flags;
mod translate;

pub use assets::{AssetsError, write as write_assets};
pub use etcd::{EtcdError, run as etcd};
pub use translate::{CommandLine, FlagError, apiserver};

use std::path::Path;

/// Names the controllers that run with the API server, as its `--kaji-controllers` does.
pub const CONTROLLERS: &str = "KAJI_ENVTEST_CONTROLLERS";

/// Which of envtest's programs this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `kube-apiserver`
    Apiserver,
    /// `etcd`
    Etcd,
}

impl Role {
    /// The role of a program name; `None` for kaji.
    pub fn of(program: &Path) -> Option<Role> {
        match program.file_name()?.to_str()? {
            assets::APISERVER => Some(Role::Apiserver),
            assets::ETCD => Some(Role::Etcd),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_roles() {
        assert_eq!(Role::of(Path::new("/a/kube-apiserver")), Some(Role::Apiserver));
        assert_eq!(Role::of(Path::new("etcd")), Some(Role::Etcd));
        assert_eq!(Role::of(Path::new("/etcd/kaji")), None);
        assert_eq!(Role::of(Path::new("/")), None);
    }
}
