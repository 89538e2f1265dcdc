//! Removes the containers that a unit's processes have started, and the registry logins that ansible-runner writes to
//! files for them, because an ansible-runner that is killed removes neither. Finds both in the command lines of podman
//! and docker processes, which end with the unit. A job can write anything into a command line, so nothing from it is
//! executed or opened. Only names are taken: that of a container if it looks like ansible-runner's, and that of a
//! login's directory below the directory for temporary files. The engine is the one that this program finds. Knows no
//! other container.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::User;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::Uid;

use super::fork;
use super::processes::{Process, is_apart, words};
use super::rights::{Rights, inherit, look_up, set_runtime_dir};
use crate::work::limits::Limits;

const ENGINES: [&str; 2] = ["podman", "docker"];
/// How ansible-runner begins the names of containers and of directories with a login, and the names of all files that
/// it writes there.
const NAME: &str = "ansible_runner_";
const LOGIN: &str = "ansible_runner_registry_";
const LOGIN_FILES: [&str; 3] = ["auth.json", "config.json", "registries.conf"];
/// How long the removal of a container may take, and the pause between checks whether it has ended.
const REMOVAL_WITHIN: Duration = Duration::from_secs(5);
const REMOVAL_EVERY: Duration = Duration::from_millis(10);

/// The containers and logins that were found.
#[derive(Debug, Default)]
pub(super) struct Containers {
    /// The rights of the unit's user, if it has one of its own.
    rights: Option<Rights>,
    /// The engine and the name of each container.
    named: BTreeSet<(&'static str, String)>,
    logins: BTreeSet<String>,
}

impl Containers {
    /// Finds those of a unit's processes. Looks only at processes of the unit's user, and at none inside a container or
    /// another confinement.
    pub(super) fn of(processes: &[Process], limits: &Limits) -> Self {
        // A user that is unknown by now has no rights that could be taken.
        let Ok(known) = limits.user.as_deref().map(look_up).transpose() else { return Self::default() };
        let rights = known.map(|(rights, _)| rights);
        let user = user_of(rights.as_ref());
        let mut found = Self { rights, ..Self::default() };
        for &(pid, _) in processes {
            let owner = std::fs::metadata(format!("/proc/{pid}")).map(|facts| facts.uid());
            if owner.ok() != Some(user.as_raw()) || is_apart(pid) {
                continue;
            }
            let Some(started) = words(pid, "cmdline").ok().as_deref().and_then(parse) else { continue };
            found.named.insert((started.engine, started.name));
            found.logins.extend(started.login);
        }
        found
    }

