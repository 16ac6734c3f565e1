//! Disks of members of etcd: each an ext4 file system of its own, in a file, that can be made to stand still, to be full, to fail, and
//! to lose what was not synced.
//!
//! Invariants: a file system is mounted only in a mount namespace of the run, and ends with it; a process is killed only while its file
//! system goes on, since one that waits for a frozen one does not end; what was synced is there after every fault.

use crate::bench::Error;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::statvfs::statvfs,
};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Bytes of a disk. The file has holes: it takes what is written.
const SIZE: u64 = 2 << 30;
/// The request `FS_IOC_SHUTDOWN` with the flag that leaves out the journal's flush: the file system is then as after a power failure.
const SHUT_DOWN: &str = "import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

/// What happens to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Writes wait.
    Frozen,
    /// Nothing more fits.
    Full,
    /// An error: nothing can be written any more, and what was not synced may be lost.
    ReadOnly,
    /// The power fails: what was not synced is lost.
    PowerLoss,
}

/// Which faults disks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DiskFaults {
    /// Those after which everything that was written is there.
    Blocking,
    /// Also those after which only what was synced is. They try etcd as much as its clients.
    Losing,
}

impl DiskFaults {
    /// As `--member-disks` has it.
    pub fn name(self) -> &'static str {
        match self {
            DiskFaults::Blocking => "blocking",
            DiskFaults::Losing => "losing",
        }
    }

    /// The faults.
    pub fn faults(self) -> &'static [DiskFault] {
        match self {
            DiskFaults::Blocking => &[DiskFault::Frozen, DiskFault::Full],
            DiskFaults::Losing => {
                &[DiskFault::Frozen, DiskFault::Full, DiskFault::ReadOnly, DiskFault::PowerLoss]
            }
        }
    }
}

/// Puts this thread, and those that it starts, in a mount namespace that ends with them.
///
/// # Errors
/// Without the right to do so.
pub fn enter_namespace() -> Result<(), Error> {
    let private = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
    };
    private().map_err(|e| Error::Server(format!("no mount namespace for disks of members: {e}")))
}

