//! The Go implementation's programs, for interoperability tests.
//!
//! RECEPTOR_GO names receptor 1.4.9, RECEPTOR_GO_NEW a later release.

use std::path::PathBuf;

/// The program that a variable names. If the variable is not set, the test reports that and passes; a wrong
/// path fails it.
pub(crate) fn program(variable: &str) -> Option<PathBuf> {
    let Some(path) = std::env::var_os(variable) else {
        eprintln!("SKIPPED: {variable} is not set");
        return None;
    };
    let path = PathBuf::from(path);
    assert!(path.is_file(), "{variable} is no file: {}", path.display());
    Some(path)
}

/// Defines two tests for each function that takes a Go node's program, one per release.
macro_rules! beside_go_nodes {
    ($($test:ident),+ $(,)?) => {
        $crate::receptor::beside_go_nodes!(go "RECEPTOR_GO": $($test),+);
        $crate::receptor::beside_go_nodes!(go_new "RECEPTOR_GO_NEW": $($test),+);
    };
    ($release:ident $variable:literal: $($test:ident),+) => {
        mod $release {
            $(#[test]
            fn $test() {
                if let Some(program) = $crate::receptor::program($variable) {
                    super::$test(&program);
                }
            })+
        }
    };
}

pub(crate) use beside_go_nodes;
