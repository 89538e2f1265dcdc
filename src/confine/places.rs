//! The paths that any program needs to run: the system's programs and libraries, the few files of /etc that they read,
//! and, for a Python script, its virtual environment and the installation below. Refuses to know which program it is.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The system's programs and libraries. [`of_system`] adds `/lib64` and the like, which begin with `/lib`.
const PROGRAMS: [&str; 4] = ["/usr", "/bin", "/sbin", "/lib"];
/// Files and directories of /etc without secrets: users, names, certificates, and where libraries are.
const OF_ETC: [&str; 30] = [
    "passwd",
    "group",
    "nsswitch.conf",
    "hosts",
    "host.conf",
    "resolv.conf",
    "gai.conf",
    "services",
    "protocols",
    "networks",
    "mime.types",
    "localtime",
    "timezone",
    "os-release",
    "ld.so.cache",
    "ld.so.preload",
    "locale.alias",
    "gitconfig",
    "gitattributes",
    "inputrc",
    "terminfo",
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "crypto-policies",
];
const OF_SSH: [&str; 4] = ["ssh_config", "ssh_config.d", "ssh_known_hosts", "moduli"];
/// Variables that name files or directories of certificates.
const CERTIFICATES: [&str; 7] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NIX_SSL_CERT_FILE",
];
/// The bytes of a script's first line that the kernel reads at most.
const FIRST_LINE: u64 = 256;
const PYTHON: &str = "python";
const PREFIXES: &str =
    "import sys; print(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, sep='\\n')";

/// The file of a program, searched for as a shell does.
pub(super) fn find(program: &OsStr) -> Result<PathBuf, String> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    let found = if program.as_bytes().contains(&b'/') {
        Some(PathBuf::from(program)).filter(is_program)
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
    };
    found.ok_or_else(|| format!("{}: there is no such program", program.display()))
}

/// The paths that every program may read. Some may not exist, which does no harm.
pub(super) fn of_system() -> Vec<PathBuf> {
    let etc = Path::new("/etc");
    let begins = |directory: &str, with: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().as_bytes().starts_with(with.as_bytes()));
        named.map(|entry| entry.path()).collect()
    };
    let mut places: Vec<PathBuf> = PROGRAMS.iter().map(PathBuf::from).collect();
    places.extend(begins("/", "lib"));
    // Debian keeps the settings of its Python there.
    places.extend(begins("/etc", PYTHON));
    places.extend(OF_ETC.iter().map(|name| etc.join(name)));
    places.extend(OF_SSH.iter().map(|name| etc.join("ssh").join(name)));
    let certificates = CERTIFICATES.iter().filter_map(env::var_os);
    places.extend(certificates.flat_map(|value| env::split_paths(&value).collect::<Vec<_>>()));
    places
}

/// The paths that this program also needs: its file, and for a Python script the interpreter and its modules.
pub(super) fn of_program(program: &Path) -> Result<Vec<PathBuf>, String> {
    let mut places = vec![program.to_owned()];
    let interpreter = match interpreter(program) {
        Some(words) => named(&words)?,
        None => Some(program.to_owned()),
    };
    let Some(interpreter) = interpreter.filter(|path| is_python(path)) else { return Ok(places) };
    let asked = Command::new(&interpreter).args(["-I", "-c", PREFIXES]).output();
    let asked = asked.map_err(|error| format!("{}: {error}", interpreter.display()))?;
    let prefixes = String::from_utf8_lossy(&asked.stdout);
    places.extend(prefixes.lines().map(PathBuf::from).filter(|prefix| prefix.parent().is_some()));
    places.push(interpreter);
    Ok(places)
}

/// The words after `#!`.
fn interpreter(program: &Path) -> Option<Vec<String>> {
    let mut line = Vec::new();
    let file = File::open(program).ok()?;
    BufReader::new(file.take(FIRST_LINE)).read_until(b'\n', &mut line).ok()?;
    let words = String::from_utf8(line.strip_prefix(b"#!")?.to_vec()).ok()?;
    Some(words.split_whitespace().map(str::to_owned).collect())
}

/// The interpreter that these words name, directly or through `env`.
fn named(words: &[String]) -> Result<Option<PathBuf>, String> {
    let mut words = words.iter();
    let Some(first) = words.next() else { return Ok(None) };
    if !first.ends_with("/env") {
        return Ok(Some(PathBuf::from(first)));
    }
    let program = words.find(|word| !word.starts_with('-') && !word.contains('='));
    program.map(|program| find(OsStr::new(program))).transpose()
}

fn is_python(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(PYTHON.as_bytes()))
}
