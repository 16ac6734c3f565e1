//! AppArmor profiles of containers: which one a container is confined by, and the default one, which `apparmor_parser` loads.
//! Which profile applies is decided as containerd's CRI plug-in does.
//!
//! Invariants: a profile that a pod asks for is enforced, or the container is refused; the default one is loaded once, before the
//! first container that it confines is made.

use kaji_containers::{ContainerSecurity, RuntimeError, SecurityProfile};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The name of the default profile.
pub const DEFAULT_PROFILE: &str = "kaji-default";
/// Relative to `/sys`: the loaded profiles, one a line.
const PROFILES: &str = "kernel/security/apparmor/profiles";
/// Without it the parser takes the kernel to have what it had years ago.
const ABI: &str = "/etc/apparmor.d/abi/3.0";
/// Of a process that no profile confines.
const UNCONFINED: &str = "unconfined";

/// AppArmor on a node.
#[derive(Debug)]
pub struct AppArmor {
    sys: PathBuf,
    /// `None` where it is not installed.
    parser: Option<PathBuf>,
    default: OnceLock<Result<(), String>>,
}

impl AppArmor {
    /// That of this machine.
    pub fn of_machine() -> AppArmor {
        AppArmor::at("/sys".into(), kaji_files::apparmor_parser())
    }

    fn at(sys: PathBuf, parser: Option<PathBuf>) -> AppArmor {
        AppArmor { sys, parser, default: OnceLock::new() }
    }

    /// The profile that a container's processes are confined by; `None` for none. It blocks for as long as the parser runs when the
    /// default one is needed first.
    ///
    /// # Errors
    /// The profile that is asked for cannot be enforced.
    pub fn profile(&self, security: &ContainerSecurity) -> Result<Option<String>, RuntimeError> {
        let enabled = kaji_files::has_apparmor(&self.sys);
        match &security.apparmor {
            Some(SecurityProfile::Unconfined) => Ok(None),
            None if security.privileged || !enabled => Ok(None),
            None => Ok(self.load_default().is_ok().then(|| DEFAULT_PROFILE.to_owned())),
            Some(_) if !enabled => Err(RuntimeError::InvalidArgument("apparmor is not supported".to_owned())),
            Some(SecurityProfile::RuntimeDefault) if security.privileged => Ok(None),
            Some(SecurityProfile::RuntimeDefault) => match self.load_default() {
                Ok(()) => Ok(Some(DEFAULT_PROFILE.to_owned())),
                Err(error) => Err(RuntimeError::FailedPrecondition(format!(
                    "the AppArmor profile {DEFAULT_PROFILE} cannot be loaded: {error}"
                ))),
            },
            Some(SecurityProfile::Localhost(name)) if self.is_loaded(name) => Ok(Some(name.clone())),
            Some(SecurityProfile::Localhost(name)) => {
                Err(RuntimeError::InvalidArgument(format!("apparmor profile not found {name}")))
            }
        }
    }

