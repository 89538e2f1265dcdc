//! The command line that talks to a node.

fn main() {}
