//! The output of a unit on another node: its copy here, whose length says where to go on, and how long is waited for the
//! rest of it. How it comes is `steps`' business.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Remotes;
use super::session::StepError;
use crate::rpc::UnitReport;
use crate::work::WorkError;
use crate::work::unit::Life;
use crate::work::units::Entry;

/// Looks at a unit that has ended and gives none of the output that it still owes, until another connection is to bring
/// it; and connections until it is lost. The node answers all these ten minutes, so that neither it nor its link is just
/// slow; its disk may be, which is why they are ten.
const LOOKS: u32 = 150;
const CONNECTIONS: u32 = 4;

/// The copy of the output on this node. Its length says where to go on.
pub(super) struct Output {
    file: Arc<File>,
    path: PathBuf,
    pub(super) length: u64,
    turn: Arc<Mutex<()>>,
}

impl Output {
    pub(super) async fn open(remotes: &Remotes, entry: &Arc<Entry>) -> Result<Self, StepError> {
        let (dir, path, turn) = (entry.dir.clone(), entry.dir.file("stdout"), entry.link().output.clone());
        let lock = turn.clone();
        let open = move || {
            let _turn = lock.lock();
            dir.append_stdout().and_then(|file| Ok((file.metadata()?.len(), file)))
        };
        let opened = remotes.units.store().blocking(open).await;
        let (length, file) = opened.map_err(|e| WorkError::io("open", &path, e))?;
        Ok(Self { file: Arc::new(file), path, length, turn })
    }

    pub(super) async fn append(&mut self, remotes: &Remotes, bytes: Vec<u8>) -> Result<(), StepError> {
        let (file, turn, expected, added) =
            (self.file.clone(), self.turn.clone(), self.length, bytes.len() as u64);
        let write = move || {
            let _turn = turn.lock();
            if file.metadata()?.len() != expected {
                return Err(io::Error::other("somebody else has written to it"));
            }
            (&*file).write_all(&bytes)
        };
        let written = remotes.units.store().blocking(write).await;
        written.map_err(|e| WorkError::io("write", &self.path, e))?;
        self.length += added;
        Ok(())
    }
}

/// Output that a unit owes though it has ended: a power loss may have taken it from a node that does not see that.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Bytes that have come.
    have: u64,
    /// Looks in a row without any more.
    looks: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Debt {
    /// It may come yet.
    Due,
    /// Another connection is to ask for it.
    Dunned,
    /// It does not come.
    Lost,
}

impl Owed {
    pub(super) fn look(&mut self, have: u64) -> Debt {
        if std::mem::replace(&mut self.have, have) != have {
            self.looks = 0;
        }
        self.looks += 1;
        match self.looks {
            looks if looks >= LOOKS * CONNECTIONS => Debt::Lost,
            looks if looks.is_multiple_of(LOOKS) => Debt::Dunned,
            _ => Debt::Due,
        }
    }
}

pub(super) fn without_the_rest(report: UnitReport, have: u64) -> UnitReport {
    let mut life = Life::told(report.state, report.detail.clone(), report.stdout_size);
    life.lose_output(have);
    UnitReport { state: life.state, detail: life.detail, stdout_size: life.stdout_size, ..report }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_owed_is_asked_for_again_and_given_up_unless_more_of_it_comes() {
        let mut owed = Owed::default();
        let mut dunned = 0;
        for have in [0, 5, 9] {
            for _ in 1..LOOKS * CONNECTIONS {
                match owed.look(have) {
                    Debt::Due => {}
                    Debt::Dunned => dunned += 1,
                    Debt::Lost => panic!("the last byte came {} looks ago", owed.looks),
                }
            }
        }
        assert_eq!(dunned, 3 * (CONNECTIONS - 1), "each connection has its time");
        assert_eq!(owed.look(9), Debt::Lost);
    }
}
