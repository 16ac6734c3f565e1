//! AppArmor profiles of containers: which one a container is confined by, and the default one, which `apparmor_parser` loads.
//! Which profile applies is decided as containerd's CRI plug-in does.
//!
//! Invariants: a profile that a pod asks for is enforced, or the container is refused; the default one is loaded once, before the
//! first container that it confines is made. Where a node could load it, no container that it would confine runs without it.

use crate::rootless::Facts;
use kaji_containers::{ContainerSecurity, RuntimeError, SecurityProfile};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The name of the default profile.
pub const DEFAULT_PROFILE: &str = "kaji-default";
/// Relative to `/sys`: the loaded profiles, one a line.
const PROFILES: &str = "kernel/security/apparmor/profiles";
/// Without it the parser takes the kernel to have what it had years ago.
const ABI: &str = "/etc/apparmor.d/abi/3.0";
/// For how long the parser may run: a kernel compiles no profile, and a parser without a cache takes less than a second.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(5);
/// Of a process that no profile confines.
const UNCONFINED: &str = "unconfined";

/// AppArmor on a node.
#[derive(Debug)]
pub struct AppArmor {
    sys: PathBuf,
    parser: Parser,
    /// What stays as it is while the node runs: the profile is loaded, or the node has nothing to load it with.
    settled: Mutex<Option<Result<(), String>>>,
}

/// What loads profiles.
#[derive(Debug)]
enum Parser {
    Program(PathBuf),
    Absent,
    /// A root of a user namespace, which the kernel lets load nothing.
    Forbidden,
}

/// Why the default profile is not loaded.
enum NotLoaded {
    /// The node has nothing that loads profiles: as if it had no AppArmor, for those that ask for none.
    Unavailable(String),
    /// It was tried without success, and is tried again.
    Failed(String),
}

impl AppArmor {
    /// That of this machine.
    pub fn of_machine() -> AppArmor {
        let parser = match (Facts::entered(), kaji_files::apparmor_parser()) {
            (Some(_), _) => Parser::Forbidden,
            (None, Some(program)) => Parser::Program(program),
            (None, None) => Parser::Absent,
        };
        AppArmor::at("/sys".into(), parser)
    }

