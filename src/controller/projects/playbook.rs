//! The input of a sync: a runner's stream with the playbook, its script, its order and the login.

use std::io::{Cursor, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::ProjectPlace;
use crate::controller::credentials::{Credential, CredentialKind, ScmProof};
use crate::controller::header::ProjectSync;

const PLAYBOOK: &str = include_str!("sync.yml");
const SCRIPT: &str = include_str!("sync.py");
const INVENTORY: &str = "localhost ansible_connection=local\n";
/// The longest sync, in seconds.
const LONGEST_SYNC: u32 = 3_600;
/// The user that servers expect with a token, if a credential names none.
const TOKEN_USER: &str = "git";
/// Only its owner may read a file of the stream.
const PRIVATE: u32 = 0o600;

/// What one sync is to do.
#[derive(Debug, Clone, Copy)]
pub struct SyncOrder<'a> {
    /// The project.
    pub sync: &'a ProjectSync,
    /// The project's place on this node.
    pub place: &'a ProjectPlace,
    /// The number of the sync's job.
    pub job: i64,
    /// The content of the credential that the project names.
    pub login: Option<&'a Credential>,
}

impl SyncOrder<'_> {
    /// The whole stream. It holds the login, so it goes to the sync's unit and nowhere else.
    ///
    /// # Errors
    /// It cannot be packed.
    pub fn stream(&self) -> Result<Vec<u8>, String> {
        let packed = self.pack().map_err(|error| format!("its sync cannot be packed: {error}"))?;
        let kwargs = json!({"kwargs": {"playbook": "sync.yml", "timeout": LONGEST_SYNC}});
        let mut stream = format!("{kwargs}\n{}\n", json!({"zipfile": packed.len()})).into_bytes();
        stream.extend_from_slice(STANDARD.encode(packed).as_bytes());
        stream.extend_from_slice(format!("{}\n", json!({"eof": true})).as_bytes());
        Ok(stream)
    }

    fn pack(&self) -> zip::result::ZipResult<Vec<u8>> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let mut add = |name: &str, content: &str| -> zip::result::ZipResult<()> {
            archive.start_file(name, options.unix_permissions(PRIVATE))?;
            Ok(archive.write_all(content.as_bytes())?)
        };
        add("project/sync.yml", PLAYBOOK)?;
        add("project/sync.py", SCRIPT)?;
        add("project/order.json", &self.order().to_string())?;
        add("inventory/hosts", INVENTORY)?;
        if let Some(Credential { kind: CredentialKind::Scm(login), .. }) = self.login {
            match &login.proof {
                ScmProof::Password(password) => {
                    let username = login.username.as_deref().unwrap_or(TOKEN_USER);
                    add("env/scm_login", &format!("username={username}\npassword={}\n", password.expose()))?;
                }
                ScmProof::SshKey(key) => add("env/scm_key", &format!("{}\n", key.expose().trim_end()))?,
            }
        }
        Ok(archive.finish()?.into_inner())
    }

    fn order(&self) -> Value {
        let Self { sync, place, job, login } = self;
        // Submodules of a repository on the disk may be on the disk, too.
        let is_local = sync.url.scheme() == "file";
        let allowed: Vec<_> = login.iter().flat_map(|login| &login.urls).map(|url| url.as_str()).collect();
        let username = login.and_then(|login| match &login.kind {
            CredentialKind::Scm(login) => login.username.as_deref(),
            CredentialKind::Registry(_) | CredentialKind::Kubernetes(_) => None,
        });
        json!({
            "url": sync.url.as_str(),
            "revision": sync.revision,
            "submodules": sync.submodules,
            "requirements": sync.requirements,
            "directory": place.directory,
            "own": place.sync_directory(*job),
            "suffix": place.suffix,
            "protocols": if is_local { "file:https:ssh" } else { "https:ssh" },
            "allowed": allowed,
            "username": username,
        })
    }
}

/// The variables by which ansible finds the roles and collections that a project requires. They name the directory in a
/// container or pod first. The child's own directory comes second; only the runner knows it, and sets a variable to the
/// place of the artifacts below it. The last are ansible's usual places.
pub fn search_paths() -> [(&'static str, String); 2] {
    let path =
        |name: &str, usual: &str| format!("/runner/{name}:$AWX_ISOLATED_DATA_DIR/../../{name}:{usual}");
    [
        (
            "ANSIBLE_ROLES_PATH",
            path("requirements_roles", "~/.ansible/roles:/usr/share/ansible/roles:/etc/ansible/roles"),
        ),
        (
            "ANSIBLE_COLLECTIONS_PATH",
            path("requirements_collections", "~/.ansible/collections:/usr/share/ansible/collections"),
        ),
    ]
}
