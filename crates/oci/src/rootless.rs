//! Containers without root: the program enters a user and a mount namespace, in which it is root, and is executed anew there.
//!
//! A process of its own, the holder, makes the namespaces and stays in them, so that containers which outlive the server keep them,
//! and the next server finds them: a user and a mount namespace cannot be pinned by files that an unprivileged process makes.
//!
//! Invariants: namespaces are entered before any thread is started; what the machine refuses is found out once, by trying, when the
//! namespaces are made; the program of before is changed in nothing until it is certain that it can be executed in the namespaces.
//! Whether the namespaces are entered or given up is decided under a lock: a holder that ends has removed its record before.

mod cgroups;
pub(crate) mod holder;
mod mapping;
mod probe;

use crate::{
    manager::{mounts_below, unmount},
    records,
};
use nix::sched::{CloneFlags, setns};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The environment variable by which the program knows that it was executed in the namespaces: [`Facts`].
const VARIABLE: &str = "KAJI_USER_NAMESPACE";
/// Of users and groups that may not make namespaces; each is absent where there is no such limit. With the value that forbids it.
const LIMITS: [(&str, &str); 2] =
    [("/proc/sys/user/max_user_namespaces", "0"), ("/proc/sys/kernel/unprivileged_userns_clone", "0")];
/// Ubuntu's: namespaces can be made, and nothing can be done in them.
const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";

/// What the namespaces allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// How many ids there are beside root's.
    pub ids: u32,
    /// Whether there is a delegated cgroup: limits count, and what containers use is known.
    pub cgroups: bool,
    /// Whether layers of images can be mounted; otherwise each container has a copy of them.
    pub overlays: bool,
    /// Whether `/sys` can be mounted anew; otherwise containers see the machine's.
    pub sysfs: bool,
}

impl Facts {
    /// Those of the namespaces that this program was executed in; `None` when it was not.
    pub fn entered() -> Option<&'static Facts> {
        static ENTERED: OnceLock<Option<Facts>> = OnceLock::new();
        let read = || serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok();
        ENTERED.get_or_init(read).as_ref()
    }
}

/// What the holder says once, when the namespaces are there or cannot be: a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Prepared {
    /// Everything that is needed works.
    Ready(Facts),
    /// Why containers cannot run.
    Refused(String),
}

/// What the holder reads once its ids are mapped: a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapped {
    /// How many there are beside root's.
    ids: u32,
    /// The file that names the holder.
    record: PathBuf,
}

/// The holder, in a file; a later program finds the namespaces by it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    pid: i32,
    start_time: u64,
    facts: Facts,
}

/// Takes away what is mounted at or below a directory in this process's user namespace, so that the directory can be removed.
///
/// # Errors
/// Those of the kernel.
pub fn unmount_below(directory: &Path) -> io::Result<()> {
    mounts_below(directory)?.iter().try_for_each(|point| unmount(point))
}

/// Executes this program anew, with the same arguments, in the namespaces of a data directory: those in which containers of before
/// run, or new ones. It has to be called while the process has one thread. It answers only when that is impossible: why, for
/// one line.
#[must_use]
pub fn enter(data_dir: &Path) -> String {
    let Err(error) = try_enter(data_dir);
    let restricted = fs::read_to_string(APPARMOR).is_ok_and(|text| text.trim() == "1");
    match restricted {
        true => format!("{error} (kernel.apparmor_restrict_unprivileged_userns is set)"),
        false => error.to_string(),
    }
}

fn try_enter(data_dir: &Path) -> io::Result<std::convert::Infallible> {
    if let Some((limit, _)) = LIMITS
        .iter()
        .find(|(path, forbidden)| fs::read_to_string(path).is_ok_and(|text| text.trim() == *forbidden))
    {
        return Err(io::Error::other(format!("{limit} forbids user namespaces")));
    }
    fs::create_dir_all(data_dir).map_err(|error| named(data_dir, &error))?;
    let path = record_path(data_dir)?;
    // Closed when the program is executed anew: this process is in the namespaces then, and the holder finds it there.
    let _lock = lock(&path)?;
    let (record, namespaces, _holder) = match living(&path)? {
        Some((record, namespaces)) => (record, namespaces, None),
        None => {
            let (record, holder) = start_holder(data_dir, &path)?;
            records::write(&path, &record)?;
            let namespaces = Namespaces::of(record.pid)?;
            (record, namespaces, Some(holder))
        }
    };
    namespaces.enter()?;
    let facts = serde_json::to_string(&record.facts)?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("kaji"));
    Err(Command::new("/proc/self/exe").arg0(name).args(arguments).env(VARIABLE, facts).exec())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Where the holder of a data directory is written down: in the directory for what does not outlive the machine's start, if there is