    fn at(sys: PathBuf, parser: Parser) -> AppArmor {
        AppArmor { sys, parser, settled: Mutex::default() }
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
            None => match self.load_default() {
                Ok(()) => Ok(Some(DEFAULT_PROFILE.to_owned())),
                Err(NotLoaded::Unavailable(_)) => Ok(None),
                Err(NotLoaded::Failed(error)) => Err(cannot_load(&error)),
            },
            Some(_) if !enabled => Err(RuntimeError::InvalidArgument("apparmor is not supported".to_owned())),
            Some(SecurityProfile::RuntimeDefault) if security.privileged => Ok(None),
            Some(SecurityProfile::RuntimeDefault) => match self.load_default() {
                Ok(()) => Ok(Some(DEFAULT_PROFILE.to_owned())),
                Err(NotLoaded::Unavailable(error) | NotLoaded::Failed(error)) => Err(cannot_load(&error)),
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
    fn load_default(&self) -> Result<(), NotLoaded> {
        // Held while the parser runs: one is enough.
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = &*settled {
            return outcome.clone().map_err(NotLoaded::Unavailable);
        }
        let outcome = match &self.parser {
            Parser::Program(program) => {
                load(program, DEADLINE).map_err(|error| {
                    let error = format!("{}: {error}", program.display());
                    tracing::warn!(
                        error,
                        "the default AppArmor profile was not loaded: no container starts that it would confine"
                    );
                    NotLoaded::Failed(error)
                })?;
                Ok(())
            }
            _ if self.is_loaded(DEFAULT_PROFILE) => Ok(()),
            Parser::Absent => Err("apparmor_parser is not installed".to_owned()),
            Parser::Forbidden => Err("a node without root loads no profiles".to_owned()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(
                error,
                "containers that ask for no AppArmor profile run without one, and those that ask for the default one are refused"
            );
        }
        settled.insert(outcome).clone().map_err(NotLoaded::Unavailable)
    }
}

fn cannot_load(error: &str) -> RuntimeError {
    RuntimeError::FailedPrecondition(format!(
        "the AppArmor profile {DEFAULT_PROFILE} cannot be loaded: {error}"
    ))
}

/// Has a parser load the default profile.
fn load(parser: &Path, deadline: Duration) -> Result<(), String> {
    let own = std::fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    let text = default_profile(label(&own), Path::new(ABI).exists());
    let run = || {
        let mut child = Command::new(parser)
            .args(["--replace", "--skip-cache"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        // A parser that ends early says why. The text is shorter than what a pipe holds.
        let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
        let output = end(child, deadline)?;
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

/// Waits for a process, which is killed when it takes too long.
fn end(mut child: Child, deadline: Duration) -> io::Result<Output> {
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() >= deadline {
            child.kill()?;
            child.wait()?;
            let seconds = deadline.as_secs_f64();
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no end after {seconds} s")));
        }
        std::thread::sleep(INTERVAL);
    }
    child.wait_with_output()
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
        let apparmor = AppArmor::at(directory.path().to_owned(), Parser::Program(parser));
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
    fn no_container_starts_that_a_failed_default_would_confine() {
        let directory = machine("a profile (enforce)\n");
        let parser =
            parser(directory.path(), "[ ! -e mended ] || exec cat >text; echo no rights >&2; exit 3");
        let failing = AppArmor::at(directory.path().to_owned(), Parser::Program(parser.clone()));
        let shown = all(&failing).replace(&*parser.to_string_lossy(), "PARSER");
        expect_test::expect![[r"
            none: error: the AppArmor profile kaji-default cannot be loaded: PARSER: exit status: 3: no rights; privileged: unconfined
            RuntimeDefault: error: the AppArmor profile kaji-default cannot be loaded: PARSER: exit status: 3: no rights; privileged: unconfined
            Unconfined: unconfined; privileged: unconfined
            Localhost known: a profile; privileged: a profile
            Localhost unknown: error: apparmor profile not found a; privileged: error: apparmor profile not found a
        "]]
        .assert_eq(&shown);
        fs::write(directory.path().join("mended"), "").unwrap();
        assert_eq!(of(&failing, None, false), DEFAULT_PROFILE);
    }

    #[test]
    fn default_of_a_node_without_a_parser_is_refused_to_those_that_ask_for_it() {
        let directory = machine("a profile (enforce)\n");
        let absent = AppArmor::at(directory.path().to_owned(), Parser::Absent);
        expect_test::expect![[r"
            none: unconfined; privileged: unconfined
            RuntimeDefault: error: the AppArmor profile kaji-default cannot be loaded: apparmor_parser is not installed; privileged: unconfined
            Unconfined: unconfined; privileged: unconfined
            Localhost known: a profile; privileged: a profile
            Localhost unknown: error: apparmor profile not found a; privileged: error: apparmor profile not found a
        "]]
        .assert_eq(&all(&absent));
        let forbidden = AppArmor::at(directory.path().to_owned(), Parser::Forbidden);
        assert_eq!(of(&forbidden, None, false), UNCONFINED);
        assert!(all(&forbidden).contains("a node without root loads no profiles"));
        for parser in [Parser::Absent, Parser::Forbidden] {
            let loaded = machine("kaji-default (enforce)\n");
            let loaded = AppArmor::at(loaded.path().to_owned(), parser);
            assert_eq!(of(&loaded, None, false), DEFAULT_PROFILE);
        }
    }

    #[test]
    fn parser_that_does_not_end_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let parser = parser(directory.path(), "echo $$ >pid; exec sleep 1000");
        let error = load(&parser, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error, "no end after 0.3 s");
    }

    #[test]
    fn lists_of_profiles_are_read_as_far_as_they_make_sense() {
        for (list, known) in [
            ("", false),
            ("\n\n", false),
            ("a", false),
            ("a (", true),
            ("(enforce)\n (enforce)\na (b) (enforce)\n", false),
            ("\u{0}\na (kill)", true),
        ] {
            let directory = machine(list);
            let apparmor = AppArmor::at(directory.path().to_owned(), Parser::Absent);
            assert_eq!(apparmor.is_loaded("a"), known, "{list:?}");
        }
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
        .assert_eq(&all(&AppArmor::at(directory.path().to_owned(), Parser::Absent)));
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