/// The disk of one member.
pub struct Disk {
    image: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    /// Makes a file system in `<dir>/<name>.img`, and mounts it at `<dir>/<name>`.
    ///
    /// # Errors
    /// When that is not possible here.
    pub fn make(dir: &Path, name: &str) -> Result<Disk, Error> {
        let (image, mounted) = (dir.join(format!("{name}.img")), dir.join(name));
        let file = fs::File::create(&image).map_err(|e| Error::file(&image, e))?;
        file.set_len(SIZE).map_err(|e| Error::file(&image, e))?;
        fs::create_dir_all(&mounted).map_err(|e| Error::file(&mounted, e))?;
        let disk = Disk { image, mounted };
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&disk.image))?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), Error> {
        let mut command = Command::new("mount");
        run(command.args(["-o", "loop,errors=remount-ro"]).arg(&self.image).arg(&self.mounted)).map(drop)
    }

    fn unmount(&self) -> Result<(), Error> {
        umount2(&self.mounted, MntFlags::empty()).map_err(|e| self.error(e))
    }

    fn error(&self, error: nix::Error) -> Error {
        Error::file(&self.mounted, error.into())
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }

    /// The fault begins. While a disk is frozen its member must not be killed.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn begin(&self, fault: DiskFault) -> Result<(), Error> {
        match fault {
            DiskFault::Frozen => run(Command::new("fsfreeze").arg("--freeze").arg(&self.mounted)).map(drop),
            DiskFault::Full => self.fill(),
            DiskFault::ReadOnly => self.fail(),
            DiskFault::PowerLoss => {
                run(Command::new("python3").args(["-c", SHUT_DOWN]).arg(&self.mounted)).map(drop)
            }
        }
    }

    /// The fault ends, before the member is started again. After one that loses what was not synced, nothing may use the disk.
    ///
    /// # Errors
    /// When it cannot be undone.
    pub fn end(&self, fault: DiskFault) -> Result<(), Error> {
        match fault {
            DiskFault::Frozen => run(Command::new("fsfreeze").arg("--unfreeze").arg(&self.mounted)).map(drop),
            DiskFault::Full => {
                // Synced, so that it does not come back when the power fails.
                let removed = match fs::remove_file(self.ballast()) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    other => other,
                };
                let synced = removed.and_then(|()| fs::File::open(&self.mounted)?.sync_all());
                synced.map_err(|e| Error::file(&self.mounted, e))
            }
            DiskFault::ReadOnly | DiskFault::PowerLoss => {
                self.unmount()?;
                // What an error has marked is checked, as at a start of a machine; 1 says that something was corrected.
                let mut check = Command::new("e2fsck");
                check.args(["-p", "-f"]).arg(&self.image);
                let checked = output(&mut check)?;
                if !matches!(checked.status.code(), Some(0 | 1)) {
                    return Err(failed(&check, &checked));
                }
                self.mount()
            }
        }
    }

    /// Takes all blocks that are free.
    fn fill(&self) -> Result<(), Error> {
        let sizes = statvfs(&self.mounted).map_err(|e| self.error(e))?;
        let free = sizes.blocks_available().saturating_mul(sizes.fragment_size());
        // The writes of the member go on meanwhile, and the map of the blocks takes some.
        for left in [0, 1 << 20, 4 << 20, 16 << 20] {
            let size = u64::saturating_sub(free, left).to_string();
            let mut command = Command::new("fallocate");
            if output(command.args(["--length", &size]).arg(self.ballast()))?.status.success() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lets the file system find an error, as it would find a damaged block.
    fn fail(&self) -> Result<(), Error> {
        let mut command = Command::new("findmnt");
        let found = run(command.args(["--noheadings", "--output", "SOURCE"]).arg(&self.mounted))?;
        let device = String::from_utf8_lossy(&found.stdout).trim().trim_start_matches("/dev/").to_owned();
        let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
        fs::write(&trigger, "1").map_err(|e| Error::file(&trigger, e))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // One that is frozen could not be given back. In vain for all others.
        let _goes_on = output(Command::new("fsfreeze").arg("--unfreeze").arg(&self.mounted));
        // It also ends with the namespace.
        let _unmounted = umount2(&self.mounted, MntFlags::MNT_DETACH);
    }
}

fn output(command: &mut Command) -> Result<Output, Error> {
    command.output().map_err(|e| Error::file(Path::new(command.get_program()), e))
}

fn failed(command: &Command, output: &Output) -> Error {
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Error::Server(format!("{}: {}: {text}", command.get_program().display(), output.status))
}

/// Runs a program that has to succeed.
fn run(command: &mut Command) -> Result<Output, Error> {
    let output = output(command)?;
    if output.status.success() { Ok(output) } else { Err(failed(command, &output)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_testing::skip::skipped;
    use std::{
        fs::File,
        io::Write,
        sync::mpsc::{RecvTimeoutError, channel},
        time::Duration,
    };

    /// A disk in a namespace of the test's thread, where that is possible.
    fn disk(dir: &Path) -> Option<Disk> {
        let made = enter_namespace().and_then(|()| Disk::make(dir, "disk"));
        made.inspect_err(|error| skipped("disks-of-members", &error.to_string())).ok()
    }

    fn write(path: &Path, synced: bool) -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&[1; 1000])?;
        if synced { file.sync_all() } else { Ok(()) }
    }

    #[test]
    fn what_was_synced_outlives_each_fault() {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = disk(dir.path()) else { return };
        for &fault in DiskFaults::Losing.faults() {
            let path = disk.mounted.join(format!("{fault:?}"));
            write(&path, true).unwrap();
            disk.begin(fault).unwrap();
            disk.end(fault).unwrap();
            assert_eq!(fs::read(&path).unwrap(), [1; 1000], "{fault:?}");
            write(&path, true).unwrap();
        }
    }

    #[test]
    fn what_was_not_synced_is_lost_with_the_power() {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = disk(dir.path()) else { return };
        let path = disk.mounted.join("not-synced");
        write(&path, false).unwrap();
        disk.begin(DiskFault::PowerLoss).unwrap();
        disk.end(DiskFault::PowerLoss).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_written_while_a_fault_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = disk(dir.path()) else { return };
        let path = disk.mounted.join("file");
        for fault in [DiskFault::Full, DiskFault::ReadOnly, DiskFault::PowerLoss] {
            disk.begin(fault).unwrap();
            let error = write(&path, true).unwrap_err();
            let expected = match fault {
                DiskFault::Full => error.kind() == ErrorKind::StorageFull,
                DiskFault::ReadOnly => error.kind() == ErrorKind::ReadOnlyFilesystem,
                _ => error.raw_os_error() == Some(nix::libc::EIO),
            };
            assert!(expected, "{fault:?}: {error:?}");
            disk.end(fault).unwrap();
        }
        disk.begin(DiskFault::Frozen).unwrap();
        let (sender, written) = channel();
        let writer = std::thread::spawn(move || sender.send(write(&path, true).map_err(|e| e.to_string())));
        assert_eq!(written.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
        disk.end(DiskFault::Frozen).unwrap();
        assert_eq!(written.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
        writer.join().unwrap().unwrap();
    }
}
