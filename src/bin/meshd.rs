//! The daemon: a mesh node.

fn main() {
    meshd::work::runner::main_if_asked();
}
