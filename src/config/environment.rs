//! What the defaults of a configuration may depend on: the machine, its user and the name of the program. Owns
//! where a node keeps its data by default. It refuses to know directives.

use std::path::{Path, PathBuf};

/// Everything outside the configuration that its defaults may depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The name by which the program was called, without its directory.
    pub program: String,
    /// The machine's name.
    pub host_name: Option<String>,
    /// True if the program runs as root.
    pub is_root: bool,
    /// `STATE_DIRECTORY`, which systemd sets for a service that has such a directory.
    pub state_directory: Option<PathBuf>,
    /// `XDG_STATE_HOME`
    pub xdg_state_home: Option<PathBuf>,
    /// `HOME`
    pub home: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self {
            program,
            host_name: rustix::system::uname().nodename().to_str().ok().map(str::to_owned),
            is_root: rustix::process::geteuid().is_root(),
            state_directory: path("STATE_DIRECTORY"),
            xdg_state_home: path("XDG_STATE_HOME"),
            home: path("HOME"),
        }
    }

    /// Where a node keeps its data by default. A program called `receptor` gets receptor's own directory.
    pub fn default_data_dir(&self) -> Option<PathBuf> {
        // A relative path would depend on where the program was started; the XDG rules say to ignore it.
        let absolute = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
        if self.program == "receptor" {
            Some(PathBuf::from("/tmp/receptor"))
        } else if let Some(directory) = absolute(&self.state_directory) {
            Some(directory)
        } else if self.is_root {
            Some(PathBuf::from("/var/lib/meshd"))
        } else {
            let state = absolute(&self.xdg_state_home);
            // Users without a home have `/`, above all in containers.
            let home = absolute(&self.home).filter(|home| home != Path::new("/"));
            let state = state.or_else(|| Some(home?.join(".local/state")));
            state.map(|state| state.join("meshd"))
        }
    }
}
