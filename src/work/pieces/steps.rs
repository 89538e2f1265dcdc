//! What is to be sent of a payload once it is known which pieces the other node has. Owns which bytes belong to which
//! piece, and the frames for them. Knows no connection.

use std::io::{self, Read};

use tokio::sync::mpsc;

use super::frame::PieceFrame;
use super::list::{Run, SecondReading};

/// What is to be sent of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendStep {
    Raw(u32),
    Decoded(u32),
    Copy { piece: u32, from: u32, length: u32 },
}

/// Turns runs of a payload into steps, from its first to its last.
pub(crate) struct Steps {
    /// The lengths of further pieces, and whether they are there.
    lengths: mpsc::UnboundedReceiver<u32>,
    there: mpsc::Receiver<bool>,
    /// How many pieces have begun; then what is known of the latest.
    begun: u32,
    used: u32,
    length: u32,
    is_there: bool,
}

impl Steps {
    /// Takes the lengths of pieces as they are listed, and the answers to that.
    pub(crate) fn new(lengths: mpsc::UnboundedReceiver<u32>, there: mpsc::Receiver<bool>) -> Self {
        Self { lengths, there, begun: 0, used: 0, length: 0, is_there: false }
    }

    /// The steps of the next runs, once the answers have come. `None` if there will be no more.
    pub(crate) async fn of(&mut self, runs: Vec<Run>) -> Option<Vec<SendStep>> {
        let mut steps = Vec::with_capacity(runs.len());
        for run in runs {
            match run {
                Run::Raw(count) => steps.push(SendStep::Raw(count)),
                Run::Decoded(count) => add_decoded(&mut steps, count),
                Run::File(count) => self.add_file(count, &mut steps).await?,
            }
        }
        Some(steps)
    }

    async fn add_file(&mut self, mut left: u32, steps: &mut Vec<SendStep>) -> Option<()> {
        while left > 0 {
            if self.used == self.length {
                (self.length, self.is_there) = (self.lengths.recv().await?, self.there.recv().await?);
                (self.begun, self.used) = (self.begun + 1, 0);
                continue;
            }
            let length = left.min(self.length - self.used);
            match self.is_there {
                true => steps.push(SendStep::Copy { piece: self.begun - 1, from: self.used, length }),
                false => add_decoded(steps, length),
            }
            (self.used, left) = (self.used + length, left - length);
        }
        Some(())
    }
}

fn add_decoded(steps: &mut Vec<SendStep>, count: u32) {
    match steps.last_mut() {
        Some(SendStep::Decoded(last)) => *last += count,
        _ => steps.push(SendStep::Decoded(count)),
    }
}

impl<R: Read> SecondReading<R> {
    /// The frames for these steps, which are the next ones.
    ///
    /// # Errors
    /// The payload cannot be read, or is no longer what it was.
    pub(crate) fn frames(&mut self, steps: &[SendStep]) -> io::Result<Vec<u8>> {
        let mut frames = Vec::new();
        for step in steps {
            let frame = match *step {
                SendStep::Raw(count) => PieceFrame::Raw(self.raw(count)?),
                SendStep::Decoded(count) => PieceFrame::Decoded(self.decoded(count)?),
                SendStep::Copy { piece, from, length } => {
                    self.skip(length)?;
                    PieceFrame::Copy { piece, from, length }
                }
            };
            frame.write(&mut frames);
        }
        Ok(frames)
    }
}