    /// Whether the kernel has a profile of this name. Where only root may read the list, the kernel tells when the process starts.
    fn is_loaded(&self, name: &str) -> bool {
        match std::fs::read_to_string(self.sys.join(PROFILES)) {
            Ok(list) => {
                list.lines().filter_map(|line| line.rsplit_once(" (")).any(|(known, _)| known == name)
            }
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Replaces a profile that a former version of this program, or the administrator, has loaded, if there is a parser.
    fn load_default(&self) -> Result<(), &String> {
        let loaded = self.default.get_or_init(|| {
            let outcome = match &self.parser {
                Some(parser) => load(parser).map_err(|error| format!("{}: {error}", parser.display())),
                None if self.is_loaded(DEFAULT_PROFILE) => Ok(()),
                None => Err("apparmor_parser is not installed".to_owned()),
            };
            if let Err(error) = &outcome {
                tracing::warn!(
                    error,
                    "containers that ask for no AppArmor profile run without one, and those that ask for the default one are refused"
                );
            }
            outcome
        });
        loaded.as_ref().copied()
    }
}

fn load(parser: &Path) -> Result<(), String> {
    let own = std::fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    let text = default_profile(label(&own), Path::new(ABI).exists());
    let run = || {
        let mut child = Command::new(parser)
            .args(["--replace", "--skip-cache"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        // A parser that ends early says why.
        let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
        let output = child.wait_with_output()?;
        if output.status.success() { written.map(|()| None) } else { Ok(Some(output)) }
    };
    match run() {
        Ok(None) => Ok(()),
        Ok(Some(failed)) => {
            Err(format!("{}: {}", failed.status, String::from_utf8_lossy(&failed.stderr).trim()))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The name of the profile of a process, from `/proc/PID/attr/current`: `NAME (MODE)`, or `unconfined`.
fn label(current: &str) -> &str {
    let current = current.trim_end_matches(['\n', '\0']);
    let name = current.rsplit_once(" (").map_or(current, |(name, _)| name);
    if name.is_empty() { UNCONFINED } else { name }
}

/// What the default profile forbids: mounts, and writes below `/proc` and `/sys` but to files of processes, of the container's shared
/// memory limits and of cgroups. Signals and traces come from the container itself, and signals from this program, which has the profile `own`.
fn default_profile(own: &str, abi: bool) -> String {
    let abi = if abi { "abi <abi/3.0>,\n" } else { "" };
    let signals = match own {
        UNCONFINED => String::new(),
        own => format!("  signal (receive) peer=\"{own}\",\n"),
    };
    format!(
        "{abi}profile {DEFAULT_PROFILE} flags=(attach_disconnected,mediate_deleted) {{
  network,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
{signals}  signal (send,receive) peer={DEFAULT_PROFILE},
  ptrace (trace,read,tracedby,readby) peer={DEFAULT_PROFILE},

  deny mount,

  deny /proc/* w,
  deny /proc/{{[^0-9s]*,s[^y]*,sy[^s]*,sys[^/]*}}/** w,
  deny /proc/sys/[^k]** w,
  deny /proc/sys/k[^e]** w,
  deny /proc/sys/kernel/[^s]** w,
  deny /proc/sys/kernel/s[^h]** w,
  deny /proc/sys/kernel/sh[^m]** w,
  deny /proc/sysrq-trigger rwklx,
  deny /proc/kcore rwklx,

  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    /// A machine with AppArmor where these profiles are loaded.
    fn machine(profiles: &str) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in [("module/apparmor/parameters/enabled", "Y\n"), (PROFILES, profiles)] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory
    }

    /// A parser that keeps what it was given, and how often it ran; or fails.
    fn parser(directory: &Path, script: &str) -> PathBuf {
        let path = directory.join("parser");
        fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", directory.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn of(apparmor: &AppArmor, profile: Option<SecurityProfile>, privileged: bool) -> String {
        let security = ContainerSecurity { apparmor: profile, privileged, ..Default::default() };
        match apparmor.profile(&security) {
            Ok(name) => name.unwrap_or_else(|| UNCONFINED.to_owned()),
            Err(error) => format!("error: {error}"),
        }
    }

    fn all(apparmor: &AppArmor) -> String {
        let localhost = |name: &str| Some(SecurityProfile::Localhost(name.to_owned()));
        let profiles = [
            ("none", None),
            ("RuntimeDefault", Some(SecurityProfile::RuntimeDefault)),
            ("Unconfined", Some(SecurityProfile::Unconfined)),
            ("Localhost known", localhost("a profile")),
            ("Localhost unknown", localhost("a")),
        ];
        let line = |(name, profile): (&str, Option<SecurityProfile>)| {
            format!(
                "{name}: {}; privileged: {}\n",
                of(apparmor, profile.clone(), false),
                of(apparmor, profile, true)
            )
        };
        profiles.map(line).concat()
    }

    #[test]
    fn default_is_loaded_once_and_confines_what_is_not_privileged() {
        let directory = machine("a profile (enforce)\nother (complain)\n");
        let parser = parser(directory.path(), "echo \"$@\" >>calls; cat >text");
        let apparmor = AppArmor::at(directory.path().to_owned(), Some(parser));
        expect_test::expect![[r"
            none: kaji-default; privileged: unconfined
            RuntimeDefault: kaji-default; privileged: unconfined
            Unconfined: unconfined; privileged: unconfined
            Localhost known: a profile; privileged: a profile
            Localhost unknown: error: apparmor profile not found a; privileged: error: apparmor profile not found a
        "]]
        .assert_eq(&all(&apparmor));
        assert_eq!(fs::read_to_string(directory.path().join("calls")).unwrap(), "--replace --skip-cache\n");
        assert!(fs::read_to_string(directory.path().join("text")).unwrap().contains("profile kaji-default "));
    }

    #[test]
    fn default_that_cannot_be_loaded_is_refused_to_those_that_ask_for_it() {
        let directory = machine("a profile (enforce)\n");
        let parser = parser(directory.path(), "echo no rights >&2; exit 3");
        let failing = AppArmor::at(directory.path().to_owned(), Some(parser.clone()));
        let shown = all(&failing).replace(&*parser.to_string_lossy(), "PARSER");
        expect_test::expect![[r"
            none: unconfined; privileged: unconfined
            RuntimeDefault: error: the AppArmor profile kaji-default cannot be loaded: PARSER: exit status: 3: no rights; privileged: unconfined
            Unconfined: unconfined; privileged: unconfined
            Localhost known: a profile; privileged: a profile
            Localhost unknown: error: apparmor profile not found a; privileged: error: apparmor profile not found a
        "]]
        .assert_eq(&shown);
        let absent = AppArmor::at(directory.path().to_owned(), None);
        assert!(all(&absent).contains("apparmor_parser is not installed"));
        let loaded = machine("kaji-default (enforce)\n");
        let loaded = AppArmor::at(loaded.path().to_owned(), None);
        assert_eq!(of(&loaded, None, false), DEFAULT_PROFILE);
    }

    #[test]
    fn without_apparmor_only_unconfined_can_be_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        expect_test::expect![[r"
            none: unconfined; privileged: unconfined
            RuntimeDefault: error: apparmor is not supported; privileged: error: apparmor is not supported
            Unconfined: unconfined; privileged: unconfined
            Localhost known: error: apparmor is not supported; privileged: error: apparmor is not supported
            Localhost unknown: error: apparmor is not supported; privileged: error: apparmor is not supported
        "]]
        .assert_eq(&all(&AppArmor::at(directory.path().to_owned(), None)));
    }

    #[test]
    fn program_that_is_confined_may_signal_containers() {
        for (current, own) in [
            ("unconfined\n", "unconfined"),
            ("a b (enforce)\n", "a b"),
            ("x (complain)\0", "x"),
            ("", "unconfined"),
        ] {
            assert_eq!(label(current), own);
        }
        let text = default_profile("a b", true);
        assert!(text.starts_with("abi <abi/3.0>,\nprofile kaji-default "));
        assert!(
            text.contains("peer=unconfined,\n  signal (receive) peer=\"a b\",\n  signal (send,receive)"),
            "{text}"
        );
        assert!(default_profile(UNCONFINED, false).starts_with("profile kaji-default "));
    }
}
