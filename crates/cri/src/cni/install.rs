//! Puts the plug-in where a runtime looks for it.
//!
//! Invariants: files of others are not changed; a file is whole or absent; what is installed again is the same.

use super::{LOOPBACK, NAME};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Sorts before the names that other networks have.
const FILE: &str = "10-kaji.conflist";
/// Endings of configurations that runtimes read.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];
/// Where runtimes look that do not say where.
const CONFIGURATIONS: &str = "/etc/cni/net.d";
const PROGRAMS: &str = "/opt/cni/bin";

/// Where a runtime looks for network plug-ins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Of configurations.
    pub configurations: PathBuf,
    /// Of programs.
    pub programs: PathBuf,
}

impl Directories {
    /// By what a runtime shows of its configuration.
    #[must_use]
    pub fn of(configuration: &Value) -> Directories {
        let cni = &configuration["cni"];
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(PathBuf::from);
        let programs = text(&cni["binDir"]).or_else(|| text(&cni["binDirs"][0]));
        Directories {
            configurations: text(&cni["confDir"]).unwrap_or_else(|| CONFIGURATIONS.into()),
            programs: programs.unwrap_or_else(|| PROGRAMS.into()),
        }
    }

    /// The configuration of another network, if there is one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn other_network(&self) -> io::Result<Option<PathBuf>> {
        let entries = match fs::read_dir(&self.configurations) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let mut found = vec![];
        for entry in entries {
            let path = entry?.path();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if ENDINGS.contains(&ending) && path.file_name().is_some_and(|name| name != FILE) {
                found.push(path);
            }
        }
        Ok(found.into_iter().min())
    }

    /// Installs the plug-in, which is `program` and asks the node at `socket`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn install(&self, program: &Path, socket: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.programs)?;
        fs::create_dir_all(&self.configurations)?;
        link(program, &self.programs.join(NAME))?;
        let loopback = self.programs.join(LOOPBACK);
        // One of the usual package stays.
        if fs::symlink_metadata(&loopback).is_err() || is_link(&loopback) {
            link(program, &loopback)?;
        }
        let path = self.configurations.join(FILE);
        let text = serde_json::to_string_pretty(&configuration(socket))?;
        if fs::read_to_string(&path).is_ok_and(|former| former == text) {
            return Ok(());
        }
        let unfinished = self.configurations.join(format!("{FILE}.new"));
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, &path)
    }

    /// Removes what was installed for the node at `socket`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, program: &Path, socket: &Path) -> io::Result<()> {
        let path = self.configurations.join(FILE);
        let own = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        if own.is_some_and(|config| config["plugins"][0]["socket"] == json!(socket)) {
            fs::remove_file(&path)?;
        }
        for name in [NAME, LOOPBACK] {
            let path = self.programs.join(name);
            if fs::read_link(&path).is_ok_and(|target| target == program) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Host ports and bandwidth are done by the pod network, and so are capabilities of this plug-in.
fn configuration(socket: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": NAME,
        "plugins": [{
            "type": NAME,
            "socket": socket,
            "capabilities": {"portMappings": true, "bandwidth": true},
        }],
    })
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_symlink())
}

/// Makes a link, or turns one that is there to its new target.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|former| former == target) {
        return Ok(());
    }
    let unfinished = path.with_extension("new");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, &unfinished)?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(root: &Path) -> Directories {
        Directories { configurations: root.join("net.d"), programs: root.join("bin") }
    }

    #[test]
    fn a_runtime_says_where_it_looks() {
        let shown = json!({"cni": {"binDir": "/usr/lib/cni", "confDir": "/etc/cni/net.d"}});
        assert_eq!(Directories::of(&shown).programs, Path::new("/usr/lib/cni"));
        let newer = json!({"cni": {"binDir": "", "binDirs": ["/opt/a", "/opt/b"], "confDir": "/c"}});
        let found = Directories::of(&newer);
        assert_eq!((found.programs, found.configurations), ("/opt/a".into(), "/c".into()));
        assert_eq!(Directories::of(&Value::Null).programs, Path::new(PROGRAMS));
    }

    #[test]
    fn what_is_installed_is_found_again_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let all = directories(root.path());
        let (program, socket) = (Path::new("/usr/bin/kaji"), Path::new("/var/lib/kaji/network/cni.sock"));
        for _ in 0..2 {
            all.install(program, socket).unwrap();
        }
        assert_eq!(all.other_network().unwrap(), None);
        assert_eq!(fs::read_link(all.programs.join("loopback")).unwrap(), program);
        all.remove(program, Path::new("/another/cni.sock")).unwrap();
        assert!(all.configurations.join(FILE).exists());
        all.install(program, socket).unwrap();
        all.remove(program, socket).unwrap();
        for directory in [&all.configurations, &all.programs] {
            assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
        }
    }

    #[test]
    fn other_networks_and_other_programs_stay() {
        let root = tempfile::tempdir().unwrap();
        let all = directories(root.path());
        fs::create_dir_all(&all.configurations).unwrap();
        fs::create_dir_all(&all.programs).unwrap();
        fs::write(all.configurations.join("notes.txt"), "").unwrap();
        assert_eq!(all.other_network().unwrap(), None);
        for name in ["87-podman.conflist", "05-cilium.conflist"] {
            fs::write(all.configurations.join(name), "{}").unwrap();
        }
        assert_eq!(all.other_network().unwrap(), Some(all.configurations.join("05-cilium.conflist")));
        fs::write(all.programs.join("loopback"), "theirs").unwrap();
        all.install(Path::new("/usr/bin/kaji"), Path::new("/s")).unwrap();
        assert_eq!(fs::read_to_string(all.programs.join("loopback")).unwrap(), "theirs");
    }
}
