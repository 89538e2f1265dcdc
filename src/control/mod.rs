//! The control service: the line protocol between a node and those who operate it. Its halves share only the
//! contract of the socket, so that either can be swapped for the Go one.

pub mod client;
