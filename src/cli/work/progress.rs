//! A progress bar on standard error while a large payload travels; nothing when standard error is not a terminal.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::output::Output;

/// Smaller payloads are sent before a bar could be read.
const LARGE: u64 = 4 << 20;
const BAR: &str = "{msg} [{bar:30}] {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
const SPINNER: &str = "{spinner} {msg} {bytes}  {bytes_per_sec}";

/// Shows how much of a payload has been sent; cleared when dropped.
pub(super) struct PayloadProgress(Option<ProgressBar>);

impl PayloadProgress {
    /// A bar for a payload of known size, a spinner for one of unknown size.
    pub(super) fn new(size: Option<u64>, output: Output) -> Self {
        if output.quiet || !io::stderr().is_terminal() || size.is_some_and(|size| size < LARGE) {
            return Self(None);
        }
        let (bar, template) = match size {
            Some(size) => (ProgressBar::new(size), BAR),
            None => (ProgressBar::new_spinner(), SPINNER),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message("Sending payload");
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some(bar))
    }

    /// Takes note of the bytes sent so far.
    pub(super) fn set(&self, sent: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(sent);
        }
    }
}

impl Drop for PayloadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid() {
        for template in [BAR, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
