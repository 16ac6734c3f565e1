//! The kubelet's directory: where volumes are mounted, and where CSI drivers and device plug-ins register.
//!
//! Manifests of drivers and device plug-ins name upstream's directory, `/var/lib/kubelet`, on the host and in their containers. So
//! that is the one, for a node with the usual data directory; a node with another one is a second node or a test, and keeps to its
//! own directory unless `--root-dir` says otherwise.
//!
//! Invariants: a directory that another kubelet uses, or another data directory's node, is never taken: a kubelet takes down
//! volumes of pods that it does not know. A choice stays, for pods that run have their volumes there.

use std::io;
use std::path::{Path, PathBuf};

/// Upstream's directory.
const USUAL: &str = "/var/lib/kubelet";
/// Data directories of nodes that have it.
const USUAL_DATA: [&str; 2] = ["/var/lib/kaji", "/var/lib/kaji/agent"];
/// In the kubelet's directory: the data directory of its node.
const OWNER: &str = "kaji-data-dir";
/// In the data directory: the kubelet's directory.
pub const CHOICE: &str = "kubelet-root";
/// What others than a kubelet may leave in its directory.
const OF_PLUGINS: [&str; 4] = ["device-plugins", "plugins", "plugins_registry", "seccomp"];

/// Why a directory cannot be the kubelet's.
#[derive(Debug, thiserror::Error)]
pub enum RootDirError {
    /// A kubelet, or another node of Kaji, uses it.
    #[error("{} is the directory of another kubelet", .0.display())]
    Taken(PathBuf),
    /// Pods of this node have volumes in another one.
    #[error("pods of this node have their volumes in {}; use it, or remove the pods first", .0.display())]
    InUse(PathBuf),
    /// It is no absolute path.
    #[error("{} is no absolute path", .0.display())]
    Relative(PathBuf),
    /// It cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

fn failure(path: &Path) -> impl FnOnce(io::Error) -> RootDirError + '_ {
    move |error| RootDirError::File { path: path.to_owned(), error }
}

/// The directory that the node of a data directory has chosen; its own one below it, if none.
#[must_use]
pub fn chosen(data_dir: &Path) -> PathBuf {
    let kept = std::fs::read_to_string(data_dir.join(CHOICE)).ok();
    let kept = kept.map(|text| PathBuf::from(text.trim_end())).filter(|path| path.is_absolute());
    kept.unwrap_or_else(|| data_dir.join("kubelet"))
}

fn has_pods(root: &Path) -> bool {
    std::fs::read_dir(root.join("pods")).is_ok_and(|mut entries| entries.next().is_some())
}

/// Makes a directory the node's, if it is free.
fn claim(root: &Path, data_dir: &Path) -> Result<(), RootDirError> {
    let owner = root.join(OWNER);
    match std::fs::read_to_string(&owner) {
        Ok(text) if Path::new(text.trim_end()) == data_dir => return Ok(()),
        Ok(_) => return Err(RootDirError::Taken(root.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failure(&owner)(error)),
    }
    std::fs::create_dir_all(root).map_err(failure(root))?;
    for entry in std::fs::read_dir(root).map_err(failure(root))? {
        let name = entry.map_err(failure(root))?.file_name();
        if !OF_PLUGINS.iter().any(|known| name == *known) {
            return Err(RootDirError::Taken(root.to_owned()));
        }
    }
    std::fs::write(&owner, format!("{}\n", data_dir.display())).map_err(failure(&owner))
}

/// Chooses the kubelet's directory: what is asked for, else the one of before, else the usual one if it is free.
///
/// # Errors
/// When what is asked for cannot be.
pub fn choose(data_dir: &Path, asked: Option<&Path>) -> Result<PathBuf, RootDirError> {
    choose_of(data_dir, asked, USUAL_DATA.iter().any(|usual| data_dir == Path::new(usual)), Path::new(USUAL))
}

fn choose_of(
    data_dir: &Path,
    asked: Option<&Path>,
    is_usual: bool,
    usual: &Path,
) -> Result<PathBuf, RootDirError> {
    let own = data_dir.join("kubelet");
    let before = chosen(data_dir);
    let choice = data_dir.join(CHOICE);
    let keep = |root: &Path| {
        std::fs::create_dir_all(data_dir).map_err(failure(data_dir))?;
        std::fs::write(&choice, format!("{}\n", root.display())).map_err(failure(&choice))
    };
    if let Some(root) = asked {
        if !root.is_absolute() {
            return Err(RootDirError::Relative(root.to_owned()));
        }
        if *root != before && has_pods(&before) {
            return Err(RootDirError::InUse(before));
        }
        if *root != own {
            claim(root, data_dir)?;
        }
        keep(root)?;
        return Ok(root.to_owned());
    }
    if choice.exists() || has_pods(&own) {
        if before != own {
            claim(&before, data_dir)?;
        }
        return Ok(before);
    }
    if !is_usual {
        return Ok(own);
    }
    match claim(usual, data_dir) {
        Ok(()) => {
            keep(usual)?;
            Ok(usual.to_owned())
        }
        Err(error) => {
            tracing::warn!(%error, "CSI drivers and device plug-ins have to be installed for {}", own.display());
            Ok(own)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_node_and_a_node_keeps_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let usual = dir.path().join("usual");
        let of = |data: &Path, asked, is_usual| choose_of(data, asked, is_usual, &usual);
        assert_eq!(of(&one, None, false).unwrap(), one.join("kubelet"));
        std::fs::create_dir_all(usual.join("plugins")).unwrap();
        assert_eq!(of(&one, None, true).unwrap(), usual);
        // Found again, whatever the data directory is like.
        assert_eq!(of(&one, None, false).unwrap(), usual);
        assert_eq!(chosen(&one), usual);
        assert_eq!(of(&two, None, true).unwrap(), two.join("kubelet"));
        assert!(matches!(of(&two, Some(&usual), true), Err(RootDirError::Taken(_))));
        assert!(matches!(of(&two, Some(Path::new("usual")), true), Err(RootDirError::Relative(_))));
        // Another one only without pods.
        std::fs::create_dir_all(usual.join("pods/u")).unwrap();
        let other = dir.path().join("other");
        assert!(matches!(of(&one, Some(&other), true), Err(RootDirError::InUse(_))));
        std::fs::remove_dir(usual.join("pods/u")).unwrap();
        assert_eq!(of(&one, Some(&other), true).unwrap(), other);
        // Of another program.
        let foreign = dir.path().join("foreign");
        std::fs::create_dir_all(foreign.join("pods")).unwrap();
        assert!(matches!(of(&two, Some(&foreign), true), Err(RootDirError::Taken(_))));
    }
}