    /// Removes them with the rights of the unit's user, and with no more of the daemon's environment than the unit got.
    /// Blocks for a limited time.
    pub(super) fn remove(self, limits: &Limits) {
        let rights = self.rights.as_ref();
        for (engine, name) in self.named {
            let mut command = Command::new(engine);
            command.args(["rm", "-f", &name]).current_dir("/");
            inherit(&mut command, limits, rights);
            if let Some(rights) = rights {
                let user = User::from_uid(rights.user).ok().flatten();
                command.envs(user.map(|user| ("HOME", user.dir)));
            }
            set_runtime_dir(&mut command, rights.map(|rights| rights.user));
            run(&mut command, rights);
        }
        for login in self.logins {
            // If the directory is gone, there is nothing to remove.
            let _ = remove_login(&std::env::temp_dir(), &login, user_of(rights));
        }
    }
}

fn user_of(rights: Option<&Rights>) -> Uid {
    rights.map_or_else(rustix::process::geteuid, |rights| Uid::from_raw(rights.user.as_raw()))
}

/// Runs a command of an engine to its end, or kills it.
pub(crate) fn run(command: &mut Command, rights: Option<&Rights>) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = fork::prepare(command, rights.cloned(), None, false).spawn() else { return false };
    let deadline = Instant::now() + REMOVAL_WITHIN;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(REMOVAL_EVERY),
            Ok(Some(end)) => return end.success(),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// The name of the directory with a login that a command line names.
pub(crate) fn login_of(words: &[OsString]) -> Option<String> {
    parse(words)?.login
}

/// A container as a command line starts it.
struct Started {
    engine: &'static str,
    name: String,
    login: Option<String>,
}

fn parse(words: &[OsString]) -> Option<Started> {
    // The interpreter of a script comes first.
    let engine_of = |word: &OsString| {
        let name = Path::new(word).file_name()?;
        ENGINES.into_iter().find(|engine| name == *engine)
    };
    let engine = words.iter().take(2).find_map(engine_of)?;
    words.iter().find(|word| *word == "run")?;
    let value = |name: &str| {
        let mut words = words.iter();
        words
            .find_map(|word| match word.as_bytes().strip_prefix(name.as_bytes())? {
                [] => Some(None),
                [b'=', value @ ..] => Some(Some(OsStr::from_bytes(value).to_owned())),
                _ => None,
            })
            .and_then(|found| found.or_else(|| words.next().cloned()))
    };
    let name = plain(&value("--name")?, NAME)?;
    let login = value("--authfile").and_then(|file| Path::new(&file).parent().map(Path::to_owned));
    let login = login.or_else(|| value("--config").map(Into::into));
    let login = login.and_then(|path| plain(path.file_name()?, LOGIN));
    Some(Started { engine, name, login })
}

/// The name, if it begins so and continues with nothing but letters, digits, `_` and `-`.
fn plain(name: &OsStr, begins: &str) -> Option<String> {
    let name = name.to_str()?;
    let is_plain =
        |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    name.strip_prefix(begins).filter(|rest| is_plain(rest)).map(|_| name.to_owned())
}

/// Removes a directory with a login, if it is that user's alone.
pub(crate) fn remove_login(temporary: &Path, name: &str, user: Uid) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let temporary: OwnedFd = rustix::fs::open(temporary, flags, Mode::empty())?;
    let login = rustix::fs::openat(temporary.as_fd(), name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let facts = rustix::fs::fstat(&login)?;
    if facts.st_uid != user.as_raw() || facts.st_mode & 0o077 != 0 {
        return Ok(());
    }
    for file in LOGIN_FILES {
        let _ = rustix::fs::unlinkat(&login, file, AtFlags::empty());
    }
    rustix::fs::unlinkat(&temporary, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn parsed(line: &str) -> Option<(&'static str, String, Option<String>)> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse(&words).map(|Started { engine, name, login }| (engine, name, login))
    }

    #[test]
    fn a_container_is_known_by_the_command_that_started_it() {
        let login = "ansible_runner_registry_7_x";
        let all = |engine, login: Option<&str>| {
            Some((engine, "ansible_runner_7".to_owned(), login.map(str::to_owned)))
        };
        for (line, wanted) in [
            (
                &format!(
                    "podman run --rm --authfile=/tmp/{login}/auth.json --name ansible_runner_7 image ansible-playbook"
                )[..],
                all("podman", Some(login)),
            ),
            (
                &format!("docker --config=/tmp/{login} run --name=ansible_runner_7 image"),
                all("docker", Some(login)),
            ),
            // The paths in a line decide neither what is executed nor where something is removed.
            ("python3 /home/eve/podman run --name ansible_runner_7 image", all("podman", None)),
            (
                &format!("podman --config=/etc/{login}/ run --name ansible_runner_7 image"),
                all("podman", Some(login)),
            ),
            ("podman run --authfile=/home/me/auth.json --name ansible_runner_7 image", all("podman", None)),
            (
                "podman --config=/x/ansible_runner_registry_.. run --name ansible_runner_7",
                all("podman", None),
            ),
            ("podman run --name postgres image", None),
            ("podman run --name ansible_runner_7/../x image", None),
            ("podman run --name -a image", None),
            ("podman run image", None),
            ("podman ps --name ansible_runner_7", None),
            ("ansible-playbook run --name ansible_runner_7", None),
            ("sh -c podman run --name ansible_runner_7", None),
        ] {
            assert_eq!(parsed(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_login_goes_if_it_is_the_user_s() {
        let temp = tempfile::tempdir().unwrap();
        let name = "ansible_runner_registry_7_x";
        let login = temp.path().join(name);
        std::fs::create_dir(&login).unwrap();
        std::fs::write(login.join("auth.json"), "secret").unwrap();
        let own = rustix::process::geteuid();
        let _ = remove_login(temp.path(), name, own);
        assert!(login.join("auth.json").exists(), "others may read it: it is no login");
        std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o700)).unwrap();
        let _ = remove_login(temp.path(), name, Uid::from_raw(own.as_raw() + 1));
        assert!(login.join("auth.json").exists(), "somebody else's");
        let link = "ansible_runner_registry_8_x";
        std::os::unix::fs::symlink(&login, temp.path().join(link)).unwrap();
        let _ = remove_login(temp.path(), link, own);
        assert!(login.join("auth.json").exists(), "no link is followed");
        remove_login(temp.path(), name, own).unwrap();
        assert!(!login.exists());
    }
}
