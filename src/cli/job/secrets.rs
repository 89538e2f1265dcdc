//! Asks for the passwords of `-k`, `-K` and vaults on the terminal, without showing them. Without a terminal, reads
//! them as lines of standard input.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::flags::RunFlags;
use super::vault::PasswordSource;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::interrupted;

/// Passwords that the user typed.
#[derive(Default)]
pub(super) struct Typed {
    /// For `-k`.
    pub connection: Option<String>,
    /// For `-K`.
    pub become_user: Option<String>,
    /// For vaults, in the order of their flags.
    pub vaults: Vec<String>,
}

impl Typed {
    /// Asks for what the flags want. As in ansible, an empty answer to the second question means the first answer.
    pub(super) async fn ask(flags: &RunFlags) -> Result<Self, Failure> {
        let mut typed = Self::default();
        let ansible = &flags.ansible;
        if ansible.ask_pass {
            typed.connection = Some(ask("SSH password: ".to_owned()).await?);
        }
        if ansible.ask_become_pass {
            let default = typed.connection.clone().unwrap_or_default();
            let question = if ansible.ask_pass {
                "BECOME password[defaults to SSH password]: "
            } else {
                "BECOME password: "
            };
            let answer = ask(question.to_owned()).await?;
            typed.become_user = Some(if answer.is_empty() { default } else { answer });
        }
        for (label, _) in
            ansible.vault.sources().into_iter().filter(|(_, source)| *source == PasswordSource::Typed)
        {
            typed.vaults.push(ask(format!("Vault password ({label}): ")).await?);
        }
        Ok(typed)
    }
}

pub(in crate::cli) async fn ask(question: String) -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::new(Exit::Failed, format!("cannot read a password: {error}"));
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
    // An interrupt drops this, so that the terminal shows again what is typed.
    let _hidden = match &terminal {
        Some(terminal) => Some(Hidden::enter(terminal).map_err(failed)?),
        None => None,
    };
    let read = tokio::task::spawn_blocking(move || read_line(terminal, &question));
    tokio::select! {
        line = read => line.map_err(io::Error::other).flatten().map_err(failed),
        failure = interrupted() => Err(failure),
    }
}

fn read_line(terminal: Option<File>, question: &str) -> io::Result<String> {
    let line = match terminal {
        Some(mut terminal) => {
            terminal.write_all(question.as_bytes())?;
            let line = line_of(&terminal)?;
            terminal.write_all(b"\n")?;
            line
        }
        None => line_of(&File::from(io::stdin().as_fd().try_clone_to_owned()?))?,
    };
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads one line and nothing after it, because that may be the next answer, or the rest of the script that we run in.
fn line_of(mut input: impl Read) -> io::Result<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\n") && input.read(&mut byte)? == 1 {
        line.extend(byte);
    }
    Ok(line)
}

/// Hides what is typed on the terminal until dropped.
struct Hidden {
    terminal: File,
    before: Termios,
}

impl Hidden {
    fn enter(terminal: &File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal: terminal.try_clone()?, before })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_behind_an_answer_stay_where_they_are() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"secret\nchmod 0400 ca.key\n").unwrap();
        drop(writer);
        assert_eq!(line_of(&reader).unwrap(), b"secret\n");
        assert_eq!(io::read_to_string(&reader).unwrap(), "chmod 0400 ca.key\n");
        assert_eq!(line_of(&reader).unwrap(), b"");
    }
}
