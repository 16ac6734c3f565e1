//! The default profile: what containerd's default admits, by the capabilities that the container has.

use super::{Argument, Profile, Rule};

/// Admitted for every container.
const BASE: &str = "
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown clock_adjtime
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2
    dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
    epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
    fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr
    flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue
    futex_wait futex_waitv futex_wake futimesat getcpu getcwd getdents getdents64 getegid geteuid getgid
    getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresuid getrlimit get_robust_list getrusage getsid getsockname getsockopt get_thread_area gettid
    gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel
    ioctl io_destroy io_getevents io_pgetevents ioprio_get ioprio_set io_setup io_submit kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattrat
    listxattr llistxattr lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules lsm_set_self_attr lstat madvise map_shadow_stack membarrier
    memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv
    msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2
    pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl
    pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace
    pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg
    remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sched_getaffinity sched_getattr sched_getparam sched_get_priority_max
    sched_get_priority_min sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile
    sendmmsg sendmsg sendto setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
    setresgid setresuid setreuid setrlimit set_robust_list setsid setsockopt set_thread_area
    set_tid_address setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4
    socketpair splice stat statfs statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill
    time timer_create timer_delete timerfd_create timerfd_gettime timerfd_settime timer_getoverrun
    timer_gettime timer_settime times tkill truncate umask uname unlink unlinkat uretprobe utime utimensat utimes
    vfork vmsplice wait4 waitid write writev
";

/// Admitted for containers that have the capability.
const BY_CAPABILITY: &[(&str, &str)] = &[
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    (
        "CAP_SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount2 unshare",
    ),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module init_module finit_module"),
    ("CAP_SYS_PACCT", "acct"),
    ("CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    ("CAP_SYS_RAWIO", "iopl ioperm"),
    ("CAP_SYS_TIME", "settimeofday clock_settime adjtimex"),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    ("CAP_SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("CAP_SYSLOG", "syslog"),
    ("CAP_BPF", "bpf"),
    ("CAP_PERFMON", "perf_event_open"),
];

/// Of this architecture.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "arch_prctl modify_ldt";
/// Of this architecture.
#[cfg(not(target_arch = "x86_64"))]
const ARCHITECTURE: &str = "";

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID` and `NEWNET`.
const NEW_NAMESPACES: u64 = 0x7e02_0000;
/// Address family of virtual machines' sockets: they reach the host past the pod's network.
const AF_VSOCK: u64 = 40;
/// Address family of the kernel's cryptography, of which the faults have been ways to the node's root.
const AF_ALG: u64 = 38;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// The default profile for a container with these capabilities (`CAP_...`) in its bounding set.
pub fn runtime_default(capabilities: &[String]) -> Profile {
    let has = |name: &str| capabilities.iter().any(|capability| capability == name);
    let mut syscalls = vec![
        allow(BASE, vec![]),
        allow(ARCHITECTURE, vec![]),
        allow("socket", vec![]),
        // The kernel reads the lower half of the register only, and so has the comparison to.
        refuse("socket", EPERM, vec![argument("SCMP_CMP_MASKED_EQ", 0xffff_ffff, AF_VSOCK)]),
        refuse("socket", EPERM, vec![argument("SCMP_CMP_MASKED_EQ", 0xffff_ffff, AF_ALG)]),
    ];
    // Linux, 32-bit processes on 64-bit kernels, without address randomization, both, and only asking.
    for personality in [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
        syscalls.push(allow("personality", vec![argument("SCMP_CMP_EQ", personality, 0)]));
    }
    for (_, names) in BY_CAPABILITY.iter().filter(|(capability, _)| has(capability)) {
        syscalls.push(allow(names, vec![]));
    }
    if !has("CAP_SYS_ADMIN") {
        syscalls.push(allow("clone", vec![argument("SCMP_CMP_MASKED_EQ", NEW_NAMESPACES, 0)]));
        // Its flags are in memory, which filters cannot read. C libraries fall back to clone at this error only.
        syscalls.push(refuse("clone3", ENOSYS, vec![]));
    }
    Profile { default_action: "SCMP_ACT_ERRNO".to_owned(), syscalls, ..Default::default() }
}

fn allow(names: &str, args: Vec<Argument>) -> Rule {
    let names = names.split_whitespace().map(str::to_owned).collect();
    Rule { names, action: "SCMP_ACT_ALLOW".to_owned(), args, ..Default::default() }
}

fn argument(op: &str, value: u64, value_two: u64) -> Argument {
    Argument { index: 0, value, value_two, op: op.to_owned() }
}

fn refuse(name: &str, errno: u32, args: Vec<Argument>) -> Rule {
    let (names, action) = (vec![name.to_owned()], "SCMP_ACT_ERRNO".to_owned());
    Rule { names, action, errno_ret: Some(errno), args }
}