/// one.
fn record_path(data_dir: &Path) -> io::Result<PathBuf> {
    let data_dir = data_dir.canonicalize()?;
    let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|run| run.is_dir());
    let name = format!("{}.json", data_dir.display()).replace('/', "-");
    match run {
        // As long as names of files can be.
        Some(run) if name.len() <= 255 => {
            let directory = run.join("kaji");
            fs::DirBuilder::new().mode(0o700).recursive(true).create(&directory)?;
            Ok(directory.join(name.trim_start_matches('-')))
        }
        _ => Ok(data_dir.join("user-namespace.json")),
    }
}

/// Waits until no other process enters the namespaces or ends them.
fn lock(record: &Path) -> io::Result<File> {
    let path = record.with_extension("lock");
    let open = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|error| named(&path, &error))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| named(&path, &error.into()))?;
    Ok(file)
}

/// The recorded holder and its namespaces, if it lives. One that is killed meanwhile has no namespaces any more before it is a zombie.
fn living(path: &Path) -> io::Result<Option<(Record, Namespaces)>> {
    let Some(record) = records::read::<Record>(path)? else { return Ok(None) };
    if records::start_time(record.pid) != Some(record.start_time) {
        return Ok(None);
    }
    match Namespaces::of(record.pid) {
        Ok(namespaces) => Ok(Some((record, namespaces))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts a holder and maps its ids. It goes on as long as this process has the pipe, or processes are in the namespaces.
fn start_holder(data_dir: &Path, record: &Path) -> io::Result<(Record, Child)> {
    let mut child = Command::new("/proc/self/exe")
        .args(["shim", "hold"])
        .arg(data_dir.canonicalize()?)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let gone = || io::Error::other("the process that makes the user namespace has ended");
    let (mut tell, answers) = (child.stdin.take().ok_or_else(gone)?, child.stdout.take().ok_or_else(gone)?);
    let mut answers = BufReader::new(answers);
    let mut line = String::new();
    answers.read_line(&mut line)?;
    match line.trim_end() {
        holder::ENTERED => {}
        "" => return Err(gone()),
        refused => return Err(io::Error::other(refused.to_owned())),
    }
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let ids = mapping::write(pid)?;
    let mapped = serde_json::to_string(&Mapped { ids, record: record.to_owned() })?;
    tell.write_all(format!("{mapped}\n").as_bytes())?;
    line.clear();
    answers.read_line(&mut line)?;
    if line.is_empty() {
        return Err(gone());
    }
    // The pipe ends when this program is executed anew.
    child.stdin = Some(tell);
    match serde_json::from_str(&line)? {
        Prepared::Refused(why) => Err(io::Error::other(why)),
        Prepared::Ready(facts) => {
            let start_time = records::start_time(pid).ok_or_else(gone)?;
            Ok((Record { pid, start_time, facts }, child))
        }
    }
}

/// Those of a holder; open, so that they exist until they are entered.
struct Namespaces {
    user: File,
    mount: File,
}

impl Namespaces {
    fn of(pid: i32) -> io::Result<Namespaces> {
        let open = |name: &str| {
            let path = format!("/proc/{pid}/ns/{name}");
            File::open(&path).map_err(|error| named(Path::new(&path), &error))
        };
        Ok(Namespaces { user: open("user")?, mount: open("mnt")? })
    }

    /// Enters them, and the working directory there.
    fn enter(&self) -> io::Result<()> {
        let directory = std::env::current_dir()?;
        setns(&self.user, CloneFlags::CLONE_NEWUSER)
            .map_err(|error| io::Error::other(format!("entering the user namespace: {error}")))?;
        setns(&self.mount, CloneFlags::CLONE_NEWNS)
            .map_err(|error| io::Error::other(format!("entering the mount namespace: {error}")))?;
        std::env::set_current_dir(directory)
    }
}
