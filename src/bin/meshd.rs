//! The daemon: a mesh node.

fn main() {}
