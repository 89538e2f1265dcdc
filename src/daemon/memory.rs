//! Memory that only the start needed, given back. Owns which of the process's mappings may be let go, and the
//! argument why that loses nothing; knows nothing of what the node does.
//!
//! Reading a configuration, building regular expressions and TLS profiles runs through most of the program's code
//! once, and the kernel maps 64 KiB around every page touched. A node then idles in a fraction of that code, on
//! hosts that are bought for jobs, so the mapping is emptied: what is needed again comes back from the page cache.
#![allow(unsafe_code)]

use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Unmaps the resident pages of the program's own code; the next use of each maps it again. Best effort: a system
/// that refuses leaves everything as it is.
pub(super) fn give_back_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let here = give_back_code as *const () as usize;
    let Some(range) = code_around(&maps, here) else { return };
    // SAFETY: the range is one whole mapping of this process, backed by a file, readable and executable and not
    // writable, so its pages hold the file's bytes and nothing else (a position-independent program is relocated
    // in its data, never in its code). Letting them go only empties page table entries; any thread that runs
    // there, this one included, faults the same bytes in again.
    let _refused = unsafe { madvise(range.start as *mut _, range.len(), Advice::LinuxDontNeed) };
}

/// The mapping in `maps` (text of /proc/PID/maps) that holds `address`, if it is code of a file: `r-xp` with a
/// path.
fn code_around(maps: &str, address: usize) -> Option<Range<usize>> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let (permissions, path) = (fields.next()?, fields.nth(3)?);
        (range.contains(&address) && permissions == "r-xp" && path.starts_with('/')).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 12 /usr/bin/meshd
2000-5000 r-xp 00001000 fe:00 12 /usr/bin/meshd
5000-6000 r--p 00004000 fe:00 12 /usr/bin/meshd
7000-9000 r-xp 00000000 00:00 0
a000-b000 rwxp 00000000 fe:00 12 /usr/bin/meshd
";

    #[test]
    fn only_unwritable_code_of_a_file_is_let_go() {
        assert_eq!(code_around(MAPS, 0x2000), Some(0x2000..0x5000));
        assert_eq!(code_around(MAPS, 0x4fff), Some(0x2000..0x5000));
        for address in [0x1000, 0x5000, 0x7000, 0xa000, 0xc000] {
            assert_eq!(code_around(MAPS, address), None, "{address:#x}");
        }
    }

    #[test]
    fn the_program_runs_on() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(code_around(&maps, give_back_code as *const () as usize).is_some(), "{maps}");
        give_back_code();
        assert_eq!((1..=10).map(|n| n.to_string()).collect::<String>(), "12345678910");
    }
}
