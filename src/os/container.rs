//! Whether this process runs in a container, and which directories are volumes there. Owns how both are recognised,
//! not what follows from it.
//!
//! A container is a PID namespace other than the host's; the host's users and their processes are outside of it. A
//! volume is a mount of its own that those users cannot reach: a file system of its own, or one of the directories
//! that a kubelet makes for a pod, below a directory that is closed to them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The inode of the host's PID namespace, which is the same on every kernel (`PROC_PID_INIT_INO`).
const HOST_PIDS: u64 = 0xefff_fffc;
/// The prefix of the directories in which a kubelet keeps volumes, one directory for each plugin.
const KUBELET_VOLUMES: &str = "kubernetes.io~";

/// Whether this process runs in a container.
pub(crate) fn is_entered() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|pids| pids.ino() != HOST_PIDS)
}

/// Whether a volume is mounted at a path.
pub(crate) fn is_volume(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    fs::canonicalize(path).is_ok_and(|path| is_volume_in(&mounts, &path))
}

/// Reads `mounts` as the lines of `proc_pid_mountinfo(5)`.
fn is_volume_in(mounts: &str, path: &Path) -> bool {
    let mut places = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        Some((unescaped(fields.next()?), unescaped(fields.next()?)))
    });
    // The last mount at a path hides earlier ones.
    let source = places.rfind(|(_, at)| at == path).map(|(source, _)| source);
    source.is_some_and(|source| {
        let of_kubelet =
            |part: &std::ffi::OsStr| part.as_encoded_bytes().starts_with(KUBELET_VOLUMES.as_bytes());
        source == Path::new("/") || source.iter().any(of_kubelet)
    })
}

/// Undoes mountinfo's octal escapes, such as `\040` for a blank.
fn unescaped(field: &str) -> PathBuf {
    let mut parts = field.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                path.push(char::from(code));
                path.push_str(&part[3..]);
            }
            None => path.push_str(part),
        }
    }
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_a_file_system_of_its_own_or_the_kubelets() {
        const MOUNTS: &str = "\
22 1 0:40 / / rw - overlay overlay rw
31 22 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/data /var/lib/receptor rw - ext4 /dev/sda1 rw
32 22 8:1 /home/shared /mnt/host rw - ext4 /dev/sda1 rw
33 22 0:52 / /mnt/memory rw - tmpfs tmpfs rw
34 22 0:53 / /mnt/a\\040blank rw - tmpfs tmpfs rw
35 33 8:1 /home/shared /mnt/memory rw - ext4 /dev/sda1 rw";
        for (path, is_one) in [
            ("/var/lib/receptor", true),
            ("/mnt/host", false),
            ("/mnt/a blank", true),
            ("/mnt/memory", false),
            ("/var/lib/receptor/below", false),
        ] {
            assert_eq!(is_volume_in(MOUNTS, Path::new(path)), is_one, "{path}");
        }
    }
}
