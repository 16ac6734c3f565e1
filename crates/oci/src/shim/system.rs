//! The four system interfaces that have no safe wrapper. The only file of the crate with unsafe code.

#![allow(unsafe_code)]

use libc::{SECCOMP_SET_MODE_FILTER, SYS_seccomp, c_ushort, sock_filter, sock_fprog};
use nix::unistd::{ForkResult, fork};
use seccompiler::BpfProgram;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Runs `child` in a process of its own and answers its id. The child ends with the function, or with a panic of it.
///
/// The process has to be single-threaded, as a shim is: then the child finds every lock free.
///
/// # Errors
/// Those of fork(2).
pub fn fork_child(child: impl FnOnce()) -> io::Result<i32> {
    debug_assert_eq!(std::fs::read_dir("/proc/self/task")?.count(), 1);
    // SAFETY: after a fork of a process with one thread the child may call anything, since no other thread can have held a
    // lock or have left memory in the middle of a change. A shim never starts a thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            std::process::exit(i32::from(outcome.is_err()));
        }
    }
}

/// Loads a filter of system calls for this process and all that it becomes. Unlike `seccompiler::apply_filter` this leaves
/// `no_new_privs` alone, so that set-user-id programs work in containers that permit them; CAP_SYS_ADMIN is needed then.
///
/// # Errors
/// Those of seccomp(2).
pub fn load_filter(program: &BpfProgram) -> io::Result<()> {
    let length = c_ushort::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the filter program is too long"))?;
    let mut filter: Vec<sock_filter> =
        program.iter().map(|i| sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let program = sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to `length` instructions that live until after the call; the kernel copies them.
    let result = unsafe { libc::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has every signal do what it does by default: a program inherits the signals that are ignored, SIGPIPE by Rust's start-up code, SIGHUP
/// and others by what started the server. The two that the C library keeps for itself stay as they are.
pub fn default_signals() {
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action installs no handler that could run. What cannot be changed is refused by an error.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// `struct pidfd_info` of linux/pidfd.h, as it was first published.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// How a process ended that is not a child of this one, as wait(2) shows it. `None` while it runs or is not collected by its parent,
/// and before Linux 6.15. The descriptor has to be opened while the process ran.
pub fn collected_status(process: BorrowedFd<'_>) -> Option<i32> {
    /// `PIDFD_INFO_EXIT`
    const EXIT: u64 = 1 << 3;
    /// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`
    const GET_INFO: u32 = 0xc000_ff0b | (size_of::<PidfdInfo>() as u32) << 16;
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the request has the size of `info`, which is all that the kernel reads and writes; every bit pattern is valid for it.
    let result = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO as libc::Ioctl, &raw mut info) };
    (result == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}
