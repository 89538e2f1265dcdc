//! The containers that a unit's processes have started, and the logins for registries that ansible-runner writes down for
//! them: a runner that is killed removes neither. Both are read from the command lines of podman and docker, which end
//! with the unit, and removed afterwards, with the rights and the environment that the unit has. Knows no other container.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};

use super::fork;
use super::processes::{Process, words};
use super::start::Rights;

const ENGINES: [&str; 2] = ["podman", "docker"];
/// How ansible-runner begins the name of a directory with a login, and all the files that it writes there.
const LOGIN: &str = "ansible_runner_registry_";
const LOGIN_FILES: [&str; 3] = ["auth.json", "config.json", "registries.conf"];
/// How long the removal of a container may take, and between looks.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Containers {
    /// By name: how it is started, and the environment.
    named: BTreeMap<OsString, (OsString, Vec<OsString>)>,
    logins: Vec<PathBuf>,
}

impl Containers {
    /// Those of a unit's processes.
    pub(super) fn of(processes: &[Process]) -> Self {
        let mut found = Self::default();
        for &(pid, _) in processes {
            let Ok(words_of_command) = words(pid, "cmdline") else { continue };
            let Some((engine, name, login)) = parse(&words_of_command) else { continue };
            let environment = words(pid, "environ").unwrap_or_default();
            found.named.insert(name, (engine, environment));
            found.logins.extend(login);
        }
        found
    }

    /// Removes them, as the unit's user would. Blocks for a limited time.
    pub(super) fn remove(self, rights: Option<&Rights>) {
        for (name, (engine, environment)) in self.named {
            let mut command = Command::new(engine);
            let variables = environment.iter().filter_map(|variable| {
                let bytes = variable.as_bytes();
                let at = bytes.iter().position(|&byte| byte == b'=')?;
                Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
            });
            command.args(["rm", "-f"]).arg(&name).env_clear().envs(variables).current_dir("/");
            run(&mut command, rights);
        }
        let user = rights.map_or_else(rustix::process::geteuid, |rights| {
            rustix::process::Uid::from_raw(rights.user.as_raw())
        });
        for login in self.logins {
            // Without it there is nothing to remove.
            let _ = remove_login(&login, user);
        }
    }
}

/// Runs a command of an engine to its end, or kills it.
pub(crate) fn run(command: &mut Command, rights: Option<&Rights>) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = fork::prepare(command, rights.cloned(), None).spawn() else { return false };
    let deadline = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(Some(end)) => return end.success(),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// The directory with a login that a command line names.
pub(crate) fn login_of(words: &[OsString]) -> Option<PathBuf> {
    parse(words)?.2
}

/// The engine, the container and the directory with its login that a command line names.
fn parse(words: &[OsString]) -> Option<(OsString, OsString, Option<PathBuf>)> {
    // A script has its interpreter in front.
    let is_engine = |word: &&OsString| {
        Path::new(word).file_name().is_some_and(|name| ENGINES.iter().any(|engine| name == *engine))
    };
    let engine = words.iter().take(2).find(is_engine)?;
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
    let name = value("--name").filter(|name| !name.as_bytes().starts_with(b"-"))?;
    let login = value("--authfile").and_then(|file| Path::new(&file).parent().map(Path::to_owned));
    let login = login.or_else(|| value("--config").map(PathBuf::from)).filter(|path| is_login(path));
    Some((engine.clone(), name, login))
}

fn is_login(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(LOGIN.as_bytes()))
}

/// Removes a directory with a login, if it is that user's.
pub(crate) fn remove_login(path: &Path, user: rustix::process::Uid) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    if rustix::fs::fstat(&directory)?.st_uid != user.as_raw() {
        return Ok(());
    }
    for file in LOGIN_FILES {
        let _ = rustix::fs::unlinkat(&directory, file, AtFlags::empty());
    }
    rustix::fs::rmdir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<(String, String, Option<String>)> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (engine, name, login) = parse(&words)?;
        let text = |word: OsString| word.into_string().unwrap();
        Some((text(engine), text(name), login.map(|path| path.display().to_string())))
    }

    #[test]
    fn a_container_is_known_by_the_command_that_started_it() {
        let login = "/tmp/ansible_runner_registry_7_x";
        let all = |engine: &str, name: &str, login: Option<&str>| {
            Some((engine.to_owned(), name.to_owned(), login.map(str::to_owned)))
        };
        for (line, wanted) in [
            (
                &format!(
                    "podman run --rm --authfile={login}/auth.json --name ansible_runner_7 image ansible-playbook"
                )[..],
                all("podman", "ansible_runner_7", Some(login)),
            ),
            (
                &format!("docker --config={login} run --name=ansible_runner_7 image"),
                all("docker", "ansible_runner_7", Some(login)),
            ),
            ("python3 /opt/podman run --name one image", all("/opt/podman", "one", None)),
            ("podman run --authfile=/home/me/auth.json --name one image", all("podman", "one", None)),
            ("podman run --name -a image", None),
            ("podman run image", None),
            ("podman ps --name one", None),
            ("ansible-playbook run --name one", None),
            ("sh -c podman run --name one", None),
        ] {
            assert_eq!(parsed(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_login_goes_if_it_is_the_user_s() {
        let temp = tempfile::tempdir().unwrap();
        let login = temp.path().join("ansible_runner_registry_7_x");
        std::fs::create_dir(&login).unwrap();
        std::fs::write(login.join("auth.json"), "secret").unwrap();
        let own = rustix::process::geteuid();
        let _ = remove_login(&login, rustix::process::Uid::from_raw(own.as_raw() + 1));
        assert!(login.join("auth.json").exists(), "somebody else's");
        std::os::unix::fs::symlink(&login, temp.path().join("ansible_runner_registry_8_x")).unwrap();
        let _ = remove_login(&temp.path().join("ansible_runner_registry_8_x"), own);
        assert!(login.join("auth.json").exists(), "no link is followed");
        remove_login(&login, own).unwrap();
        assert!(!login.exists());
    }
}
