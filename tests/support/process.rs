//! A program under test, which ends with its test.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};

/// Killed when dropped, if it runs then.
pub(crate) struct Process(Child);

impl Process {
    /// Starts it with nothing to read; what it prints goes to `log`.
    pub(crate) fn start(command: &mut Command, log: File) -> Self {
        let outputs = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap());
        Self(outputs.stderr(log).spawn().unwrap())
    }
}

impl Deref for Process {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _unless_it_has_ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
