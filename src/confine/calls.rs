//! System calls that git, ssh, Python and ansible-galaxy make in any version. All other calls fail as on a kernel
//! without them: among others, calls that reach into other processes, and calls of newer kernels.
//!
//! Owns the list of allowed calls. `sockets` knows which sockets the allowed calls may not make.

use nix::libc;
use seccompiler::{SeccompAction, SeccompRule};

use super::sockets::{Rules, apply, has};

/// A list of system calls, without the prefix that makes each a constant of `libc`.
macro_rules! calls { ($($call:ident)*) => { &[$(libc::$call),*] } }

const COMMON: &[i64] = calls! {
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2
    SYS_lseek SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_fcntl SYS_flock SYS_ioctl SYS_fstat
    SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir
    SYS_mkdirat SYS_mknodat SYS_unlinkat SYS_linkat SYS_symlinkat SYS_renameat2 SYS_fchmod SYS_fchmodat SYS_fchown
    SYS_fchownat SYS_umask SYS_truncate SYS_ftruncate SYS_fallocate SYS_utimensat SYS_fsync SYS_fdatasync SYS_fadvise64
    SYS_readahead SYS_copy_file_range SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_pipe2 SYS_statfs SYS_fstatfs
    SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_setxattr SYS_lsetxattr
    SYS_fsetxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_brk SYS_mmap SYS_munmap SYS_mprotect SYS_mremap
    SYS_madvise SYS_msync SYS_mincore SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_membarrier
    SYS_clone SYS_execve SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_getpid SYS_getppid SYS_gettid SYS_getpgid
    SYS_setpgid SYS_getsid SYS_setsid SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigaction SYS_rt_sigpending
    SYS_rt_sigprocmask SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo
    SYS_sigaltstack SYS_restart_syscall SYS_prctl SYS_prlimit64 SYS_getrusage SYS_times SYS_sysinfo SYS_uname SYS_getcpu
    SYS_sched_yield SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_set_tid_address SYS_set_robust_list SYS_rseq SYS_futex SYS_futex_waitv SYS_getuid
    SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_setuid SYS_setgid SYS_setreuid
    SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups SYS_capget SYS_clock_gettime
    SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getitimer SYS_setitimer SYS_timer_create
    SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun SYS_timer_delete SYS_timerfd_create SYS_timerfd_settime
    SYS_timerfd_gettime SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_eventfd2 SYS_signalfd4 SYS_socket SYS_socketpair SYS_bind SYS_connect SYS_accept SYS_accept4 SYS_getsockname
    SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg
    SYS_recvmmsg SYS_shutdown SYS_getrandom
};

/// System calls of this processor only, most of them older forms of calls in [`COMMON`].
#[cfg(target_arch = "x86_64")]
const OWN: &[i64] = calls! {
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_wait
    SYS_eventfd SYS_fchmodat2 SYS_fork SYS_futimesat SYS_getdents SYS_getpgrp SYS_getrlimit SYS_lchown SYS_link
    SYS_lstat SYS_mkdir SYS_mknod SYS_open SYS_pause SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_renameat SYS_rmdir
    SYS_select SYS_setrlimit SYS_signalfd SYS_stat SYS_symlink SYS_sync_file_range SYS_time SYS_unlink SYS_utime
    SYS_utimes SYS_vfork
};
/// renameat, sync_file_range, getrlimit, setrlimit and fchmodat2, for which the crate `libc` has no names here.
#[cfg(not(target_arch = "x86_64"))]
const OWN: &[i64] = &[38, 84, 163, 164, 452];

/// The flags with which clone makes namespaces, in which a process would have all rights: CLONE_NEWNS, and
/// CLONE_NEWCGROUP to CLONE_NEWNET.
const NAMESPACES: u64 = 0x7e02_0000;

/// Refuses all other calls to this process and to the processes that it starts.
pub(super) fn refuse() -> Result<(), seccompiler::Error> {
    let mut allowed: Rules = COMMON.iter().chain(OWN).map(|call| (*call, Vec::new())).collect();
    let without = |bits| Ok::<_, seccompiler::BackendError>(vec![SeccompRule::new(vec![has(0, bits, 0)?])?]);
    allowed.insert(libc::SYS_clone, without(NAMESPACES)?);
    // Only the limits of this process (process ID 0), not of others.
    allowed.insert(libc::SYS_prlimit64, without(u64::from(u32::MAX))?);
    apply(allowed, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()), SeccompAction::Allow)
}
