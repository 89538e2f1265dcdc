//! Memory that only the start needed, given back. Owns which of the process's mappings may be let go, and the
//! argument why that loses nothing; knows nothing of what the node does.
//!
//! Reading a configuration, building regular expressions and TLS profiles runs through most of the program's code
//! once, and the kernel maps 64 KiB around every page touched. A node then idles in a fraction of that code, on
//! hosts that are bought for jobs, so the mapping is emptied: what is needed again comes back from the page cache.
#![allow(unsafe_code)]

use std::ops::Range;
use std::path::Path;

use rustix::mm::{Advice, madvise};

/// Unmaps the resident pages of code and constants; the next use of each maps it again. Best effort: a system that
/// refuses leaves everything as it is.
pub(super) fn give_back() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for range in unwritten(&maps) {
        // SAFETY: the range is one whole mapping of an ELF file in this process that nothing has written to (see
        // `unwritten`), so its pages hold the file's bytes and nothing else. Letting them go only empties page table
        // entries; any thread that runs or reads there, this one included, faults the same bytes in again.
        let _refused = unsafe { madvise(range.start as *mut _, range.len(), Advice::LinuxDontNeed) };
    }
}

/// The mappings in `maps` (text of /proc/PID/maps) that hold what stands in a program or library and nothing else.
/// Position-independent programs are relocated in their data alone: never in their code (`r-xp`), nor in the segment
/// at the start of the file (`r--p` at offset 0), which has its headers and constants. Read-only mappings further
/// on may be data that was relocated and then protected, and are left alone.
fn unwritten(maps: &str) -> impl Iterator<Item = Range<usize>> {
    maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let (permissions, offset, path) = (fields.next()?, fields.next()?, fields.nth(2)?);
        let first = usize::from_str_radix(offset, 16).ok()? == 0;
        let unwritten = permissions == "r-xp" || permissions == "r--p" && first && is_elf(path);
        (unwritten && path.starts_with('/')).then_some(range)
    })
}

/// Whether that is the name of this program or of a shared library, and not of some data that is mapped.
fn is_elf(path: &str) -> bool {
    path.contains(".so") || std::env::current_exe().is_ok_and(|own| own == Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 12 /usr/lib/libx.so.6
2000-5000 r-xp 00001000 fe:00 12 /usr/lib/libx.so.6
5000-6000 r--p 00004000 fe:00 12 /usr/lib/libx.so.6
6000-7000 rw-p 00005000 fe:00 12 /usr/lib/libx.so.6
7000-9000 r-xp 00000000 00:00 0
9000-a000 r--p 00000000 fe:00 13 /usr/share/locale/data
a000-b000 rwxp 00000000 fe:00 12 /usr/lib/libx.so.6
b000-c000 r-xp 00000000 00:00 0 [vdso]
";

    #[test]
    fn only_what_nobody_writes_to_is_let_go() {
        let ranges: Vec<_> = unwritten(MAPS).collect();
        assert_eq!(ranges, [0x1000..0x2000, 0x2000..0x5000]);
    }

    #[test]
    fn the_program_runs_on() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for here in [give_back as *const () as usize, MAPS.as_ptr() as usize] {
            assert!(unwritten(&maps).any(|range| range.contains(&here)), "{here:#x} in {maps}");
        }
        give_back();
        assert_eq!((1..=10).map(|n| n.to_string()).collect::<String>(), "12345678910");
    }
}
